"""Means over seeds and targets with their errors: from the candidates, and from one training to the
next.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TypeVar

import numpy as np
from numpy import ndarray
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
class UnitValue:
    """Value of one unit and its standard error from the candidates, NaN where it is not known."""

    value: float
    error: float
    pulls: ndarray = field(default_factory=_NOTHING)
    """[n] contribution of each non-member to the value's deviation, scaled so that their squares
    add up to their part of the variance
    """
    ids: ndarray = field(default_factory=_NOTHING)
    """[n] which samples these are, numbered from 0 in each seed; empty: other targets of the seed
    have other non-members
    """


@dataclass(frozen=True)
class SeedSums:
    """Sums of unit values of each seed, of one statistic or of an array of them; every result has
    the shape of that array.
    """

    n: ndarray
    """[S, ...] number of units"""
    totals: ndarray
    """[S, ...] sum of their values"""
    variances: ndarray
    """[S, ...] variance of that sum when members and non-members are drawn anew; NaN: not known"""

    @cached_property
    def mean(self) -> ndarray:
        """Mean over units; NaN without any."""
        return _ratio(self.totals.sum(axis=0), self.n.sum(axis=0))

    @cached_property
    def seeds(self) -> ndarray:
        """Number of seeds with a unit."""
        return np.asarray((self.n > 0).sum(axis=0))

    @cached_property
    def seed_mean(self) -> ndarray:
        """Mean over the means of seeds."""
        return _ratio(np.where(self.n > 0, self._means, 0.0).sum(axis=0), self.seeds)

    @cached_property
    def seed_error(self) -> ndarray:
        """Standard error of :attr:`seed_mean`, NaN of a single seed."""
        deviations = np.where(self.n > 0, self._means - self.seed_mean, 0.0)
        variance = _ratio((deviations**2).sum(axis=0), np.maximum(self.seeds - 1, 0))
        return np.asarray(np.sqrt(_ratio(variance, self.seeds)))

    @cached_property
    def _means(self) -> ndarray:
        return _ratio(self.totals, self.n)

    @cached_property
    def error(self) -> ndarray:
        """Standard error of :attr:`mean` when members and non-members are drawn anew; NaN where
        that of a unit is not known.
        """
        deviation = np.sqrt(np.maximum(self.variances.sum(axis=0), 0.0))
        return _ratio(deviation, self.n.sum(axis=0))

    def p_candidates(self, margin: float) -> ndarray:
        """P-value, two-sided, of a mean of ``margin``, if members and non-members are scored alike
        in these trainings; NaN where no error is known.
        """
        distance = np.abs(self.seed_mean - margin)
        p = 2 * ndtr(-_ratio(distance, self.error))
        p = np.where(self.error == 0, 0.0, p)
        return np.where((distance == 0) & ~np.isnan(self.error), 1.0, p)

    def p_value(self, margin: float = 0.0) -> ndarray:
        """P-value, two-sided, of a mean of ``margin``: the larger of Student's t over seeds and of
        :meth:`p_candidates`. 1 with fewer than two seeds, since one training does not show the
        variance of training.
        """
        distance = np.abs(self.seed_mean - margin)
        between = 2 * stdtr(np.maximum(self.seeds - 1, 1), -_ratio(distance, self.seed_error))
        between = np.where(self.seed_error == 0, 0.0, between)
        p = np.fmax(between, self.p_candidates(margin))
        return np.where((self.seeds < 2) | (distance == 0), 1.0, p)

    @property
    def p_of_chance(self) -> ndarray:
        """P-value, two-sided, of a mean AUC of one half, by the candidates' errors or, where none
        is known, by the seeds.
        """
        p = self.p_candidates(0.5)
        return np.where(np.isnan(p), self.p_value(0.5), p)

    @property
    def without_each(self) -> SeedSums:
        """The sums [S, S] of a single statistic without one seed, along the second axis."""
        others = ~np.eye(len(self.n), dtype=bool)
        columns = (np.where(others, a[:, None], 0) for a in (self.n, self.totals, self.variances))
        return SeedSums(*columns)


def _ratio(numerator: ndarray, denominator: ndarray) -> ndarray:
    """Quotient; NaN where both are 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(numerator / denominator)


