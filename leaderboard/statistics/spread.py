"""Means over seeds and targets with the errors they have: from the candidates, and from one training to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import nctdtrinc, ndtr, ndtri, stdtr, stdtrit

from fedbench.core.metrics import Interval, t_interval
from fedbench.core.metrics.intervals import LEVEL

Unit = tuple[int, int]
"""(seed, target): what one value of an entry was measured on"""

ENOUGH = 5  # units of one seed; fewer say too little about their own spread, and share a model at that
_OF_NORMAL = float(ndtri((1 + LEVEL) / 2))
POWER = 0.8  # of the smallest difference that a comparison is said to show


_MOST_SAMPLES = 256
_samples: dict[tuple[int, ...], tuple[np.ndarray, tuple[np.ndarray, ...]]] = {}


@dataclass(slots=True)  # not frozen, which takes three times as long to make: a large board has millions
class Measured:
    """A value of one unit and its standard error from the candidates, NaN where it is not known; nobody may change it.

    ``pulls`` [n]: what each non-member contributes to the value beyond the mean, so scaled that their squares add up to
    its part of the variance; ``ids`` [n]: which samples these are. None: other targets of the seed have other ones.
    """

    value: float
    error: float
    pulls: np.ndarray | None = None
    ids: np.ndarray | None = None


def by_unit(found: Sequence[tuple[Unit, Measured]]) -> dict[Unit, Measured]:
    """The parts of a unit together: their mean, with the error of independent parts."""
    groups: dict[Unit, list[Measured]] = {}
    for unit, measured in found:
        groups.setdefault(unit, []).append(measured)
    return {unit: _halved(ms) if len(ms) > 1 else ms[0] for unit, ms in groups.items()}


def _halved(parts: Sequence[Measured]) -> Measured:
    value, error = np.mean([m.value for m in parts]), np.sqrt(np.sum([m.error**2 for m in parts])) / len(parts)
    pulls, ids = [m.pulls for m in parts if m.pulls is not None], [m.ids for m in parts if m.ids is not None]
    if len(pulls) < len(parts):
        return Measured(float(value), float(error))
    return Measured(float(value), float(error), np.concatenate(pulls) / len(parts), np.concatenate(ids))


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
    return Interval(plain_mean(values), max(known, default=float("nan")), len(values), between=len(widths) > 1)


def mean_over_units(found: Mapping[Unit, Measured]) -> float | None:
    """The mean of :func:`over_units` alone."""
    return plain_mean([m.value for m in found.values()]) if found else None


def plain_mean(values: Sequence[float] | np.ndarray) -> float:
    """What ``np.mean`` gives, without its checks: there are hundreds of thousands of them on a large board."""
    return float(np.add.reduce(np.asarray(values)) / len(values))


def reaching(interval: Interval, largest: float) -> Interval:
    """Never too narrow for the plain maximum: where none stands out, what is picked on other folds can be far too low."""
    return replace(interval, half_width=max(interval.half_width, largest - interval.mean))


def seed_means(found: Mapping[Unit, Measured]) -> list[float]:
    """One value a seed."""
    by_seed: dict[int, list[float]] = {}
    for (seed, _), m in found.items():
        by_seed.setdefault(seed, []).append(m.value)
    return [plain_mean(by_seed[seed]) for seed in sorted(by_seed)]


def _within(found: Mapping[Unit, Measured]) -> float:
    return _OF_NORMAL * candidates_error(found)


def candidates_error(found: Mapping[Unit, Measured]) -> float:
    """Standard error of the mean over units that members and non-members, drawn anew, give it; NaN where one is not known."""
    by_seed: dict[int, list[Measured]] = {}
    for (seed, _), m in found.items():
        by_seed.setdefault(seed, []).append(m)
    variance = sum(sum(m.error**2 for m in own) + _in_common(own) for own in by_seed.values())
    return float(np.sqrt(max(variance, 0.0)) / len(found)) if variance == variance else float("nan")


def _in_common(targets: Sequence[Measured]) -> float:
    """Twice the sum of the covariances between targets of one seed, whose outside non-members are the same samples."""
    known = [(m.pulls, m.ids) for m in targets if m.pulls is not None and m.ids is not None]
    if len(known) < 2:
        return 0.0
    pulls, which = np.concatenate([p for p, _ in known]), same_samples([ids for _, ids in known])
    return float(np.sum(np.bincount(which, pulls) ** 2) - np.sum(pulls**2))


def same_samples(ids: Sequence[np.ndarray]) -> np.ndarray:
    """[n] a number for each sample of the arrays behind each other, the same where it is the same sample; worked out once for the
    same arrays, which all rows and attacks of a section share. Nobody may change it."""
    which = tuple(map(id, ids))
    if which not in _samples:
        if len(_samples) >= _MOST_SAMPLES:
            _samples.clear()
        _samples[which] = np.unique(np.concatenate(ids), return_inverse=True)[1], tuple(ids)  # kept, so their numbers stay theirs
    return _samples[which][0]


def p_value(found: Mapping[Unit, Measured]) -> float:
    """Two-sided, of a mean of 0: the larger of that of Student's t over seeds and of that of the candidates' errors.

    1 with fewer than two seeds, since one training says nothing of the next.
    """
    seeds = seed_means(found)
    mean = plain_mean(seeds)
    if mean == 0 or len(seeds) < 2:
        return 1.0
    spread = float(np.std(seeds, ddof=1) / np.sqrt(len(seeds)))
    between = 0.0 if spread == 0 else 2 * float(stdtr(len(seeds) - 1, -abs(mean) / spread))
    within = p_of_candidates(found)
    return between if within is None else max(between, within)


def p_of_candidates(found: Mapping[Unit, Measured]) -> float | None:
    """Two-sided, that members and non-members are scored alike in these trainings; None where no error is known.

    Then trainings differ by the draw of the candidates alone, so there is no spread of theirs to be estimated.
    """
    mean, error = plain_mean(seed_means(found)), candidates_error(found)
    if error != error:
        return None
    return 1.0 if mean == 0 else 0.0 if error == 0 else 2 * float(ndtr(-abs(mean) / error))


def p_of_chance(found: Mapping[Unit, Measured]) -> float:
    """The same, or that of the spread between seeds where no error is known."""
    p = p_of_candidates(found)
    return p_value(found) if p is None else p


def smallest_shown(deviation: float, seeds: int) -> float | None:
    """The difference that ``seeds`` paired seeds show with a chance of 80 % at the 5 % level, where differences vary by so
    much from seed to seed; None with fewer than two."""
    if seeds < 2:
        return None
    bar = float(stdtrit(seeds - 1, (1 + LEVEL) / 2))
    return float(nctdtrinc(seeds - 1, 1 - POWER, bar) * deviation / np.sqrt(seeds))
