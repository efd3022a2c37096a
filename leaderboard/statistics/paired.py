"""Weighted sums of AUCs minus each other on the same candidates, with their errors and tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from fedbench.core.metrics import Interval
from fedbench.core.metrics.intervals import LEVEL
from fedbench.leaderboard.statistics.intervals import Estimates, holm
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
    """One side of a comparison: what is ``picked`` on other folds, and its ``plain`` maximum over
    attacks and signs.
    """

    picked: Weights
    plain: Weights


class PairTests:
    """Every row minus every other on the same candidates; ``margin``: the difference that is tested
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
        self._at, n = {label: i for i, label in enumerate(rivals)}, len(rivals)
        self._found = paired(
            parts, [*(r.picked for r in rivals.values()), *(r.plain for r in rivals.values())]
        )
        means, p_values = (
            x.reshape(2 * n, 2 * n)
            for x in (self._found.mean - margin, self._found.p_values(margin))
        )
        lower = means[:n, :n] < 0
        guard, p_guard = (np.where(lower, x[n:, :n], x[:n, n:]) for x in (means, p_values))
        agree = np.where(lower, guard < 0, guard > 0)
        self._means = np.nan_to_num(means[:n, :n])
        self._p_values = np.where(agree, np.fmax(p_values[:n, :n], p_guard), 1.0)

    def test(self, one: str, other: str) -> tuple[float, float]:
        """(mean difference minus the margin, p-value); (0, 1) where no unit has both."""
        at = self._at[one], self._at[other]
        return float(self._means[at]), float(self._p_values[at])

    def among(self, labels: Sequence[str]) -> Tests:
        """Of all pairs of these."""
        return {pair: self.test(*pair) for pair in combinations(labels, 2)}

    def interval(self, one: str, other: str) -> Interval | None:
        """Of the first minus the second; None where no unit has both."""
        return self._found.interval(self._place(one, other))

    def deviation(self, one: str, other: str) -> float:
        """Standard deviation of that difference from seed to seed; NaN with fewer than two."""
        seeds, _, error = (found[self._place(one, other)] for found in self._found.of_seeds)
        return float(error * np.sqrt(seeds))

    def _place(self, one: str, other: str) -> int:
        return 2 * len(self._at) * self._at[one] + self._at[other]


def paired(parts: Sequence[Part], sides: Sequence[Weights]) -> Estimates:
    """Each of S weighted sums of AUCs minus each other one: S x S statistics, on the units that
    have both.

    A difference of two sums has the variance G[a, a] + G[b, b] - 2 G[a, b], where G = W C W' is the
    covariance of all sums of a part; and so have the pulls that targets of a seed have in common,
    with G the products of the pulls themselves.
    """
    units = list(dict.fromkeys(part.unit for part in parts))
    n, values, variances = np.zeros((3, len(units), len(sides), len(sides)))
    made = [(units.index(part.unit), part.ids, *_sums(part, sides)) for part in parts]
    for u, _, sums, products, _ in made:
        differences = sums[:, None] - sums[None, :]
        known = ~np.isnan(differences)
        n[u] += known
        values[u] += np.where(known, differences, 0.0)
        variances[u] += np.where(known, np.maximum(_of_differences(products), 0.0), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        values, variances = values / n, variances / n**2
    shared = np.zeros((len(sides), len(sides)))
    for (u, ids, sums, _, pulls), (v, other_ids, other_sums, _, other_pulls) in combinations(
        made, 2
    ):
        if u != v and units[u][0] == units[v][0]:
            _, at, other_at = np.intersect1d(ids, other_ids, return_indices=True)
            both = (n[u] * n[v] > 0) & ~np.isnan(
                sums[:, None] + sums[None, :] + other_sums[:, None] + other_sums[None, :]
            )
            product = _of_differences(pulls[:, at] @ other_pulls[:, other_at].T)
            shared += np.where(both, 2 * product / np.maximum(n[u] * n[v], 1), 0.0)
    flat = len(units), len(sides) ** 2
    return Estimates(
        np.array([seed for seed, _ in units]),
        values.reshape(flat),
        variances.reshape(flat),
        shared.ravel(),
    )


def _sums(part: Part, sides: Sequence[Weights]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(sums [S], NaN where a side lacks an AUC of the part, their covariance [S, S], their pulls
    [S, n]).
    """
    weights = np.zeros((len(sides), len(part.at)))
    lacking = np.zeros(len(sides), bool)
    for s, side in enumerate(sides):
        own = side.get(part.fold)
        lacking[s] = (
            own is None
            or not own.keys() <= part.at.keys()
            or (bool(own) and bool(np.isnan(part.aucs).any()))
        )
        for key, w in {} if own is None or lacking[s] else own.items():
            weights[s, part.at[key]] = w
    used = weights.any(axis=0)
    weights = weights[:, used]
    sums = np.where(lacking, np.nan, weights @ (part.aucs[used] - 0.5))
    return (
        sums,
        weights @ part.covariance[np.ix_(used, used)] @ weights.T,
        weights @ part.pulls[used],
    )


def _of_differences(products: np.ndarray) -> np.ndarray:
    """[S, S]: of the products [S, S] of vectors a and b, those of all differences: aa' + bb' - ab'
    - ba'.
    """
    own = np.diag(products)
    return np.asarray(own[:, None] + own[None, :] - products - products.T)


def ordered(tests: Tests) -> list[Pair]:
    """(lower, higher): the pairs that differ with significance where all are tested together
    (Holm).
    """
    adjusted = holm({pair: p for pair, (_, p) in tests.items()})
    different = [
        (pair, mean)
        for pair, (mean, _) in tests.items()
        if adjusted[pair] <= 1 - LEVEL and mean != 0
    ]
    return [pair if mean < 0 else pair[::-1] for pair, mean in different]


def rank_ranges(labels: Sequence[str], tests: Tests) -> dict[str, tuple[int, int]]:
    """Label -> (best, worst) rank that the ``tests`` of all pairs leave open, 1 being the lowest
    value.

    Rows that are significantly better rank before a row, significantly worse ones behind it, the
    others on either side: with 95 % confidence all true ranks lie within their ranges (Al Mohamad
    et al., Statistica Neerlandica 2022).
    """
    pairs = ordered(tests)
    better, worse = (Counter(pair[side] for pair in pairs) for side in (1, 0))
    return {label: (1 + better[label], len(labels) - worse[label]) for label in labels}
