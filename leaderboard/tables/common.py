"""What the tables of a section share: names of rows, values, worst cases, spans."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from fedbench.core.contract.board import Column, Content, Part, Shortfall, Text, Value, Words
from fedbench.core.metrics import Interval
from fedbench.leaderboard.statistics.counts import Span
from fedbench.leaderboard.statistics.rows import Entry, Row
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.statistics.verdict import Comparison

Shown = TypeVar("Shown")
DEFENSE = Column(name=Words("defense"), align="left")
ATTACK = Column(name=Words("attack"), align="left")
RANK = Column(name=Words("#"), align="left")


def name_of(row: Row) -> Text:
    """The row's label, marked when it is the undefended one."""
    return (row.label, Words(" (undefended)")) if row.undefended else row.label


def ranked(section: Section) -> list[tuple[Row, tuple[Content, Content]]]:
    """Each row with its range of ranks, if it has one, and its name."""
    return [(row, (rank_of(section, row), name_of(row))) for row in section.rows]


def rank_of(section: Section, row: Row) -> Words:
    """``2``, or ``2-4`` where it is told apart from no more."""
    return rank_in(section.comparison, row)


def rank_in(comparison: Comparison, row: Row) -> Words:
    """The same in a comparison of its own."""
    if row.floor:
        return Words("floor")
    found = comparison.ranks.get(row.label)
    if found is None:
        return Words("–")  # noqa: RUF001
    low, high = found
    return Words(str(low) if low == high else f"{low}-{high}")


def entry_value(section: Section, entry: Entry, found: Interval | None, best: bool, suffix: Text = ()) -> Value:
    """An entry's number with n where it is not the section's, and every outcome that is not ``ok``."""
    outcomes = shortfalls(section, entry)
    if found is None:
        return Value(mean=None, outcomes=outcomes)
    n = None if found.n == len(section.units) else found.n
    return Value(
        mean=found.mean, half_width=found.half_width, ends=found.ends, n=n, best=best, suffix=suffix, outcomes=outcomes
    )


def shortfalls(section: Section, entry: Entry) -> tuple[Shortfall, ...]:
    """How many of the section's seeds ended without a score in this entry."""
    of = len(section.targets)
    return tuple(Shortfall(what, n, of) for what, n in sorted(entry.outcomes.items()) if what != "ok" and n)


def with_attack(worst: tuple[str, float] | None) -> Content:
    """A worst case: the number and the attack it belongs to."""
    return Value(mean=worst[1], suffix=(Words(" "), worst[0])) if worst else None


def spanned(span: Span) -> Words:
    """``7`` or, where they differ, ``5 to 9``."""
    low, high = span
    return Words(f"{low:,}" if low == high else f"{low:,} to {high:,}")


def joined(texts: Iterable[Text], between: str = ", ") -> tuple[Part, ...]:
    """Texts in one line."""
    parts: list[Part] = []
    for text in texts:
        parts += [Words(between)] if parts else []
        parts += text if isinstance(text, tuple) else (text,)
    return tuple(parts)


def one_of_each(values: Iterable[Shown]) -> list[Shown]:
    """In their order, each object once: what records of one folder have in common is one object (``store/shared.py``)."""
    return list({id(value): value for value in values}.values())
