"""A board's texts as plain ones: the pages escape them."""

from __future__ import annotations

from collections.abc import Iterable

from fedbench.core.contract.board import Block, Bullets, Note, Text
from fedbench.leaderboard.site.encode import LONGEST, text

PARAGRAPH = 1_000


def plain(given: Text) -> str:
    """Others' text and the program's own on one line, bounded, with the blanks between its parts."""
    parts = given if isinstance(given, tuple) else (given,)
    return "".join(map(_part, parts))


def _part(part: object) -> str:
    raw = part if isinstance(part, str) else getattr(part, "text", "")
    limit = LONGEST if isinstance(part, str) else getattr(part, "limit", PARAGRAPH)
    lead, end = (" " if raw[:1].isspace() else ""), (" " if len(raw) > 1 and raw[-1:].isspace() else "")
    return f"{lead}{text(raw, limit)}{end}"


def lines(blocks: Iterable[Block]) -> list[str]:
    """Every paragraph and every item of a list."""
    found: list[str] = []
    for block in blocks:
        if isinstance(block, Note):
            found.append(plain(block.text))
        elif isinstance(block, Bullets):
            found += map(plain, block.items)
    return found
