"""What stands behind a board's first screen: folds with telling summaries, and a line in place of a table of nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from fedbench.core.contract.board import Block, Content, Fold, Heading, Note, Table, Text, Value, Words
from fedbench.leaderboard.tables.common import joined

MOST_NAMED = 8  # tables in a summary
_UNKNOWN = Words("no record has what it needs")


def fold(lead: str, blocks: Sequence[Block]) -> list[Fold]:
    """One fold whose summary names the tables in it; nothing of no blocks."""
    return [Fold(_summary(Words(lead), blocks), tuple(blocks))] if blocks else []


def folded(blocks: Sequence[Block], lead: str = "") -> list[Block]:
    """Headings stay where they are; what is below each goes into a fold under the ``lead`` or, without one, under its heading."""
    found: list[Block] = []
    for is_heading, group in groupby(blocks, key=lambda block: isinstance(block, Heading)):
        below = list(group)
        last = found[-1] if found else None
        name = Words(lead) if lead or not isinstance(last, Heading) else last.text
        found += below if is_heading else [Fold(_summary(name, below), tuple(below))]
    return found


def _summary(lead: Text, blocks: Sequence[Block]) -> Text:
    """``lead: table, table``; of tables without titles how many rows there are."""
    tables = [block for block in blocks if isinstance(block, Table)]
    names: list[Text] = list(dict.fromkeys(t.title for t in tables if t.title and lead != Words(t.title)))
    rest = len(names) - MOST_NAMED
    said = joined([*names[:MOST_NAMED], *([Words(f"{rest} more tables")] if rest > 0 else [])], "; ")
    rows = sum(len(table.rows) for table in tables)
    said = said or ((Words(f"{rows} {'row' if rows == 1 else 'rows'}"),) if rows else ())
    own = lead if isinstance(lead, tuple) else (lead,)
    return (*own, Words(": "), *said) if said else own


def in_words(blocks: Iterable[Block]) -> list[Block]:
    """A table without a number, an outcome or a word in it becomes a line that says why."""
    return [_told(block) for block in blocks]


def _told(block: Block) -> Block:
    if isinstance(block, Fold):
        return Fold(block.summary, tuple(in_words(block.blocks)))
    if not isinstance(block, Table) or not block.rows or not block.title or not _says_nothing(block):
        return block
    said = Words(": n/a throughout, since ")
    return Note(joined([Words(block.title, "strong"), said, block.empty or _UNKNOWN, Words(".")], ""))


def _says_nothing(table: Table) -> bool:
    """Whether no place holds anything but the names at the left."""
    numbers = [i for i, column in enumerate(table.columns) if column.align == "right"]
    return len(table.columns) == 1 or (bool(numbers) and all(_is_absent(row[i]) for row in table.rows for i in numbers))


def _is_absent(content: Content) -> bool:
    if isinstance(content, Value):
        return content.mean is None and not content.outcomes
    return content is None or content == "" or content == ()
