"""Somebody else's text and exceptions in bounded, printable lines, whatever is in them."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

_MOST = 600  # characters
_REGISTRY, _IMPORT = str(Path(__file__).parents[1] / "registry"), import_module.__code__.co_filename


# Letters, marks and signs that show nothing, or change how their neighbours look, though Unicode counts them as printable.
_UNSEEN = (
    {chr(c) for c in (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180F, 0x2800, 0x3164, 0xFFA0)}
    | {chr(c) for first, last in ((0x180B, 0x180D), (0xFE00, 0xFE0F), (0xE0100, 0xE01EF)) for c in range(first, last + 1)}
)


def printable(text: str) -> str:
    """``text`` as a terminal may have it: blanks and line breaks as blanks, and whatever else a terminal would act on or
    hide (escapes, marks of direction, letters of no width) as its code, ``\\u202e``."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if _seen(c) else " " if c.isspace() else _code(c) for c in text)


def printable_lines(text: str) -> str:
    """The same of a text of several lines, which stay; an odd blank is its code, too. So JSON stays the same JSON, where a
    code means the character."""
    return "".join(c if c == "\n" or _seen(c) else _code(c) for c in text)


def _seen(c: str) -> bool:
    return c.isprintable() and c not in _UNSEEN


def _code(c: str) -> str:
    """As JSON writes a character: beyond the first 65,536, in two halves."""
    return "".join(f"\\u{int.from_bytes(half, 'big'):04x}" for half in _halves(c.encode("utf-16-be", "surrogatepass")))


def _halves(code: bytes) -> list[bytes]:
    return [code[i : i + 2] for i in range(0, len(code), 2)]


def one_line(text: str, limit: int = _MOST) -> str:
    """``text`` in printable characters on one line, cut at ``limit``."""
    plain = " ".join(printable(text[: 4 * limit]).split())
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"


def bounded(messages: Iterable[str], what: str = "and {} more", most: int = 50, limit: int = 3_000) -> list[str]:
    """Each message on one line and none twice; of more than ``most``, ``what`` says how many others there are."""
    lines = list(dict.fromkeys(one_line(m, limit) for m in messages))
    return lines if len(lines) <= most else [*lines[:most], what.replace("{}", f"{len(lines) - most:,}")]


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
