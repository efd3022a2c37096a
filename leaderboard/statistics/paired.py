"""Weighted sums of AUCs minus each other on the same candidates, with their errors and tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from fedbench.core.metrics.intervals import LEVEL
from fedbench.leaderboard.statistics.intervals import Estimate, UnitValue, estimate, holm
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
    weights = dict(first)
    for key, weight in second.items():
        weights[key] = weights.get(key, 0.0) - weight
    if not weights.keys() <= part.position.keys():
        return None
    # equal rows differ by exactly 0
    value = _sum(part, first) - _sum(part, second)
    if np.isnan(value):
        return None
    positions = [part.position[key] for key in weights]
    w = np.array(list(weights.values()))
    variance = w @ part.covariance[np.ix_(positions, positions)] @ w
    error = float(np.sqrt(np.maximum(variance, 0.0)))
    pulls = w @ part.pulls[positions]
    return UnitValue(value, error, pulls, part.ids)


def _sum(part: Part, weights: Mapping[Key, float]) -> float:
    total = 0.0
    for key, weight in weights.items():
        total += weight * (part.aucs[part.position[key]] - 0.5)
    return float(total)


class PairTests:
    """Tests of pairs of rows on the same candidates; ``margin``: the difference that is tested
    against.

    What is picked on the other folds is unbiased, but picks of different folds depend on each
    other, and where no attack or sign is clearly the strongest the mean can be far too low: without
    any leak, for one row in ten of six seeds by more than its interval. So the lower row's plain
    maximum, too high if anything, must be lower than the other row with significance, too
    (docs/method.md#worst-case).
    """

    def __init__(
        self, parts: Sequence[Part], rivals: Mapping[str, Rival], margin: float = 0.0
    ) -> None:
        self._parts = parts
        self._rivals = rivals
        self._margin = margin
        self._differences: dict[Pair, Estimate | None] = {}
        self._tests: dict[Pair, tuple[float, float]] = {}

    def difference(self, pair: Pair) -> Estimate | None:
        """Return the first minus the second; None where no unit has both."""
        if pair not in self._differences:
            first = self._rivals[pair[0]].picked
            second = self._rivals[pair[1]].picked
            self._differences[pair] = difference(self._parts, first, second)
        return self._differences[pair]

    def test(self, pair: Pair) -> tuple[float, float]:
        """Return the mean difference minus the margin, and its p-value; (0, 1) where no unit has
        both.
        """
        if pair not in self._tests:
            self._tests[pair] = self._test(pair)
        return self._tests[pair]

    def _test(self, pair: Pair) -> tuple[float, float]:
        picked = self.difference(pair)
        if picked is None:
            return 0.0, 1.0
        mean = picked.mean - self._margin
        first = self._rivals[pair[0]]
        second = self._rivals[pair[1]]
        if mean < 0:
            guard = difference(self._parts, first.plain, second.picked)
        else:
            guard = difference(self._parts, first.picked, second.plain)
        if guard is None or (guard.mean - self._margin) * np.sign(mean) <= 0:
            return mean, 1.0
        p_value = max(picked.p_value(self._margin), guard.p_value(self._margin))
        return mean, p_value

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
