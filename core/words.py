"""Text for people: printable lines, the nearest valid name, and one line about an exception."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import PurePath
from types import CodeType, FrameType

_MOST = 600  # characters


# Characters that are invisible or change their neighbours' appearance, though Unicode counts them
# as printable.
_UNSEEN = {
    chr(c) for c in (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180F, 0x2800, 0x3164, 0xFFA0)
} | {
    chr(c)
    for first, last in ((0x180B, 0x180D), (0xFE00, 0xFE0F), (0xE0100, 0xE01EF))
    for c in range(first, last + 1)
}


def printable(text: str) -> str:
    """``text`` for a terminal: white space as blanks; escapes, direction marks and invisible
    characters as their codes, ``\\u202e``.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if _seen(c) else " " if c.isspace() else _code(c) for c in text)


def printable_lines(text: str) -> str:
    """The same for several lines, with unusual white space as codes, too: JSON text keeps its
    meaning.
    """
    return "".join(c if c == "\n" or _seen(c) else _code(c) for c in text)


def _seen(c: str) -> bool:
    return c.isprintable() and c not in _UNSEEN


def _code(c: str) -> str:
    """As JSON writes a character: ``\\u001b``."""
    return json.dumps(c)[1:-1]


def one_line(text: str, limit: int = _MOST) -> str:
    """``text`` in printable characters on one line, cut at ``limit``."""
    plain = " ".join(printable(text[: 4 * limit]).split())
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"


def bounded(
    messages: Iterable[str], what: str = "and {} more", most: int = 50, limit: int = 3_000
) -> list[str]:
    """Each message on one line and none twice; of more than ``most``, ``what`` says how many others
    there are.
    """
    lines = list(dict.fromkeys(one_line(m, limit) for m in messages))
    return (
        lines
        if len(lines) <= most
        else [*lines[:most], what.replace("{}", f"{len(lines) - most:,}")]
    )


_LONGEST = 200  # letters: comparing costs the square of the length


# --- the nearest valid name -----------------------------------------------------------------------


def nearest(word: str, good: Iterable[str], least: float = 0.6) -> str | None:
    """The good name closest to ``word``, or None; case and ``_`` against ``-`` do not count as
    differences. ``least``: the share of their letters that they must have in common, in order.
    """
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


# --- where a plugin raised an error ---------------------------------------------------------------


DEBUG = "FEDBENCH_DEBUG"
"""environment variable: whole tracebacks, in logs and on standard error, and close watching"""

_OURS = "fedbench"
# built-in plugins
_PLUGINS = (
    f"{_OURS}.plugins",
    f"{_OURS}.leaderboard",
    f"{_OURS}.core.models",
    f"{_OURS}.core.signals.builtin",
)
_CALLED = frozenset(
    {  # what the engine calls that may call a plugin back
        "torch",
        "torchvision",
        "numpy",
        "scipy",
        "sklearn",
        "pluggy",
        "pydantic",
        "pydantic_core",
        "click",
        "rich",
    }
)
_PYTHON = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
_SITES = ("site-packages", "dist-packages")
_MOST_LINES, _LONGEST_LINE, _LONGEST_PLACE = 120, 500, 200


def debugging() -> bool:
    """Return whether the user wants whole tracebacks, and plugins watched closely."""
    return os.environ.get(DEBUG) == "1"


def raised_at(error: BaseException) -> str:
    """`` (my_package/defense.py:42 in protect)``, the innermost frame of the plugin that raised;
    empty where none did.
    """
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return one_line(f" ({PurePath(error.filename).name}:{error.lineno})", _LONGEST_PLACE)
    found = ""
    for frame, line in _own(
        [(frame, line or frame.f_lineno) for frame, line in traceback.walk_tb(error.__traceback__)]
    ):
        name = frame.f_code.co_name
        inside = "" if name == "<module>" else f" in {name}"
        found = f" ({_file(frame)}:{line}{inside})"
    return " " + one_line(found, _LONGEST_PLACE) if found else ""


def full_traceback(error: BaseException) -> str:
    """The traceback, of many lines the first and the last ones, in printable characters."""
    try:
        lines = "".join(traceback.format_exception(error)).splitlines()
    except Exception:  # a plugin's exception with a failing __str__
        lines = [f"a {type(error).__name__} that cannot be shown"]
    if len(lines) > _MOST_LINES:
        half = _MOST_LINES // 2
        lines = [*lines[:half], f"  [{len(lines) - 2 * half:,} lines left out]", *lines[-half:]]
    return "".join(f"{printable_lines(line)[:_LONGEST_LINE]}\n" for line in lines)


def _own(frames: list[tuple[FrameType, int]]) -> Iterator[tuple[FrameType, int]]:
    packages = [_package(frame) for frame, _ in frames]
    mine = next((p for p in packages if p), "")
    yield from (
        found for found, package in zip(frames, packages, strict=True) if mine and package == mine
    )


def _package(frame: FrameType) -> str:
    """The plugin package that a frame belongs to; empty for the engine, Python and libraries."""
    module, file = str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename
    if module.partition(".")[0] == _OURS:
        return next((p for p in _PLUGINS if module == p or module.startswith(f"{p}.")), "")
    python = file.startswith(_PYTHON) and not any(site in file for site in _SITES)
    top = module.partition(".")[0]
    return "" if python or top in _CALLED or file.startswith("<frozen") else top or file


def _file(frame: FrameType) -> str:
    """The module's path from its package on."""
    code: CodeType = frame.f_code
    name = PurePath(code.co_filename).name
    parts = str(frame.f_globals.get("__name__", "")).split(".")
    if name == "__init__.py":
        return "/".join([*parts, name])
    return "/".join([*parts[:-1], name]) if name == f"{parts[-1]}.py" else name


# --- errors on one line ---------------------------------------------------------------------------


def message_of(error: BaseException) -> str:
    """The exception's message; empty if it has none or ``str`` fails."""
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:  # __str__ itself may raise, or call sys.exit
        return ""


def error_text(error: BaseException) -> str:
    """``ValueError: out of ideas``."""
    if isinstance(error, SystemExit):
        return f"it called sys.exit({error.code!r:.60})"
    if isinstance(error, SyntaxError):
        return one_line(f"{type(error).__name__}: {error.msg}")
    return one_line(f"{type(error).__name__}: {message_of(error)}").removesuffix(":")


def describe_error(error: BaseException) -> str:
    """``ValueError: out of ideas (my_package/defense.py:42 in protect)``."""
    return error_text(error) + raised_at(error)


def explain(error: BaseException) -> str:
    """As :func:`describe_error`, for an error outside a run, which has no log: with ``DEBUG`` set,
    the traceback goes to standard error.
    """
    if debugging():
        print(full_traceback(error), file=sys.stderr, end="")
    return describe_error(error)