@dataclass(frozen=True)
class Estimate:
    """Mean of a statistic over at least one unit."""

    by_unit: Mapping[Unit, UnitValue]

    @cached_property
    def values(self) -> ndarray:
        """[U]"""
        return np.array([unit.value for unit in self.by_unit.values()])

    @property
    def mean(self) -> float:
        """Mean over units."""
        return float(self.values.mean())

    @cached_property
    def sums(self) -> SeedSums:
        """Sums of each seed, ascending."""
        units = list(self.by_unit.values())
        _, seed_of = np.unique([seed for seed, _ in self.by_unit], return_inverse=True)
        errors = np.array([unit.error for unit in units])
        n = np.bincount(seed_of)
        variances = np.bincount(seed_of, errors**2)
        if n.max() > 1:
            variances = variances + _shared_variances(units, seed_of)
        return SeedSums(n, np.bincount(seed_of, self.values), variances)

    @property
    def error(self) -> float:
        """Standard error of the mean from the candidates; NaN where a unit's is not known."""
        return float(self.sums.error)

    def p_value(self, margin: float = 0.0) -> float:
        """P-value, two-sided, of a mean of ``margin``, by seeds and candidates."""
        return float(self.sums.p_value(margin))

    @property
    def p_of_chance(self) -> float:
        """P-value, two-sided, of a mean AUC of one half."""
        return float(self.sums.p_of_chance)

    @property
    def interval(self) -> Interval:
        """Mean over units with the widest of three 95 % intervals.

        From the candidates: members and non-members of every unit are drawn anew. From the units:
        Student's t over all of them, if there are five. From the seeds: Student's t over their
        means, since targets of one seed share a global model. The half-width is NaN where none of
        them can be had.
        """
        n, mean, error = _moments(self.values)
        seeds = int(self.sums.seeds)
        widths = [float(ndtri(_TAIL) * self.error)]
        if n >= ENOUGH:
            widths.append(float(stdtrit(n - 1, _TAIL) * error))
        if seeds > 1:
            widths.append(float(stdtrit(seeds - 1, _TAIL) * self.sums.seed_error))
        return Interval(mean, float(np.fmax.reduce(widths)), n, between=seeds > 1)


def _moments(values: ndarray) -> tuple[int, float, float]:
    """Number of values, their mean, and its standard error, NaN of a single one."""
    n = len(values)
    error = np.nan
    if n > 1:
        error = values.std(ddof=1) / np.sqrt(n)
    return n, float(values.mean()), float(error)


def _shared_variances(units: Sequence[UnitValue], seed_of: ndarray) -> ndarray:
    """[S] of each seed, twice the sum of the covariances between its targets."""
    pulls = np.concatenate([unit.pulls for unit in units])
    ids = np.concatenate([unit.ids for unit in units])
    seeds = np.repeat(seed_of, [len(unit.ids) for unit in units])
    shape = seed_of.max() + 1, ids.max(initial=-1) + 1
    together = np.bincount(seeds * shape[1] + ids, pulls, np.prod(shape)).reshape(shape)
    return np.asarray(np.sum(together**2, axis=1) - np.bincount(seeds, pulls**2, shape[0]))


def numbered(ids: Sequence[ndarray]) -> list[ndarray]:
    """Number the samples of a seed from 0, given the ids [n] of each target's."""
    numbers = np.unique(np.concatenate(ids), return_inverse=True)[1]
    return np.split(numbers, np.cumsum([len(of_target) for of_target in ids])[:-1])


def estimate(parts: Iterable[tuple[Unit, UnitValue]]) -> Estimate | None:
    """Estimate from the parts of units, with the error of independent parts; None without any."""
    parts_of: dict[Unit, list[UnitValue]] = {}
    for unit, part in parts:
        parts_of.setdefault(unit, []).append(part)
    by_unit = {unit: _mean_of_parts(unit_parts) for unit, unit_parts in parts_of.items()}
    return Estimate(by_unit) if by_unit else None


