"""Direction of a sweep: rank correlation of a swept setting and a measured number, seed by seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy import ndarray

from fedbench.core.metrics import Interval
from fedbench.core.metrics.intervals import LEVEL
from fedbench.core.numerics.rng import numpy_rng
from fedbench.leaderboard.statistics.rows import DefenseRow
from fedbench.leaderboard.statistics.sections import BoardSection
from fedbench.leaderboard.statistics.tf01 import aligned_rate, low_rate
from fedbench.plugins.papers.claim_files import Quantity
from fedbench.plugins.papers.quantities import (
    BY_SEED,
    Missing,
    measured,
    p_of_interval,
    row_of,
    series,
)

DRAWS = 2000  # resamples of the seeds
BySeed = Mapping[int, float]


@dataclass(frozen=True)
class Trend:
    """Mean over seeds of Kendall's rank correlation, in [-1, 1]."""

    interval: Interval
    p: float
    """two-sided, of no direction"""


def trend(points: Sequence[tuple[BoardSection, Quantity]]) -> Trend:
    """Correlate the order of the points with the number that each measures, over the seeds that all
    of them have.

    Raises:
        Missing: where a point lacks the number, or fewer than two seeds have all points.
    """
    numbers = [values_by_seed(section, quantity) for section, quantity in points]
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in numbers)))
    if len(seeds) < 2:
        raise Missing("fewer than two seeds have all points of the sweep of", points[0][1].row)
    values = np.array([[by_seed[seed] for by_seed in numbers] for seed in seeds])
    return trend_of(values)


def trend_of(values: ndarray) -> Trend:
    """Return the trend of ``values`` [seeds, points], points in the order of the sweep.

    The interval is from resampled seeds (percentiles), and nowhere narrower than
    :func:`null_reach`: a few seeds resampled say too little about their spread.
    """
    correlations = np.array([rank_correlation(of_seed) for of_seed in values])
    seeds, points = values.shape
    mean = float(correlations.mean())
    picks = numpy_rng(0, "seeds of a trend").integers(0, seeds, (DRAWS, seeds))
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(correlations[picks].mean(axis=1), (tail, 1 - tail))
    reach = null_reach(points, seeds)
    low, high = min(float(low), mean - reach), max(float(high), mean + reach)
    interval = Interval(mean, (high - low) / 2, seeds, between=True, ends=(low, high))
    return Trend(interval, p_of_interval(interval, 0.0, seeds))


def rank_correlation(values: ndarray) -> float:
    """Return Kendall's tau of ``values`` [points] and their order: pairs that rise minus pairs that
    fall, over all pairs; equal values do neither.
    """
    points = len(values)
    steps = np.sign(values[None, :] - values[:, None])
    return float(np.triu(steps, 1).sum() / (points * (points - 1) / 2))


def null_reach(points: int, seeds: int) -> float:
    """Return the bound that the mean of so many correlations exceeds, either way, in at most 5 % of
    sweeps without a direction.

    Exact where all orders of a seed's points are equally likely: the number of falling pairs of a
    random order has the generating function prod_k (1 + x + ... + x^(k-1)) / k (Kendall, Biometrika
    1938). The bound lies between two values that the mean can have.
    """
    of_seed = np.ones(1)
    for k in range(2, points + 1):
        of_seed = np.convolve(of_seed, np.full(k, 1 / k))
    of_all = np.ones(1)
    for _ in range(seeds):
        of_all = np.convolve(of_all, of_seed)
    pairs = seeds * points * (points - 1) // 2
    distances = np.abs(pairs - 2 * np.arange(pairs + 1))  # of rising and falling pairs
    rare = [d for d in range(pairs + 2) if of_all[distances >= d].sum() <= 1 - LEVEL]
    return rare[0] / pairs


# -- the number of every seed ----------------------------------------------------------------------


def values_by_seed(section: BoardSection, q: Quantity) -> BySeed:
    """Return seed -> the quantity, a mean over the seed's targets. Raises :class:`Missing` where
    the section does not have it.
    """
    measured(section, q)  # every reason why it cannot be had
    row = row_of(section, q.row)
    if q.measure in BY_SEED:
        return {seed: unit.value for seed, unit in series(section, row, q).items()}
    if q.measure not in _VALUES:
        raise Missing("no value of each seed of", q.measure)
    return _VALUES[q.measure](section, row, q)


def _auc(section: BoardSection, row: DefenseRow, q: Quantity) -> BySeed:
    leaks = section.comparison.leaks
    return leaks.by_seed(row.label, leaks.of(row.label, q.attack or "").picks)


def _worst_auc(section: BoardSection, row: DefenseRow, q: Quantity) -> BySeed:
    worst = section.comparison.worst_cases.of(row.label).worst
    return section.comparison.leaks.by_seed(row.label, worst.picks if worst else {})


def _tf01(section: BoardSection, row: DefenseRow, q: Quantity) -> BySeed:
    """TF01 in percent of the targets of each seed pooled, at the lowest false-positive rate that
    their non-members allow.
    """
    leaks = section.comparison.leaks
    rate = aligned_rate if leaks.aligned else low_rate
    signs = leaks.of(row.label, q.attack or "").signs
    by_seed = {}
    for seed in section.seeds:
        samples = [
            part.entries[row.label, q.attack or ""].sample.signed(signs[part.fold])
            for part in leaks.parts
            if part.unit[0] == seed
        ]
        by_seed[seed] = 100 * rate(samples)
    return by_seed


def _accuracy(section: BoardSection, row: DefenseRow, q: Quantity) -> BySeed:
    return {seed: 100 * run.record.accuracy for seed, run in row.utility_records.items()}


def _delta_accuracy(section: BoardSection, row: DefenseRow, q: Quantity) -> BySeed:
    assert section.base is not None
    base = _accuracy(section, section.base, q)
    accuracy = _accuracy(section, row, q)
    return {seed: accuracy[seed] - base[seed] for seed in accuracy.keys() & base.keys()}


def _max_advantage(section: BoardSection, row: DefenseRow, q: Quantity) -> BySeed:
    by_seed = {}
    for seed, targets in section.targets.items():
        maxima = []
        for unit in product([seed], targets):
            of_unit = [e.maxima[unit].advantage for e in row.entries.values() if unit in e.maxima]
            maxima += [max(of_unit)] if of_unit else []
        by_seed[seed] = float(np.mean(maxima))
    return by_seed


_VALUES: dict[str, Callable[[BoardSection, DefenseRow, Quantity], BySeed]] = {
    "auc": _auc,
    "worst-auc": _worst_auc,
    "tf01": _tf01,
    "accuracy": _accuracy,
    "delta-accuracy": _delta_accuracy,
    "max-advantage": _max_advantage,
}
