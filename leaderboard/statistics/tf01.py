"""TF01: the true-positive rate at a false-positive rate of 0.1 % from several audited units, with
an asymmetric 95 % interval.

Units have their own scales and tails. Where each has 999 non-members, nothing but ranks is compared
between them: the threshold of a unit is its own j-th largest non-member, with an expected FPR of j
/ (N + 1) for all scores (conformal prediction; Vovk, Gammerman & Shafer 2005, ch. 2). Smaller units
are *aligned*: their scores are standardised by the mean and deviation of their own non-members, a
non-member by those of the others, and one threshold judges all of them: its FPR is 0.1 % over all
units together.

No rate is drawn out to an FPR that is not attained, and no shape of the ROC is assumed but that it
does not fall: the limits are of ranks (:meth:`Ranks.limits`). ``python tests/benchmarks/tf01.py``
prints bias and coverage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import betaincinv, pdtr

from fedbench.core.metrics import Interval
from fedbench.core.metrics.roc import TF01_FPR
from fedbench.core.numerics.rng import numpy_rng

MAX_FPR = 0.05
FEWEST = 2.0  # expected false positives of all units together
DRAWS = 1000
ENDS = (0.025, 0.975)
# non-members of aligned units at 0.1 %: the largest of them is the threshold
ALIGNED_TOGETHER = 999
ALIGNED_OF_ONE = 30  # non-members of an aligned unit: its mean and deviation are to be known
ALIGNED_SEEDS = 3  # with fewer it does not show how far these differ
# score of an outlier where all others are equal; finite, so that it can be compared
_FARTHEST = 1e300


@dataclass(frozen=True)
class Sample:
    """One audited unit (seed, target): scores on a scale of its own, higher for members."""

    seed: int
    member: np.ndarray
    """[m] float, scores of the members"""
    nonmember: np.ndarray
    """[n] float, scores of the non-members"""
    ids: np.ndarray
    """[n] int: which samples the non-members are; one of several targets of a seed has one id in
    all of them
    """

    def signed(self, sign: int) -> Sample:
        """With ``sign`` -1: of scores that are lower for members."""
        return self if sign > 0 else Sample(self.seed, -self.member, -self.nonmember, self.ids)

    @cached_property
    def aligned(self) -> Sample:
        """On the common scale: mean 0 and deviation 1 of its own non-members, of which there must
        be three.
        """
        largest = np.abs(self.nonmember).max() or 1.0  # squares must not overflow
        member, x = (np.asarray(of, np.float64) / largest for of in (self.member, self.nonmember))
        n, mean = len(x), x.mean()
        centred = x - mean
        squares = (centred**2).sum()
        # without each one, as the mean
        variance = np.maximum((squares - centred**2 * n / (n - 1)) / (n - 2), 0.0)
        rounding = max(1e-20 * (x**2).sum(), 1e-14 * squares) / n
        others = _standardised(centred + centred / (n - 1), variance, rounding)
        return Sample(
            self.seed,
            _standardised(member - mean, np.array(squares / (n - 1)), rounding),
            others,
            self.ids,
        )


def _standardised(away: np.ndarray, variance: np.ndarray, rounding: float) -> np.ndarray:
    """Distances in standard deviations; +-1e300 where nothing varies but the distance is not 0."""
    flat = np.broadcast_to(variance <= rounding, away.shape)
    found = np.divide(away, np.sqrt(variance), out=np.sign(away) * _FARTHEST, where=~flat)
    return np.where(flat & (away**2 <= rounding), 0.0, np.clip(found, -_FARTHEST, _FARTHEST))


# -- rates as a board shows them -------------------------------------------------------------------


def tf01_of(samples: Sequence[Sample], n: int | None = None) -> Interval | None:
    """TF01 in percent over ``n`` units (by default as many as samples), by thresholds of their own
    or else by one for all of them; None with too few non-members.
    """
    usable = [s for s in samples if len(s.nonmember) and len(s.member)]
    found = pooled_tpr(usable) or aligned_tpr(usable)
    return _interval(found, usable, len(samples) if n is None else n) if found else None


def _interval(found: Pooled, samples: Sequence[Sample], n: int) -> Interval:
    low, high = 100 * found.low, 100 * found.high
    several = len({s.seed for s in samples}) > 1
    return Interval(100 * found.value, (high - low) / 2, n, between=several, ends=(low, high))


def rates_elsewhere(
    samples: Sequence[Sample], folds: Sequence[int], aligned: bool
) -> dict[int, float]:
    """Fold -> TF01 as a fraction on the samples of all other folds, at as low a rate as they have
    non-members for. ``folds``: that of each sample.
    """
    there = [
        (s, fold)
        for s, fold in zip(samples, folds, strict=True)
        if len(s.nonmember) and len(s.member)
    ]
    rate = aligned_rate if aligned else low_rate
    return {fold: rate([s for s, other in there if other != fold]) for fold in dict.fromkeys(folds)}


def lowest_fpr(sizes: Sequence[int]) -> float:
    """The smallest FPR of at least 0.1 % that each of some units of so many non-members attains."""
    return max([TF01_FPR, *(1 / (n + 1) for n in sizes)])


def low_rate(samples: Sequence[Sample]) -> float:
    """TF01 as a fraction, at as low a false-positive rate as every unit has non-members for; 0 with
    hardly any.
    """
    lowest = lowest_fpr([len(s.nonmember) for s in samples]) if samples else 1.0
    return pooled_value(samples, lowest) if lowest <= MAX_FPR else 0.0


def aligned_rate(samples: Sequence[Sample], fpr: float = TF01_FPR) -> float:
    """The same of aligned units; 0 of none with enough non-members to be aligned."""
    usable = [s.aligned for s in samples if len(s.nonmember) >= ALIGNED_OF_ONE]
    if not usable:
        return 0.0
    others = np.sort(np.concatenate([unit.nonmember for unit in usable]))[::-1]
    one = np.zeros(1, int)  # one threshold for all: what only the interval needs is not computed
    return Ranks([np.concatenate([unit.member for unit in usable])], [others], one, one, fpr).value


def enough(sizes: Sequence[int], fpr: float = TF01_FPR) -> bool:
    """Whether units of so many non-members can have thresholds of their own: 999 each and 1,999
    together at 0.1 %.
    """
    return bool(sizes) and fpr * (sum(sizes) + 1) >= FEWEST and fpr * (min(sizes) + 1) >= 1


def alignable(sizes: Sequence[int], seeds: int, fpr: float = TF01_FPR) -> bool:
    """Whether units of so many non-members, of so many seeds, can be judged together: 999 in all
    and 30 each at 0.1 %.
    """
    return seeds >= ALIGNED_SEEDS and fpr * (sum(sizes) + 1) >= 1 and min(sizes) >= ALIGNED_OF_ONE


def pooled_tpr(units: Sequence[Sample], fpr: float = TF01_FPR) -> Pooled | None:
    """Mean TPR at ``fpr`` over the members of ``units``; None with too few non-members
    (:func:`enough`).

    Invariant to any increasing transformation of a unit's scores.
    """
    return (
        _own(units, fpr).estimate()
        if enough([len(unit.nonmember) for unit in units], fpr)
        else None
    )


def pooled_value(units: Sequence[Sample], fpr: float = TF01_FPR) -> float:
    """The same number without its interval, at the smallest FPR of each unit where that is above
    ``fpr``; 0 of nothing.
    """
    return _own(units, fpr).value if units else 0.0


def aligned_tpr(units: Sequence[Sample], fpr: float = TF01_FPR) -> Pooled | None:
    """Share of all members above the one threshold of ``fpr``; None with too few non-members
    (:func:`alignable`).

    Invariant to a change of location and scale of a unit's scores.
    """
    sizes, seeds = [len(unit.nonmember) for unit in units], {unit.seed for unit in units}
    return _aligned(units, fpr).estimate() if alignable(sizes, len(seeds), fpr) else None


# -- estimates -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pooled:
    """Fractions; 0 <= low <= value <= high <= 1."""

    value: float
    low: float
    high: float


def _own(units: Sequence[Sample], fpr: float) -> Ranks:
    """Thresholds of the units' own; targets of a seed with non-members in common are one block."""
    seeds = _places([unit.seed for unit in units])
    blocks = np.arange(len(units))
    for seed in range(seeds.max() + 1):
        ids = np.concatenate([unit.ids for unit, s in zip(units, seeds, strict=True) if s == seed])
        if len(np.unique(ids)) < len(ids):
            blocks[seeds == seed] = len(units) + seed
    return Ranks(
        [u.member for u in units],
        [np.sort(u.nonmember)[::-1] for u in units],
        seeds,
        _places(blocks),
        fpr,
    )


