"""What each defense costs: accuracy and time against the undefended federation, and what its members still contribute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedbench.core import UserError
from fedbench.core.metrics import Interval, delta_accuracy, t_interval
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.store.reading import LoadedRecord
from fedbench.leaderboard.statistics.row import Row
from fedbench.leaderboard.statistics.spread import smallest_shown

if TYPE_CHECKING:
    from fedbench.leaderboard.statistics.section import Section

BUSY = 1.25  # wall time of a training over its CPU time, from which on its machine had something else to do

Pair = tuple[LoadedRecord, LoadedRecord]


@dataclass(frozen=True)
class Comparison:
    """What one row costs; None: it cannot be said from the records there are. Accuracies are fractions."""

    delta_accuracy: Interval | None
    """minus the undefended row, seed by seed"""
    contribution: Interval | None
    """accuracy minus that with members that upload nothing, seed by seed"""
    runtime: Interval | None
    """training CPU time over the undefended run's; None across different machines, and where they were busy"""
    deviation: float | None
    """of the differences in accuracy from seed to seed"""


def compare(section: Section) -> dict[str, Comparison]:
    """Row label -> comparison. UserError when two runs that should share their test samples do not."""
    return {row.label: _of_row(row, section) for row in section.rows}


def smallest_difference(section: Section) -> float | None:
    """The delta-accuracy, as a fraction, that the section's seeds show with a chance of 80 %; None with a single seed.

    From the typical variance of its rows' differences from seed to seed (root mean square).
    """
    found = [d for c in section.compared.values() if (d := c.deviation) is not None]
    return smallest_shown(float(np.sqrt(np.mean(np.square(found)))), len(section.seeds)) if found else None


def accuracy_difference(one: Row, other: Row, section: Section) -> Interval | None:
    """Test accuracy of one row minus another's, seed by seed."""
    return _difference(_pairs(one, other, section), f"accuracy/{_place(section)}/{one.label}/{other.label}")


def _of_row(row: Row, section: Section) -> Comparison:
    against = [] if row is section.base else _pairs(row, section.base, section)
    deltas = [float(a.test_correct().mean() - b.test_correct().mean()) for a, b in against]
    deviation = float(np.std(deltas, ddof=1)) if len(deltas) > 1 else None
    floor = section.free_rider
    contributed = [] if row is floor else _pairs(row, floor, section)
    return Comparison(
        _difference(against, f"delta-accuracy/{_place(section)}/{row.label}"),
        _difference(contributed, f"contribution/{_place(section)}/{row.label}"), _runtime(against), deviation,
    )  # fmt: skip


def _place(section: Section) -> str:
    return f"{section.suite}/{section.setting}/{section.coalition}"


def _difference(pairs: Sequence[Pair], purpose: str) -> Interval | None:
    if not pairs:
        return None
    arrays = [(a.test_correct(), b.test_correct()) for a, b in pairs]
    for (a, b), (x, y) in zip(pairs, arrays, strict=True):
        if len(x) != len(y) or len(x) == 0:
            raise UserError(f"{a.path} and {b.path}: test sets of {len(x)} and {len(y)} samples; run the suite again")
    return delta_accuracy([a for a, _ in arrays], [b for _, b in arrays], numpy_rng(0, purpose))


def _pairs(row: Row, other: Row | None, section: Section) -> list[Pair]:
    return [pair for seed in section.seeds if other and (pair := _pair(row, other, seed))]


def _pair(row: Row, other: Row, seed: int) -> Pair | None:
    """One record each of the row's run and of the other row's with the same adversary inside, or none inside either."""
    for loaded in row.utility_run(seed):
        entry = other.entries.get(loaded.record.attack.label)
        if entry and (theirs := entry.ok(seed)):
            return loaded, theirs
    return None


def _runtime(pairs: Sequence[Pair]) -> Interval | None:
    """Mean ratio of CPU times over the seeds on one calm machine, with Student's t; None unless these are at least half."""
    ratios = [
        a.record.measured.train_cpu_s / b.record.measured.train_cpu_s
        for a, b in pairs
        if b.record.measured.train_cpu_s > 0 and _machine(a) == _machine(b) and not (busy(a) or busy(b))
    ]
    if not ratios or 2 * len(ratios) < len(pairs):
        return None
    return t_interval(ratios) if len(ratios) > 1 else Interval(ratios[0], float("nan"), 1, between=False)


def busy(loaded: LoadedRecord) -> bool:
    """Whether the run's machine had something else to do while it trained, so that its times say little."""
    m = loaded.record.measured
    return m.train_wall_s is not None and m.train_wall_s > BUSY * m.train_cpu_s


def _machine(loaded: LoadedRecord) -> tuple[str, str, int, str]:
    p = loaded.record.provenance
    return p.cpu_type, p.device, p.threads, p.dtype
