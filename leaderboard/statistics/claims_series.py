"""Numbers of a row that have one value a seed: what attacks decide, analyses find and defenses say of their runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedbench.core import Courses
from fedbench.leaderboard.claims.schema import Quantity
from fedbench.leaderboard.statistics.intervals import Measured, accuracy_error
from fedbench.leaderboard.statistics.rows import Row
from fedbench.leaderboard.statistics.sections import Section


class Missing(Exception):
    """A claim cannot be tested here: ``why``, in our words, and ``what``, a name of the claim's file."""

    def __init__(self, why: str, what: str = "") -> None:
        super().__init__(why, what)
        self.why, self.what = why, what


def series(section: Section, row: Row, q: Quantity) -> dict[int, Measured]:
    """Seed -> value with its error within the run (NaN where it is not known); :class:`Missing` unless every seed has one."""
    found = _SERIES[q.measure](section, row, q)
    if q.minus is not None:
        found = _less(found, _SERIES[q.measure](section, row, q.model_copy(update={"name": q.minus})))
    if set(found) != set(section.seeds):
        raise Missing("not on every seed:", q.name or q.group or q.attack or q.row)
    return found


def _less(one: Mapping[int, Measured], other: Mapping[int, Measured]) -> dict[int, Measured]:
    """Of one run both: how their errors go together is not known, so neither is that of the difference."""
    return {seed: Measured(one[seed].value - other[seed].value, float("nan")) for seed in one if seed in other}


def _decided(section: Section, row: Row, q: Quantity) -> dict[int, Measured]:
    """Attack accuracy in the last round, the mean over the targets of a seed, or over those of one group of clients."""
    entry = row.entries[q.attack or ""]
    if q.group is not None:
        names = [g.name for g in section.groups]
        if q.group not in names:
            raise Missing("no group", q.group)
        entry = entry.of_group(section.groups, names.index(q.group))
    by_seed: dict[int, list[tuple[float, float]]] = {}
    for (seed, _), (d, s) in entry.decisions.items():
        error = accuracy_error(d.last_accuracy, d.last_recall, s.n_members, s.n_nonmembers)
        by_seed.setdefault(seed, []).append((d.last_accuracy, error))
    return {seed: _mean(values) for seed, values in by_seed.items()}


def _mean(values: Sequence[tuple[float, float]]) -> Measured:
    """Of targets with candidates of their own."""
    numbers, errors = np.array(values).T
    return Measured(float(numbers.mean()), float(np.sqrt((errors**2).sum()) / len(values)))


def _findings(section: Section, row: Row, q: Quantity) -> dict[int, Measured]:
    label, found = q.analysis or "", {}
    for seed in section.seeds:
        said = row.findings(label, seed) if q.attack is None else row.entries[q.attack].findings(label, seed)
        number = said.numbers.get(q.name or "") if said else None
        if number is not None and number.value is not None:
            found[seed] = Measured(number.value, float("nan") if number.error is None else number.error)
    return found


def _facts(section: Section, row: Row, q: Quantity) -> dict[int, Measured]:
    found = {}
    for seed in section.seeds:
        for loaded in row.utility_run(seed)[:1]:
            value = loaded.record.facts.get(q.name or "")
            if isinstance(value, int | float) and not isinstance(value, bool):
                found[seed] = Measured(float(value), float("nan"))
    return found


def _last_losses(section: Section, row: Row, q: Quantity) -> dict[int, Measured]:
    """Mean loss in the last audited round that has one, of the clients that defend in any row, in the undefended row, too."""
    part, side = (q.name or "").split()
    every = [c.sides[side] for c in Courses.of(section, q.analysis or "", (row.label,)) if c.part == part]
    if not every or len(every[0]) != len(section.seeds):
        return {}
    known = {seed: course[~np.isnan(course)] for seed, course in zip(section.seeds, every[0], strict=True)}
    return {seed: Measured(float(course[-1]), float("nan")) for seed, course in known.items() if len(course)}


_SERIES: dict[str, Callable[[Section, Row, Quantity], dict[int, Measured]]] = {
    "attack-accuracy": _decided, "finding": _findings, "fact": _facts, "last-loss": _last_losses,
}  # fmt: skip
BY_SEED = tuple(_SERIES)  # measures with one value a seed