def _aligned(units: Sequence[Sample], fpr: float) -> Ranks:
    """One threshold for all; a non-member is the same where seed and id are."""
    unit_of = np.repeat(np.arange(len(units)), [len(u.nonmember) for u in units])
    seeds, ids = _places([u.seed for u in units]), np.concatenate([u.ids for u in units])
    others = np.concatenate([u.aligned.nonmember for u in units])
    falling = np.argsort(-others, kind="stable")
    top = falling[: max(2, round(4 * fpr * (len(others) + 1)))]
    same = _places(seeds[unit_of] * (1 + np.ptp(ids)) + ids - ids.min())
    clustered = max(_dispersion(of, top) for of in (same, unit_of, seeds[unit_of]))
    members, ordered = [u.aligned.member for u in units], others[falling]
    return Ranks(
        members, [ordered] * len(units), seeds, np.zeros(len(units), int), fpr, max(1.0, clustered)
    )


def _places(values: Sequence[int] | np.ndarray) -> np.ndarray:
    """[n] int: which of the distinct values each is."""
    return np.unique(values, return_inverse=True)[1]


def _dispersion(groups: np.ndarray, top: np.ndarray) -> float:
    """Variance over mean of how many of the ``top`` each group has: 1 where they fall
    independently.
    """
    times = np.bincount(groups[top], minlength=groups.max() + 1)
    return float(times.var(ddof=1) / times.mean()) if len(times) > 1 else 1.0


