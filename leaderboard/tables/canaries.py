"""Clean and mislabelled samples as equals: what an adversary gets who is asked about the one kind, or the other."""

from __future__ import annotations

from fedbench.core.contract.board import Column, Content, Table, Value, Words, value
from fedbench.leaderboard.statistics.rows import Row
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.statistics.verdict import Comparison
from fedbench.leaderboard.tables.common import DEFENSE, rank_in, ranked

_CAPTION = (
    " (worst case and mean as in the ranking, where members and outside non-members alike are clean, or alike are canaries; "
    "attacks count that beat chance on that kind, undefended; a range of ranks for each)"
)


def canary_table(section: Section) -> list[Table]:
    """A row a defense; nothing where a setting has samples of one kind only."""
    clean, canary = section.comparison.by_kind
    if not section.scores("canary") or not (clean.parts and canary.parts):
        return []
    columns = (DEFENSE, *_columns("clean"), *_columns("canaries"))
    rows = tuple((front[1], *_cells(clean, row), *_cells(canary, row)) for row, front in ranked(section))
    empty = Words("no attack beats chance on either kind, undefended")
    return [Table(title="Clean samples and canaries", caption=Words(_CAPTION), columns=columns, rows=rows, empty=empty)]


def _columns(kind: str) -> tuple[Column, ...]:
    return (
        Column(name=Words(f"{kind}: #"), align="left"), Column(name=Words(f"{kind}: worst case AUC"), direction="lower"),
        Column(name=Words(f"{kind}: mean AUC"), direction="lower"),
    )  # fmt: skip


def _cells(comparison: Comparison, row: Row) -> tuple[Content, ...]:
    worst = comparison.worst(row.label)
    first = comparison.ranks.get(row.label) == (1, 1) and len(comparison.ranked) > 1
    found = None if worst is None else Value(
        mean=worst.found.mean, half_width=worst.found.half_width, best=first, suffix=(Words(" "), worst.attack)
    )  # fmt: skip
    return rank_in(comparison, row), found, value(comparison.mean(row.label))
