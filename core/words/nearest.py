"""Which of the good names did the user mean?"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_LONGEST = 200  # letters: comparing costs the square of the length


def nearest(word: str, good: Iterable[str], least: float = 0.6) -> str | None:
    """The good name closest to ``word``, or None; case and ``_`` against ``-`` do not count as differences. ``least``: the share
    of their letters that they must have in common, in order."""
    if len(word) > _LONGEST:
        return None
    plain = {_plain(name): name for name in good}
    match = get_close_matches(_plain(word), plain, n=1, cutoff=least)
    return plain[match[0]] if match else None


def did_you_mean(word: str, good: Iterable[str]) -> str:
    """`` - did you mean 'stride'?``, or nothing where no good name is near."""
    name = nearest(word, good)
    return f" - did you mean '{name}'?" if name else ""


def by_nearness(word: str, good: Iterable[str]) -> list[str]:
    """All good names, the near ones first, the others in alphabetical order."""
    names = sorted(good)
    near = get_close_matches(_plain(word[:_LONGEST]), [_plain(n) for n in names], n=3, cutoff=0.5)
    return sorted(names, key=lambda n: near.index(_plain(n)) if _plain(n) in near else len(near))


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")
