"""What the defenses say of their runs, over seeds."""

from __future__ import annotations

from dataclasses import dataclass

from fedbench.core.contract.defense import FactValue
from fedbench.leaderboard.statistics.row import Row
from fedbench.leaderboard.statistics.section import Section


@dataclass(frozen=True)
class Fact:
    """One fact of a row: its ``values``, one a seed that has it, of the run that stands for the row's accuracy."""

    label: str
    undefended: bool
    name: str
    values: tuple[FactValue, ...]


def facts(section: Section) -> list[Fact]:
    """By row, then in the order in which the defense names them."""
    return [
        Fact(row.label, row.undefended, name, tuple(values)) for row in section.rows for name, values in _of_row(row).items()
    ]


def _of_row(row: Row) -> dict[str, list[FactValue]]:
    found: dict[str, list[FactValue]] = {}
    for seed in row.seeds:
        for loaded in row.utility_run(seed)[:1]:
            for name, value in loaded.record.facts.items():
                found.setdefault(name, []).append(value)
    return found
