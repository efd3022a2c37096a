"""The first table of every section as plain text for a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedbench.core.contract.board import Column, Content, Part, Text, Value
from fedbench.core.contract.components import Summary
from fedbench.leaderboard.statistics.rows import Row, privacy_claims
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.tables.ranking import claimed, front_table

_READING = (
    "with 95 % intervals; delta-accuracy in points and runtime as a factor, against the undefended run; all else on the board"
)
_HEADERS = ("#", "defense", "worst AUC", "by", "mean AUC", "TF01 %", "delta-acc", "runtime")


def summary(sections: Sequence[Section]) -> Summary:
    """One row a defense under each setting, coalition and view, in the board's order.

    Cells without a score are counted in a column that is there where some row has any; claims of differential privacy
    are notes.
    """
    tables = [(section, front_table(section, section.rows)) for section in sections]
    every = [(s, row, table.columns, cells) for s, table in tables for row, cells in zip(s.rows, table.rows, strict=True)]
    lacking = any(_lacking(row) for _, row, _, _ in every)
    rows = []
    for _, row, columns, cells in every:
        shown = [short_text(cell, column) for cell, column in zip(cells, columns, strict=True)]
        shown[2:3] = (*shown[2].partition(" ")[::2],)  # the attack has a column of its own
        rows.append([*shown, *([_lacking(row)] if lacking else [])])
    claims = [f"{r.label} claims {plain_text(claimed(r))} ({s.where})" for s, r, _, _ in every if privacy_claims(r)]
    return Summary(
        [*_HEADERS, *(["no score"] if lacking else [])], rows, headings=[s.where for s, _, _, _ in every],
        notes=[_READING] * bool(every) + list(dict.fromkeys(claims)),
    )  # fmt: skip


def _lacking(row: Row) -> str:
    return ", ".join(f"{n} {what}" for what, n in sorted(row.outcomes.items()) if n and what != "ok")


def plain_text(text: Text) -> str:
    """Without styles."""
    parts: tuple[Part, ...] = text if isinstance(text, tuple) else (text,)
    return "".join(part if isinstance(part, str) else part.text for part in parts)


def short_text(cell: Content, column: Column) -> str:
    """``.619±.033 fedmia-ii``, ``+1.2 [0.3, 2.1]``: one place of a table without blanks in a number."""
    if not isinstance(cell, Value):
        return "n/a" if cell is None else plain_text(cell)
    if cell.mean is None:
        return "n/a"

    def number(value: float, sign: str = "") -> str:
        shown = f"{round(value * column.scale, column.digits) + 0.0:{sign}.{column.digits}f}"
        return re.sub(r"(?<!\d)0\.", ".", shown) if column.digits > 2 else shown

    mean = number(cell.mean, "+" if column.signed else "")
    if cell.ends is not None:
        mean += f" [{number(cell.ends[0])}, {number(cell.ends[1])}]"
    elif cell.half_width is not None and cell.half_width == cell.half_width:
        mean += f"±{number(cell.half_width)}"
    return mean + plain_text(cell.suffix)
