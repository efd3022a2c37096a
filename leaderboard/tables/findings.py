"""The generic table of an analysis: one row a defense, one column a number."""

from __future__ import annotations

from fedbench.core.contract.board import Column, Content, Table, Words, value
from fedbench.core.metrics import Interval
from fedbench.leaderboard.statistics.findings import Line, lines, units
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.tables.common import ATTACK, DEFENSE, name_of


def findings_table(section: Section, label: str) -> list[Table]:
    """Means over seeds of what the analysis found, with 95 % intervals where it gave errors; nothing where it found nothing."""
    found = lines(section, label)
    if not found:
        return []
    by_attack = any(line.attack is not None for line in found)
    columns = [
        Column(name=name, unit=unit, digits=_digits([line.numbers.get(name) for line in found]))
        for name, unit in units(section, label).items()
    ]
    front = (DEFENSE, ATTACK) if by_attack else (DEFENSE,)
    names = list(units(section, label))
    rows = tuple((*_front(line, by_attack), *(value(line.numbers.get(n)) for n in names)) for line in found)
    title = "Findings of the analysis"
    return [Table(title=title, caption=(Words(" "), label, Words(", means over seeds")), columns=(*front, *columns), rows=rows)]


def _front(line: Line, by_attack: bool) -> tuple[Content, ...]:
    return (name_of(line.row), line.attack or "") if by_attack else (name_of(line.row),)


def _digits(found: list[Interval | None]) -> int:
    """Three behind the point of fractions, fewer of large numbers."""
    largest = max((abs(i.mean) for i in found if i is not None), default=0)
    return 3 if largest < 10 else 1 if largest < 1000 else 0
