"""Means over seeds and targets with their errors: from the candidates, and from one training to the
next.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TypeVar

import numpy as np
from scipy.special import nctdtrinc, ndtr, ndtri, stdtr, stdtrit

from fedbench.core.metrics import Interval, combined_interval
from fedbench.core.metrics.intervals import LEVEL

Unit = tuple[int, int]
"""(seed, target): what one value of an entry was measured on"""

# units with a Student's t of their own; fewer estimate their spread too poorly, and share a model
ENOUGH = 5
POWER = 0.8  # of the smallest difference that a comparison is said to show
Name = TypeVar("Name", bound=Hashable)
_TAIL = (1 + LEVEL) / 2
_NOTHING = partial(np.empty, 0, np.int64)


@dataclass(frozen=True)
class Measured:
    """A value of one unit and its standard error from the candidates, NaN where it is not known.

    ``pulls`` [n]: contribution of each non-member to the value's deviation, scaled so that their
    squares add up to their part of the variance; ``ids`` [n]: which samples these are. Empty: other
    targets of the seed have other non-members.
    """

    value: float
    error: float
    pulls: np.ndarray = field(default_factory=_NOTHING)
    ids: np.ndarray = field(default_factory=_NOTHING)


@dataclass(frozen=True)
class Estimates:
    """D statistics on the same U units. ``seeds`` [U]; ``values`` [U, D], NaN where a unit has
    none; ``variances`` [U, D] from the candidates, NaN where not known; ``shared`` [D]: sum of the
    covariances between units of one seed, which may have the same non-members.
    """

    seeds: np.ndarray
    values: np.ndarray
    variances: np.ndarray
    shared: np.ndarray

    @cached_property
    def n(self) -> np.ndarray:
        """[D] units of each statistic."""
        return np.asarray((~np.isnan(self.values)).sum(axis=0))

    @cached_property
    def mean(self) -> np.ndarray:
        """[D] over units, NaN of none."""
        return _moments(self.values)[1]

    @cached_property
    def error(self) -> np.ndarray:
        """[D] standard error of the mean over units when members and non-members are drawn anew;
        NaN where one is not known.
        """
        variance = np.where(np.isnan(self.values), 0.0, self.variances).sum(axis=0) + self.shared
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.sqrt(np.maximum(variance, 0.0)) / self.n)

    @cached_property
    def of_seeds(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(number of seeds, mean over them, standard error of that mean) [D]."""
        means = [_moments(self.values[self.seeds == seed])[1] for seed in np.unique(self.seeds)]
        return _moments(np.reshape(means, (len(means), self.values.shape[1])))

    def p_candidates(self, margin: float = 0.0) -> np.ndarray:
        """[D] two-sided, of a mean of ``margin``, if members and non-members are scored alike in
        these trainings. NaN where no error is known.
        """
        mean = self.of_seeds[1] - margin
        with np.errstate(divide="ignore", invalid="ignore"):
            p = np.where(self.error == 0, 0.0, 2 * ndtr(-np.abs(mean) / self.error))
        return np.where((mean == 0) & ~np.isnan(self.error), 1.0, p)

    def p_values(self, margin: float = 0.0) -> np.ndarray:
        """[D] two-sided, of a mean of ``margin``: the larger of Student's t over seeds and of
        :meth:`p_candidates`. 1 with fewer than two seeds, since one training does not show the
        variance of training.
        """
        seeds, mean, error = self.of_seeds
        mean = mean - margin
        with np.errstate(divide="ignore", invalid="ignore"):
            between = np.where(error == 0, 0.0, 2 * stdtr(seeds - 1, -np.abs(mean) / error))
        return np.where((mean == 0) | (seeds < 2), 1.0, np.fmax(between, self.p_candidates(margin)))

    def interval(self, at: int = 0) -> Interval | None:
        """Mean of one statistic over units with the widest of three 95 % intervals; None without a
        unit.

        From the candidates: members and non-members of every unit are drawn anew. From the units:
        Student's t over all of them, if there are five. From the seeds: Student's t over their
        means, since targets of one seed share a global model. The half-width is NaN where none of
        them can be had.
        """
        if not self.n[at]:
            return None
        n, mean, error = (found[0] for found in _moments(self.values[:, [at]]))
        seeds, _, of_seeds = (found[at] for found in self.of_seeds)
        widths = [float(ndtri(_TAIL) * self.error[at])]
        widths += [
            float(stdtrit(k - 1, _TAIL) * e)
            for k, e, least in ((n, error, ENOUGH), (seeds, of_seeds, 2))
            if k >= least
        ]
        half = max((w for w in widths if w == w), default=float("nan"))
        return Interval(float(mean), half, int(n), between=bool(seeds > 1))


