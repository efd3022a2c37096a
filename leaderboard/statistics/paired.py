"""Weighted sums of AUCs minus each other on the same candidates, with their errors and tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, groupby, product
from typing import NamedTuple

import numpy as np
from numpy import ndarray
from scipy.spatial.distance import cdist

from fedbench.core.metrics.intervals import LEVEL
from fedbench.leaderboard.statistics.intervals import Estimate, SeedSums, UnitValue, estimate, holm
from fedbench.leaderboard.statistics.leaks import Leaks
from fedbench.leaderboard.statistics.scores import Key, Part

Weights = Mapping[int, Mapping[Key, float]]
"""fold -> signed weights of AUCs: the statistic is one half + sum of weight x (AUC - one half)"""
Pair = tuple[str, str]
Tests = Mapping[Pair, tuple[float, float]]
"""of pairs of rows: (the first's value minus the second's, the p-value of no difference, not
adjusted for their number)
"""


@dataclass(frozen=True)
class Rival:
    """Side of a comparison."""

    picked: Weights
    """what is picked on other folds"""
    plain: Weights
    """its plain maximum over attacks and signs"""


def difference(parts: Sequence[Part], first: Weights, second: Weights) -> Estimate | None:
    """Weighted sum of AUCs minus another one, over the units that have both; None without any."""
    values = []
    for part in parts:
        if part.fold not in first or part.fold not in second:
            continue
        value = _difference(part, first[part.fold], second[part.fold])
        if value is not None:
            values.append((part.unit, value))
    return estimate(values)


def _difference(
    part: Part, first: Mapping[Key, float], second: Mapping[Key, float]
) -> UnitValue | None:
    """Difference of the sums on the part; None where it lacks an AUC of either."""
    sides = _combined(part, [first, second])
    # equal rows differ by exactly 0
    value = sides.values[0] - sides.values[1]
    if np.isnan(value):
        return None
    pulls = sides.pulls[0] - sides.pulls[1]
    error = float(np.linalg.norm(pulls))
    return UnitValue(float(value), error, pulls[part.members :], part.ids)


# -- all pairs at once -----------------------------------------------------------------------------


class _Sides(NamedTuple):
    """Weighted sums of AUCs on one part."""

    values: ndarray
    """[R] sum of weight x (AUC - one half), NaN where the part lacks one"""
    pulls: ndarray
    """[R, m + n] contribution of each candidate (:class:`Part`)"""


def _combined(part: Part, sides: Sequence[Mapping[Key, float] | None]) -> _Sides:
    """Return the sums of ``sides`` (None: not on this fold)."""
    values = np.full(len(sides), np.nan)
    pulls = np.zeros((len(sides), part.members + len(part.ids)))
    excesses = part.aucs - 0.5
    for i, weights in enumerate(sides):
        if weights is not None and weights.keys() <= part.position.keys():
            positions = [part.position[key] for key in weights]
            w = np.array(list(weights.values()))
            values[i] = w @ excesses[positions]
            if not np.isnan(values[i]):
                pulls[i] = w @ part.pulls(positions)
    return _Sides(values, pulls)


def differences(
    parts: Sequence[Part], firsts: Sequence[Weights], seconds: Sequence[Weights]
) -> SeedSums:
    """:func:`difference` of each of ``firsts`` [A] minus each of ``seconds`` [B], as sums [S, A, B]
    of seeds over the units that both have.
    """
    seeds = [list(of_seed) for _, of_seed in groupby(parts, key=lambda part: part.unit[0])]
    shape = len(seeds), len(firsts), len(seconds)
    sums = SeedSums(np.zeros(shape), np.zeros(shape), np.zeros(shape))
    for i, seed_parts in enumerate(seeds):
        first = [_combined(part, [side.get(part.fold) for side in firsts]) for part in seed_parts]
        second = first
        if seconds is not firsts:
            second = [_combined(p, [side.get(p.fold) for side in seconds]) for p in seed_parts]
        for (rows, of_rows), (columns, of_columns) in product(_alike(first), _alike(second)):
            common = np.flatnonzero(of_rows & of_columns)
            units = [seed_parts[p].unit for p in common]
            weights = np.array([1 / units.count(unit) for unit in units])
            x, x_pulls = _on_seed(seed_parts, first, common, weights, rows)
            y, y_pulls = _on_seed(seed_parts, second, common, weights, columns)
            cells = np.ix_([i], rows, columns)
            sums.n[cells] = len(set(units))
            # equal rows differ by exactly 0 on every part
            sums.totals[cells] = (x[:, :, None] - y[:, None]).sum(axis=0)
            sums.variances[cells] = cdist(x_pulls, y_pulls, "sqeuclidean")
    return sums


def _alike(sides: Sequence[_Sides]) -> list[tuple[ndarray, ndarray]]:
    """(positions, [P] bool: the parts that they have) of the sides [R] that have the same parts."""
    measured = ~np.isnan([side.values for side in sides]).T
    patterns, pattern_of = np.unique(measured, axis=0, return_inverse=True)
    pattern_of = pattern_of.ravel()
    return [(np.flatnonzero(pattern_of == i), parts) for i, parts in enumerate(patterns)]


def _on_seed(
    parts: Sequence[Part],
    sides: Sequence[_Sides],
    common: ndarray,
    weights: ndarray,
    rows: ndarray,
) -> tuple[ndarray, ndarray]:
    """(values [P, R], pulls [R, n]) of these rows on the parts in ``common``, weighted; pulls are
    those of the seed's non-members, together, and of each target's members.
    """
    values = np.zeros((len(common), len(rows)))
    together = np.zeros((len(rows), 1 + max(part.ids.max(initial=0) for part in parts)))
    of_members = []
    for i, p in enumerate(common):
        values[i] = weights[i] * sides[p].values[rows]
        pulls = weights[i] * sides[p].pulls[rows]
        together[:, parts[p].ids] += pulls[:, parts[p].members :]
        of_members.append(pulls[:, : parts[p].members])
    return values, np.hstack([together, *of_members])


class PairTests:
    """Tests of pairs of rows on the same candidates; ``margin``: the difference that is tested
    against.

    What is picked on the other folds is unbiased, but picks of different folds depend on each
    other, and where no attack or sign is clearly the strongest the mean can be far too low: without
    any leak, for one row in ten of six seeds by more than its interval. So the lower row's plain
    maximum, too high if anything, must be lower than the other row with significance, too
    (docs/method.md#worst-case).
    """

    def __init__(self, leaks: Leaks, rivals: Mapping[str, Rival], margin: float = 0.0) -> None:
        self._leaks = leaks
        self._rivals = rivals
        self._margin = margin
        self._position = {label: i for i, label in enumerate(rivals)}

    def difference(self, pair: Pair) -> Estimate | None:
        """Return the first minus the second; None where no unit has both."""
        first, second = (self._rivals[label].picked for label in pair)
        return difference(self._leaks.parts, first, second)

    @cached_property
    def _picked(self) -> SeedSums:
        """Differences of all pairs, [S, R, R]."""
        picked = [rival.picked for rival in self._rivals.values()]
        return differences(self._leaks.parts, picked, picked)

    @cached_property
    def _all(self) -> tuple[ndarray, ndarray]:
        """(mean difference minus the margin, p-value) of all pairs, each [R, R]."""
        rivals = self._rivals.values()
        plain = [rival.plain for rival in rivals]
        guards = differences(self._leaks.parts, plain, [rival.picked for rival in rivals])
        mean = self._picked.mean - self._margin
        # the lower row's plain maximum: of the first minus the second, or with the opposite sign
        lower = mean < 0
        guard = np.where(lower, guards.mean, -guards.mean.T) - self._margin
        of_guard = np.where(lower, guards.p_value(self._margin), guards.p_value(-self._margin).T)
        p_value = np.maximum(self._picked.p_value(self._margin), of_guard)
        p_value = np.where(guard * np.sign(mean) > 0, p_value, 1.0)
        return np.nan_to_num(mean), p_value

    def test(self, pair: Pair) -> tuple[float, float]:
        """Return the mean difference minus the margin, and its p-value; (0, 1) where no unit has
        both.
        """
        cell = self._position[pair[0]], self._position[pair[1]]
        mean, p_value = self._all
        return float(mean[cell]), float(p_value[cell])

    def deviation(self, pair: Pair) -> float | None:
        """Return the standard deviation of the difference between seeds; None below two of them."""
        cell = self._position[pair[0]], self._position[pair[1]]
        seeds = self._picked.seeds[cell]
        return float(self._picked.seed_error[cell] * np.sqrt(seeds)) if seeds > 1 else None

    def among(self, labels: Sequence[str]) -> Tests:
        """Return the tests of all pairs of these rows."""
        return {pair: self.test(pair) for pair in combinations(labels, 2)}


def ordered(tests: Tests) -> list[Pair]:
    """(lower, higher): the pairs that differ with significance where all are tested together
    (Holm).
    """
    adjusted = holm({pair: p for pair, (_, p) in tests.items()})
    pairs = []
    for pair, (mean, _) in tests.items():
        if adjusted[pair] <= 1 - LEVEL and mean != 0:
            pairs.append(pair if mean < 0 else pair[::-1])
    return pairs


def rank_ranges(labels: Sequence[str], tests: Tests) -> dict[str, tuple[int, int]]:
    """Label -> (best, worst) rank that the ``tests`` of all pairs leave open, 1 being the lowest
    value.

    Rows that are significantly better rank before a row, significantly worse ones behind it, the
    others on either side: with 95 % confidence all true ranks lie within their ranges (Al Mohamad
    et al., Statistica Neerlandica 2022).
    """
    pairs = ordered(tests)
    better = Counter(higher for _, higher in pairs)
    worse = Counter(lower for lower, _ in pairs)
    return {label: (1 + better[label], len(labels) - worse[label]) for label in labels}