def _mean_of_parts(parts: Sequence[UnitValue]) -> UnitValue:
    if len(parts) == 1:
        return parts[0]
    mean = float(np.mean([part.value for part in parts]))
    error = np.sqrt(np.sum([part.error**2 for part in parts])) / len(parts)
    pulls = np.concatenate([part.pulls for part in parts]) / len(parts)
    ids = np.concatenate([part.ids for part in parts])
    return UnitValue(mean, float(error), pulls, ids)


def over_units(by_unit: Mapping[Unit, UnitValue]) -> Interval | None:
    """:attr:`Estimate.interval` over seeds x targets; None without a unit."""
    return Estimate(by_unit).interval if by_unit else None


def extend_to(interval: Interval, maximum: float) -> Interval:
    """Widen the interval to reach the plain maximum: what is picked on other folds can be far too
    low.
    """
    return replace(interval, half_width=max(interval.half_width, maximum - interval.mean))


def widen_for_sign(interval: Interval, low: float, high: float) -> Interval:
    """Widen the interval around two readings of its mean, which the data do not tell apart."""
    if high <= low:
        return interval
    half = interval.half_width
    return replace(interval, half_width=half + (high - low) / 2, ends=(low - half, high + half))


def at_least(interval: Interval, other: Interval | None) -> Interval:
    """Take the mean of the other interval where that is higher, and ends that hold both."""
    if other is None or other.mean <= interval.mean:
        return interval
    interval = _spanning(interval, min(interval.low, other.low), max(interval.high, other.high))
    return replace(interval, mean=other.mean)


def bounded(interval: Interval | None, low: float = 0.0, high: float = 1.0) -> Interval | None:
    """Cut the interval to what the quantity can be, for tables; tests use all of it."""
    if interval is None or not (interval.low < low or interval.high > high):
        return interval
    return _spanning(interval, max(interval.low, low), min(interval.high, high))


def _spanning(interval: Interval, low: float, high: float) -> Interval:
    return replace(interval, half_width=(high - low) / 2, ends=(low, high))


def smallest_shown(deviations: Sequence[float], seeds: int, tests: int = 1) -> float | None:
    """Difference that ``seeds`` paired seeds show with a power of 80 %, if differences vary from
    seed to seed by these standard deviations (their root mean square).

    The level is 5 % over the number of ``tests`` (Bonferroni, the first step of Holm's correction).
    None with fewer than two seeds, or without deviations.
    """
    if seeds < 2 or not len(deviations):
        return None
    deviation = np.sqrt(np.mean(np.square(deviations)))
    bar = stdtrit(seeds - 1, 1 - (1 - LEVEL) / (2 * tests))
    return float(nctdtrinc(seeds - 1, 1 - POWER, bar) * deviation / np.sqrt(seeds))


def interval_of(values: Sequence[float], errors: Sequence[float | None]) -> Interval | None:
    """``combined_interval``, or a NaN half-width where a value has no standard error; None without
    values.
    """
    if not values:
        return None
    known_errors = [error for error in errors if error is not None]
    if len(known_errors) < len(values):
        return Interval(float(np.mean(values)), float("nan"), len(values), between=False)
    return combined_interval(values, known_errors)


def mean_of(values: Sequence[float | None]) -> float | None:
    """Mean of the values that are not None; None without any."""
    numbers = [value for value in values if value is not None]
    return float(np.mean(numbers)) if numbers else None


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
    specificity = 2 * accuracy - recall
    for rate, n in ((recall, members), (specificity, nonmembers)):
        p = (min(max(rate, 0.0), 1.0) * n + 1) / (n + 2)
        variance += p * (1 - p) / (n + 2)
    return float(np.sqrt(variance) / 2)


def holm(p_values: Mapping[Name, float]) -> dict[Name, float]:
    """Adjust p-values to control the chance of any false claim (Holm, Scandinavian Journal of
    Statistics 1979).
    """
    adjusted: dict[Name, float] = {}
    largest = 0.0
    for i, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        hypotheses_left = len(p_values) - i
        largest = max(largest, min(1.0, hypotheses_left * p_values[name]))
        adjusted[name] = largest
    return adjusted
