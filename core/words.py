"""Text for people: printable lines, the nearest valid name, and one line about an exception."""

from __future__ import annotations

import json
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import PurePath
from types import FrameType

DOCS = "https://github.com/fedbench/fedbench/blob/main/docs"
"""pages of the documentation, which an installed package does not have"""
_MOST = 600  # characters


def printable(text: str) -> str:
    """Return ``text`` for a terminal: white space as blanks, control characters as ``\\u202e``."""
    if text.isprintable():
        return text
    return "".join(" " if c.isspace() else _code(c) for c in text)


def printable_lines(text: str) -> str:
    """Return several lines; unusual white space is shown as codes, too, so that JSON keeps its
    meaning.
    """
    return "".join(c if c == "\n" else _code(c) for c in text)


def _code(character: str) -> str:
    """Return the character or, if it is not printable, its JSON escape: ``\\u001b``."""
    if character.isprintable():
        return character
    return json.dumps(character)[1:-1]


def one_line(text: str, limit: int = _MOST) -> str:
    """Return ``text`` in printable characters on one line, cut at ``limit``."""
    plain = " ".join(printable(text[: 4 * limit]).split())
    if len(plain) > limit:
        return plain[: limit - 1] + "…"
    return plain


def bounded(
    messages: Iterable[str], rest: str = "and {} more", most: int = 50, limit: int = 3_000
) -> list[str]:
    """Return each message once and on one line; ``rest`` counts those after the first ones."""
    lines = list(dict.fromkeys(one_line(message, limit) for message in messages))
    if len(lines) > most:
        lines[most:] = [rest.replace("{}", f"{len(lines) - most:,}")]
    return lines


# --- the nearest valid name -----------------------------------------------------------------------

_LONGEST = 200  # letters: comparing costs the square of the length


def nearest(word: str, good: Iterable[str], least: float = 0.6) -> str | None:
    """Return the good name closest to ``word``, or None; case, ``_`` and ``-`` do not count.

    Args:
        least: the share of their letters that they must have in common, in order.
    """
    if len(word) > _LONGEST:
        return None
    names = {_plain(name): name for name in good}
    match = get_close_matches(_plain(word), names, n=1, cutoff=least)
    return names[match[0]] if match else None


def did_you_mean(word: str, good: Iterable[str]) -> str:
    """Return `` - did you mean 'stride'?``, or nothing where no good name is near."""
    name = nearest(word, good)
    return f" - did you mean '{name}'?" if name else ""


def by_nearness(word: str, good: Iterable[str]) -> list[str]:
    """Return all good names, the near ones first, the others in alphabetical order."""
    names = {_plain(name): name for name in sorted(good)}
    near = get_close_matches(_plain(word[:_LONGEST]), names, n=3, cutoff=0.5)
    return [names[plain] for plain in dict.fromkeys([*near, *names])]


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


# --- where a plugin raised an error ---------------------------------------------------------------


DEBUG = "FEDBENCH_DEBUG"
"""environment variable: whole tracebacks, in logs and on standard error, and close watching"""

_BUILT_IN = (
    "fedbench.plugins.",
    "fedbench.leaderboard.",
    "fedbench.core.models.",
    "fedbench.core.signals.builtin.",
)
# what the engine calls that may call a plugin back
_CALLED = re.compile(
    "torch|torchvision|numpy|scipy|sklearn|pluggy|pydantic|pydantic_core|click|rich"
)
_PYTHON = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
_SITES = ("site-packages", "dist-packages")
_MOST_LINES = 120
_LONGEST_LINE = 500
_LONGEST_PLACE = 200


def debugging() -> bool:
    """Return whether the user wants whole tracebacks, and plugins watched closely."""
    return os.environ.get(DEBUG) == "1"


def raised_at(error: BaseException) -> str:
    """Return `` (my_package/defense.py:42 in protect)``, the innermost frame of the plugin.

    Empty where none raised.
    """
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return one_line(f" ({PurePath(error.filename).name}:{error.lineno})", _LONGEST_PLACE)
    plugin = place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        package = _package(frame)
        plugin = plugin or package
        if package and package == plugin:
            name = frame.f_code.co_name
            inside = f" in {name}".removesuffix(" in <module>")
            place = f" ({_file(frame)}:{line or frame.f_lineno}{inside})"
    if not place:
        return ""
    return " " + one_line(place, _LONGEST_PLACE)


def full_traceback(error: BaseException) -> str:
    """Return the traceback, of many lines the first and the last, in printable characters."""
    try:
        lines = "".join(traceback.format_exception(error)).splitlines()
    except Exception:  # a plugin's exception with a failing __str__
        lines = [f"a {type(error).__name__} that cannot be shown"]
    if len(lines) > _MOST_LINES:
        half = _MOST_LINES // 2
        lines = [*lines[:half], f"  [{len(lines) - 2 * half:,} lines left out]", *lines[-half:]]
    return "".join(f"{printable_lines(line)[:_LONGEST_LINE]}\n" for line in lines)


def _package(frame: FrameType) -> str:
    """Return the plugin package of a frame; empty for the engine, Python and libraries."""
    module = str(frame.f_globals.get("__name__", ""))
    file = frame.f_code.co_filename
    top = module.partition(".")[0]
    if top == "fedbench":
        return next((name for name in _BUILT_IN if f"{module}.".startswith(name)), "")
    is_python = file.startswith(_PYTHON) and not any(site in file for site in _SITES)
    if is_python or _CALLED.fullmatch(top) or file.startswith("<frozen"):
        return ""
    return top or file


def _file(frame: FrameType) -> str:
    """Return the module's path from its package on."""
    name = PurePath(frame.f_code.co_filename).name
    parts = str(frame.f_globals.get("__name__", "")).split(".")
    if name == f"{parts[-1]}.py":
        parts.pop()
    elif name != "__init__.py":
        return name
    return "/".join([*parts, name])


# --- errors on one line ---------------------------------------------------------------------------


def message_of(error: BaseException) -> str:
    """Return the exception's message; empty if it has none or ``str`` fails."""
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:  # __str__ itself may raise, or call sys.exit
        return ""


def error_text(error: BaseException) -> str:
    """Return ``ValueError: out of ideas``."""
    if isinstance(error, SystemExit):
        return f"it called sys.exit({error.code!r:.60})"
    message = error.msg if isinstance(error, SyntaxError) else message_of(error)
    return one_line(f"{type(error).__name__}: {message}").removesuffix(":")


def describe_error(error: BaseException) -> str:
    """Return ``ValueError: out of ideas (my_package/defense.py:42 in protect)``."""
    return error_text(error) + raised_at(error)


def explain(error: BaseException) -> str:
    """Describe an error outside a run, which has no log.

    With ``DEBUG`` set, the traceback goes to standard error.
    """
    if debugging():
        print(full_traceback(error), file=sys.stderr, end="")
    text = describe_error(error)
    if isinstance(error, ImportError) and str(error.name).startswith("fedbench."):
        text += f"; this fedbench has no such name: see 'Plugins written for' in {DOCS}/plugins.md"
    return text