@dataclass(frozen=True)
class Ranks:
    """Members above thresholds that are ranks among non-members.

    ``members`` and ``others``: of each of U units, the others falling; ``seeds`` and ``blocks``
    [U]: thresholds of one block have all their noise in common, those of others none;
    ``clustered``: variance of the number of non-members above a threshold, over that of independent
    ones.
    """

    members: Sequence[np.ndarray]
    others: Sequence[np.ndarray]
    seeds: np.ndarray
    blocks: np.ndarray
    fpr: float
    clustered: float = 1.0

    @cached_property
    def sizes(self) -> np.ndarray:
        """[U] members."""
        return np.array([len(member) for member in self.members])

    @cached_property
    def hits(self) -> np.ndarray:
        """[U] members above rank ``fpr`` (N + 1), at least 1, interpolated between whole ranks."""
        found = []
        for unit, others in enumerate(self.others):
            rank = max(1.0, self.fpr * (len(others) + 1))
            whole = int(rank + 1e-9)  # 1 / 49 * 49 is less than 1
            at, more = self._above(unit, np.array([whole, whole + 1]))
            found.append(at + max(rank - whole, 0.0) * (more - at))
        return np.array(found)

    @property
    def value(self) -> float:
        """TPR of thresholds with this expected FPR, a fraction."""
        return float(self.hits.sum() / self.sizes.sum())

    def estimate(self) -> Pooled:
        """With its limits."""
        low, high = self.limits()
        return Pooled(self.value, min(low, self.value), min(max(high, self.value), 1.0))

    def _above(self, unit: int, ranks: np.ndarray) -> np.ndarray:
        """Members of a unit above its non-members of these ranks, of equal scores none; above rank
        0 none, above N + 1 all.
        """
        member, others = np.sort(self.members[unit]), self.others[unit][: ranks.max()]
        counts = np.array(
            [0, *(len(member) - np.searchsorted(member, others, "right")), len(member)]
        )
        return np.asarray(counts[np.minimum(ranks, len(counts) - 1)])

    def limits(self) -> tuple[float, float]:
        """Of any ROC that does not fall.

        J, the number of a unit's non-members above its true threshold, is Poisson with mean ``fpr``
        N, so that the TPR there is between those of ranks J and J + 1, and unknown below the first.
        Where a ROC is steep, units with many hits have a low threshold and so a small J: the lower
        limit gives them the smallest. Hits are binomial (Clopper & Pearson 1934); what differs
        between seeds or units beyond that is added.
        """
        rng = numpy_rng(0, "limits of a pooled rate")
        *blocks, of_hits = (
            rng.permutation((np.arange(DRAWS) + 0.5) / DRAWS) for _ in range(self.blocks.max() + 2)
        )
        drawn = np.stack(blocks, axis=1)
        shares = np.bincount(self.blocks, self.hits) / np.bincount(self.blocks, self.sizes)
        opposed = np.sort(drawn, axis=1)[:, np.argsort(np.argsort(-shares, kind="stable"))]
        low = sum(self._drawn(unit, opposed[:, block], 0) for unit, block in enumerate(self.blocks))
        high = sum(self._drawn(unit, drawn[:, block], 1) for unit, block in enumerate(self.blocks))
        total, spread = (
            self.sizes.sum(),
            np.exp(np.sqrt(self._excess()) * rng.standard_normal(DRAWS)),
        )
        rates = (
            np.where(low > 0, betaincinv(np.maximum(low, 1), total - low + 1, of_hits), 0.0),
            np.where(high < total, betaincinv(high + 1, np.maximum(total - high, 1), of_hits), 1.0),
        )
        ends = [float(np.quantile(of * spread, end)) for of, end in zip(rates, ENDS, strict=True)]
        return ends[0], ends[1]

    def _drawn(self, unit: int, drawn: np.ndarray, more: int) -> np.ndarray:
        """[DRAWS] members of a unit above ranks J + ``more``, of uniform numbers."""
        mean = self.fpr * len(self.others[unit]) / self.clustered
        number = np.searchsorted(pdtr(np.arange(mean + 9 * np.sqrt(mean) + 9), mean), drawn)
        return self._above(unit, (self.clustered * (number + more)).astype(int))

    def _excess(self) -> float:
        """Relative variance of the mean TPR that comes from differences between seeds, or between
        units where that is more, beyond binomial hits; 0 below 3 of them.
        """
        if not 0 < self.value < 1:
            return 0.0
        found = [0.0]
        for groups in (self.seeds, np.arange(len(self.sizes))):
            n, hits = np.bincount(groups, self.sizes), np.bincount(groups, self.hits)
            if len(n) > 2:
                excess = (hits / n).var(ddof=1) - np.mean(self.value * (1 - self.value) / n)
                found.append(excess / len(n) / self.value**2)
        return float(max(found))
