"""One line about an exception of somebody else's code: bounded, printable, whatever that code put into it."""

from __future__ import annotations

import traceback
from importlib import import_module
from pathlib import Path

_MOST = 600  # characters
_REGISTRY, _IMPORT = str(Path(__file__).parents[1] / "registry"), import_module.__code__.co_filename


def one_line(text: str, limit: int = _MOST) -> str:
    """``text`` without line breaks and control characters, cut at ``limit``."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * limit]).split())
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"


def printable(text: str) -> str:
    """``text`` without anything that a terminal would obey; its line breaks stay."""
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text)


def message_of(error: BaseException) -> str:
    """What the exception says of itself; empty where it says nothing or fails at that."""
    try:
        return str(error)
    except Exception:  # an exception whose __str__ raises
        return ""


def named(error: BaseException) -> str:
    """``ValueError: out of ideas``."""
    if isinstance(error, SystemExit):
        return f"it called sys.exit({error.code!r})"
    return one_line(f"{type(error).__name__}: {message_of(error)}").removesuffix(":")


def origin(error: BaseException) -> traceback.FrameSummary | None:
    """The innermost frame that ran when it was raised, the import machinery apart."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    ours = not frames or frames[-1].filename == _IMPORT or str(Path(frames[-1].filename).parent) == _REGISTRY
    return None if ours else frames[-1]


def explain(error: BaseException) -> str:
    """Type, message, and the file and line it came from."""
    if isinstance(error, SyntaxError):
        return one_line(f"{type(error).__name__}: {error.msg} ({error.filename}:{error.lineno})")
    frame = origin(error)
    return named(error) + (f" ({frame.filename}:{frame.lineno})" if frame else "")
