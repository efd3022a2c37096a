"""Means over seeds and targets with the errors they have: from the candidates, and from one training to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from fedbench.core.metrics import Interval, t_interval
from fedbench.core.metrics.intervals import LEVEL

Unit = tuple[int, int]
"""(seed, target): what one value of an entry was measured on"""

ENOUGH = 5  # units of one seed; fewer say too little about their own spread, and share a model at that
POWER = 0.8  # of the smallest difference that a comparison is said to show


@dataclass(frozen=True)
class Measured:
    """A value of one unit and its standard error from the candidates, NaN where it is not known."""

    value: float
    error: float


def by_unit(found: Sequence[tuple[Unit, Measured]]) -> dict[Unit, Measured]:
    """The parts of a unit together: their mean, with the error of independent parts."""
    groups: dict[Unit, list[Measured]] = {}
    for unit, measured in found:
        groups.setdefault(unit, []).append(measured)
    return {
        unit: Measured(float(np.mean([m.value for m in ms])), float(np.sqrt(np.sum([m.error**2 for m in ms])) / len(ms)))
        for unit, ms in groups.items()
    }


def over_units(found: Mapping[Unit, Measured]) -> Interval | None:
    """Mean over seeds x targets with the widest of three 95 % intervals; None of nothing.

    From the candidates: members and non-members of every unit are drawn anew. From the units: Student's t over all of
    them, if there are five. From the seeds: Student's t over the means of the seeds, since targets of one seed share a
    global model. NaN where none of them can be had.
    """
    if not found:
        return None
    values = [m.value for m in found.values()]
    widths = [_within(found), *([t_interval(values).half_width] if len(values) >= ENOUGH else [])]
    seeds = seed_means(found)
    widths += [t_interval(seeds).half_width] if len(seeds) > 1 else []
    known = [w for w in widths if w == w]
    return Interval(float(np.mean(values)), max(known, default=float("nan")), len(values), between=len(widths) > 1)


def seed_means(found: Mapping[Unit, Measured]) -> list[float]:
    """One value a seed."""
    seeds = sorted({seed for seed, _ in found})
    return [float(np.mean([m.value for (s, _), m in found.items() if s == seed])) for seed in seeds]


def _within(found: Mapping[Unit, Measured]) -> float:
    return float(stats.norm.ppf((1 + LEVEL) / 2) * _error(found))


def _error(found: Mapping[Unit, Measured]) -> float:
    return float(np.sqrt(np.sum([m.error**2 for m in found.values()])) / len(found))


def p_value(found: Mapping[Unit, Measured], *, one_training: bool = False) -> float:
    """Two-sided, of a mean of 0: the larger of that of Student's t over seeds and of that of the candidates' errors.

    1 with fewer than two seeds, since one training says nothing of the next; with ``one_training`` that of the errors.
    """
    seeds = seed_means(found)
    mean = float(np.mean(seeds))
    if mean == 0 or (len(seeds) < 2 and not one_training):
        return 1.0
    spread = float(np.std(seeds, ddof=1) / np.sqrt(len(seeds))) if len(seeds) > 1 else 0.0
    between = 0.0 if spread == 0 else 2 * float(stats.t.sf(abs(mean) / spread, len(seeds) - 1))
    error = _error(found)
    within = 0.0 if error == 0 or error != error else 2 * float(stats.norm.sf(abs(mean) / error))
    return max(between, within)


def smallest_shown(deviation: float, seeds: int) -> float | None:
    """The difference that ``seeds`` paired seeds show with a chance of 80 % at the 5 % level, where differences vary by so
    much from seed to seed; None with fewer than two."""
    if seeds < 2:
        return None
    t = stats.t(seeds - 1)
    return float((t.ppf((1 + LEVEL) / 2) + t.ppf(POWER)) * deviation / np.sqrt(seeds))
