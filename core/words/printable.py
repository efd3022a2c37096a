"""Text of plugins, suites and records in bounded, printable lines."""

from __future__ import annotations

from collections.abc import Iterable

_MOST = 600  # characters


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