def _moments(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(n, mean, standard error of the mean) [D] of the numbers in each column of [U, D]."""
    known = ~np.isnan(values)
    n = known.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(known, values, 0.0).sum(axis=0) / n
        squares = np.where(known, values - mean, 0.0) ** 2
        return n, mean, np.sqrt(squares.sum(axis=0) / (n - 1)) / np.sqrt(n)


def estimates(found: Mapping[Unit, Measured]) -> Estimates:
    """One statistic (D = 1) on at least one unit."""
    seeds = np.array([seed for seed, _ in found])
    values, errors = (
        np.array([[x] for x in of])
        for of in zip(*((m.value, m.error) for m in found.values()), strict=True)
    )
    own = [[m for (s, _), m in found.items() if s == seed] for seed in np.unique(seeds)]
    return Estimates(seeds, values, errors**2, np.array([sum(map(_in_common, own))]))


def _in_common(targets: Sequence[Measured]) -> float:
    """Twice the sum of the covariances between targets of one seed."""
    if len(targets) < 2:
        return 0.0
    pulls, ids = (np.concatenate([getattr(m, name) for m in targets]) for name in ("pulls", "ids"))
    which = np.unique(ids, return_inverse=True)[1]
    return float(np.sum(np.bincount(which, pulls) ** 2) - np.sum(pulls**2))


def by_unit(found: Sequence[tuple[Unit, Measured]]) -> dict[Unit, Measured]:
    """The parts of a unit together: their mean, with the error of independent parts."""
    groups: dict[Unit, list[Measured]] = {}
    for unit, measured in found:
        groups.setdefault(unit, []).append(measured)
    return {unit: _halves(parts) if len(parts) > 1 else parts[0] for unit, parts in groups.items()}


def _halves(parts: Sequence[Measured]) -> Measured:
    """Their mean, with the error of independent parts."""
    value, error = (
        np.mean([m.value for m in parts]),
        np.sqrt(np.sum([m.error**2 for m in parts])) / len(parts),
    )
    pulls, ids = (np.concatenate([getattr(m, name) for m in parts]) for name in ("pulls", "ids"))
    return Measured(float(value), float(error), pulls / len(parts), ids)


def over_units(found: Mapping[Unit, Measured]) -> Interval | None:
    """:meth:`Estimates.interval` over seeds x targets; None of nothing."""
    return estimates(found).interval() if found else None


def reaching(interval: Interval, largest: float) -> Interval:
    """The interval, wide enough to reach the plain maximum: what is picked on other folds can be
    far too low.
    """
    return replace(interval, half_width=max(interval.half_width, largest - interval.mean))


def spanning(interval: Interval, low: float, high: float) -> Interval:
    """The interval around two readings of its mean, which the data do not tell apart."""
    half = interval.half_width
    return (
        replace(interval, half_width=half + (high - low) / 2, ends=(low - half, high + half))
        if high > low
        else interval
    )


def raised(interval: Interval, other: Interval | None) -> Interval:
    """With the mean of the other one where that is higher, and ends that hold both."""
    if other is None or other.mean <= interval.mean:
        return interval
    low, high = min(interval.low, other.low), max(interval.high, other.high)
    return replace(interval, mean=other.mean, half_width=(high - low) / 2, ends=(low, high))


def bounded(interval: Interval | None, low: float = 0.0, high: float = 1.0) -> Interval | None:
    """The interval as it is shown, with ends that the quantity can have; tests use the whole
    one.
    """
    if interval is None or not (interval.low < low or interval.high > high):
        return interval
    ends = max(interval.low, low), min(interval.high, high)
    return replace(interval, half_width=(ends[1] - ends[0]) / 2, ends=ends)


def candidates_error(found: Mapping[Unit, Measured]) -> float:
    """:attr:`Estimates.error` of one statistic."""
    return float(estimates(found).error[0])


def p_value(found: Mapping[Unit, Measured]) -> float:
    """:meth:`Estimates.p_values` of a mean of 0."""
    return float(estimates(found).p_values()[0])


def p_of_chance(found: Mapping[Unit, Measured], chance: float = 0.5) -> float:
    """Two-sided, of a mean of ``chance``, by the candidates' errors or, where none is known, by the
    seeds.
    """
    of_candidates = float(estimates(found).p_candidates(chance)[0])
    return (
        of_candidates
        if of_candidates == of_candidates
        else float(estimates(found).p_values(chance)[0])
    )


def smallest_shown(deviations: Sequence[float], seeds: int, tests: int = 1) -> float | None:
    """The difference that ``seeds`` paired seeds show with a power of 80 %, if differences vary
    from seed to seed by these standard deviations (their root mean square); None with fewer than
    two seeds, or of nothing.

    The level is 5 % over the number of ``tests`` (Bonferroni, the first step of Holm's correction).
    """
    if seeds < 2 or not len(deviations):
        return None
    deviation, bar = (
        np.sqrt(np.mean(np.square(deviations))),
        stdtrit(seeds - 1, 1 - (1 - LEVEL) / (2 * tests)),
    )
    return float(nctdtrinc(seeds - 1, 1 - POWER, bar) * deviation / np.sqrt(seeds))


def interval_of(values: Sequence[float], errors: Sequence[float | None]) -> Interval | None:
    """``combined_interval``, or a NaN half-width where a value has no standard error; None of
    nothing.
    """
    known = [e for e in errors if e is not None]
    if values and len(known) < len(values):
        return Interval(float(np.mean(values)), float("nan"), len(values), between=False)
    return combined_interval(values, known) if values else None


def mean_of(values: Sequence[float | None]) -> float | None:
    """Mean of the values that are not None; None of nothing."""
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None


def share_error(share: float, n: int) -> float:
    """Binomial standard error of a share of ``n``."""
    return float(np.sqrt(share * (1 - share) / max(n, 1)))


def accuracy_error(accuracy: float, recall: float, members: int, nonmembers: int) -> float:
    """Standard error of (TPR + TNR) / 2 from so many members and non-members, each judged once.

    One right and one wrong answer are added to each class: the plain binomial error is 0 where all
    answers are right or wrong (Agresti & Caffo, The American Statistician 2000, for the difference
    of two proportions, here TPR - FPR).
    """
    variance = 0.0
    for rate, n in ((recall, members), (2 * accuracy - recall, nonmembers)):
        p = (min(max(rate, 0.0), 1.0) * n + 1) / (n + 2)
        variance += p * (1 - p) / (n + 2)
    return float(np.sqrt(variance) / 2)


def holm(p_values: Mapping[Name, float]) -> dict[Name, float]:
    """Adjusted p-values that control the chance of any false claim (Holm, Scandinavian Journal of
    Statistics 1979).
    """
    adjusted: dict[Name, float] = {}
    largest = 0.0
    for i, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, (len(p_values) - i) * p))
        adjusted[name] = largest
    return adjusted
