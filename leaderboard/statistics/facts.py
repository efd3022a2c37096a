"""What the defenses say of their runs, over seeds."""

from __future__ import annotations

from dataclasses import dataclass

from fedbench.core.contract.defense import REMARKS, FactValue
from fedbench.core.store.remarks import remarks_in
from fedbench.leaderboard.statistics.rows import Row
from fedbench.leaderboard.statistics.sections import Section


@dataclass(frozen=True)
class Fact:
    """One fact of a row: its ``values``, one a seed that has it, of the run that stands for the row's accuracy."""

    label: str
    undefended: bool
    name: str
    values: tuple[FactValue, ...]


def facts(section: Section) -> list[Fact]:
    """By row, then in the order in which the defense names them; remarks are no figures, and have a place of their own."""
    return [
        Fact(row.label, row.undefended, name, tuple(values))
        for row in section.rows for name, values in row.facts.items() if name != REMARKS
    ]  # fmt: skip


def remarks(row: Row) -> list[str]:
    """What a reader of the row must know, each sentence once over its seeds: what its defense said of the federation and of the
    finished runs that stand for the row's accuracy or, of a seed without one, of any run. Somebody else's text."""
    found: dict[str, None] = {}
    for seed in row.seeds:
        cells = [entry.records[seed] for entry in row.entries.values() if seed in entry.records]
        for loaded in (row.utility_run(seed) or cells)[:1]:
            found |= dict.fromkeys(remarks_in(loaded.record))
    return list(found)


@dataclass(frozen=True)
class Claim:
    """What a row claims of differential privacy: least and greatest ``epsilon`` and ``delta`` over seeds and members, and
    whose data one ``unit`` of it is."""

    epsilon: tuple[float, float]
    delta: tuple[float, float]
    units: tuple[str, ...]


_CLAIM = ("epsilon", "delta", "unit of privacy")


def claims(row: Row) -> list[Claim]:
    """Of a row whose every seed has the three facts ``epsilon``, ``delta`` (numbers, or lists of them) and ``unit of privacy``;
    of several defenses in one, which lead the names of their facts, one claim each."""
    found = row.facts
    runs = sum(bool(row.utility_run(seed)) for seed in row.seeds)
    made = []
    for name in found:
        lead = name.removesuffix(_CLAIM[0])
        # what all groups of a coalition say alike stands without a lead
        said = [found.get(lead + part) or found.get(part, []) for part in _CLAIM]
        if name == lead + _CLAIM[0] and (not lead or lead.endswith(": ")) and all(len(values) == runs for values in said):
            epsilons, deltas = (_numbers(values) for values in said[:2])
            units = dict.fromkeys(str(unit) for value in said[2] for unit in (value if isinstance(value, list) else [value]))
            if epsilons and deltas:
                made.append(Claim((min(epsilons), max(epsilons)), (min(deltas), max(deltas)), tuple(units)))
    return made


def _numbers(values: list[FactValue]) -> list[float]:
    """All numbers of the values; nothing where anything else is among them."""
    flat = [x for value in values for x in (value if isinstance(value, list) else [value])]
    return [float(x) for x in flat if type(x) in (int, float)] if all(type(x) in (int, float) for x in flat) else []
