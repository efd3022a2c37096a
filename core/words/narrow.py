"""Texts in a bounded number of a terminal's columns; what does not fit loses its middle, since names differ at both ends."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence


def columns(text: str) -> int:
    """How many columns a terminal gives to a printable text: two for a wide letter, none for a mark on another."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def cut(text: str, room: int) -> str:
    """``text`` in at most ``room`` columns, with an ellipsis in the middle where it is longer."""
    if columns(text) <= room:
        return text
    if room < 1:
        return ""
    head = _beginning(text, room // 2)
    tail = _beginning(text[::-1], room - 1 - columns(head))[::-1]
    return f"{head}…{tail}"


def wrapped(text: str, room: int, indent: str = "  ") -> list[str]:
    """``text`` in lines of at most ``room`` columns, broken between words and, where one is longer, in it; all but the first
    begin with ``indent``."""
    lines, line = list[str](), ""
    for word in text.split(" "):
        if line.strip() and columns(line) + 1 + columns(word) <= room:
            line = f"{line} {word}"
            continue
        if line.strip():
            lines.append(line)
        line = f"{indent if lines else ''}{word}"
        while columns(line) > room:
            lines.append(_beginning(line, room))
            line = indent + line[len(lines[-1]) :]
    return [*lines, line]


def padded(text: str, room: int) -> str:
    """``text`` with blanks up to ``room`` columns."""
    return text + " " * (room - columns(text))


def fitted(wanted: Sequence[int], room: int, least: Sequence[int]) -> list[int]:
    """Columns for texts that want so many each, ``room`` together: the longest give way first, none below its ``least``."""
    found, least = list(wanted), [min(w, few) for w, few in zip(wanted, least, strict=True)]
    while (over := sum(found) - room) > 0:
        movable = [i for i, width in enumerate(found) if width > least[i]]
        if not movable:
            break
        longest = max(found[i] for i in movable)
        first = [i for i in movable if found[i] == longest]
        below = max([least[i] for i in first] + [found[i] for i in movable if found[i] < longest])
        for n, i in enumerate(first):
            share = over // len(first) + (n < over % len(first))
            found[i] -= min(share, longest - below)
    return found


def _beginning(text: str, room: int) -> str:
    """As much of it as fits."""
    for n, letter in enumerate(text):
        room -= _columns(letter)
        if room < 0:
            return text[:n]
    return text


def _columns(letter: str) -> int:
    if unicodedata.east_asian_width(letter) in "WF":
        return 2
    return 0 if unicodedata.category(letter) in ("Mn", "Me") else 1
