"""The numbers of an analysis over seeds, for a table that knows nothing of the analysis."""

from __future__ import annotations

from dataclasses import dataclass

from fedbench.core.contract.analysis import Number
from fedbench.core.metrics import Interval
from fedbench.leaderboard.statistics.intervals import interval_of
from fedbench.leaderboard.statistics.rows import Entry, Row
from fedbench.leaderboard.statistics.sections import Section


@dataclass(frozen=True)
class Line:
    """What was found for a row: by every ``attack`` the same (None), or by one of them. Name -> interval over seeds."""

    row: Row
    attack: str | None
    numbers: dict[str, Interval | None]


def lines(section: Section, label: str) -> list[Line]:
    """One a row or, where the findings differ by attack, one a row and attack; none where nothing was found."""
    return [line for row in section.rows for line in _of_row(row, label)]


def units(section: Section, label: str) -> dict[str, str]:
    """Name of each number -> its unit, in the order in which they were found."""
    found: dict[str, str] = {}
    for row in section.rows:
        for entry in row.entries.values():
            for numbers in _per_seed(entry, label):
                found |= {name: n.unit for name, n in numbers.items() if name not in found}
    return found


def labels(section: Section) -> list[str]:
    """Of every analysis that found something in some cell, by name."""
    return sorted({label for loaded in section.records for label in loaded.record.analyses})


def _of_row(row: Row, label: str) -> list[Line]:
    found = {a: _per_seed(e, label) for a, e in row.entries.items()}
    known = {a: numbers for a, numbers in found.items() if any(numbers)}
    if not known:
        return []
    first = next(iter(known.values()))
    if all(numbers == first for numbers in known.values()):
        return [Line(row, None, _over_seeds(first))]
    return [Line(row, a, _over_seeds(numbers)) for a, numbers in known.items()]


def _per_seed(entry: Entry, label: str) -> list[dict[str, Number]]:
    return [dict(f.numbers) for seed in entry.targets if (f := entry.findings(label, seed)) is not None]


def _over_seeds(found: list[dict[str, Number]]) -> dict[str, Interval | None]:
    names = dict.fromkeys(name for numbers in found for name in numbers)
    return {name: _interval([n[name] for n in found if name in n]) for name in names}


def _interval(numbers: list[Number]) -> Interval | None:
    known = [(n.value, n.error) for n in numbers if n.value is not None]
    return interval_of([v for v, _ in known], [e for _, e in known])
