"""Who writes the package."""

from __future__ import annotations

import subprocess

from fedbench.core.contract.errors import UserError
from fedbench.core.words.explain import one_line, printable

UNNAMED = "its authors"
_LONGEST = 200


def author_of(given: str | None) -> str:
    """``given``, or git's user.name, or a general one. Raises ``UserError`` for a name that no file should hold."""
    if given is None:
        found = _of_git()
        return found if _usable(found) else UNNAMED
    if not _usable(given):
        expected = f"expected a name on one line, of at most {_LONGEST} printable characters"
        raise UserError(f"--author '{one_line(given, 60)}': {expected}")
    return given.strip()


def _usable(name: str) -> bool:
    return 0 < len(name.strip()) <= _LONGEST and printable(name) == name


def _of_git() -> str:
    """git's user.name; empty without git, or where it knows none."""
    try:
        done = subprocess.run(["git", "config", "user.name"], capture_output=True, text=True, errors="replace", check=False)
    except OSError:
        return ""
    return done.stdout.strip()
