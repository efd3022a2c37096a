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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy import ndarray
from scipy.special import betaincinv, pdtr

from fedbench.core.metrics import Interval
from fedbench.core.metrics.roc import TF01_FPR
from fedbench.core.numerics.rng import numpy_rng

MAX_FPR = 0.05
FEWEST = 2.0  # expected false positives of all units together
DRAWS = 1000
ENDS = (0.025, 0.975)
ALIGNED_OF_ONE = 30  # non-members of an aligned unit: its mean and deviation are to be known
ALIGNED_SEEDS = 3  # with fewer it does not show how far these differ
# score of an outlier where all others are equal; finite, so that it can be compared
_FARTHEST = 1e300


@dataclass(frozen=True)
class Sample:
    """Audited unit (seed, target): scores on a scale of its own, higher for members."""

    seed: int
    member: ndarray
    """[m] float, scores of the members"""
    nonmember: ndarray
    """[n] float, scores of the non-members"""
    ids: ndarray
    """[n] int: which samples the non-members are; one of several targets of a seed has one id in
    all of them
    """

    def signed(self, sign: int) -> Sample:
        """Return the unit, with ``sign`` -1 that of scores that are lower for members."""
        return self if sign > 0 else self._turned

    @cached_property
    def _turned(self) -> Sample:
        return Sample(self.seed, -self.member, -self.nonmember, self.ids)

    @cached_property
    def aligned(self) -> Sample:
        """Unit on the common scale: mean 0 and deviation 1 of its own non-members, of which there
        must be three.
        """
        largest = np.abs(self.nonmember).max() or 1.0  # squares must not overflow
        member = np.asarray(self.member, np.float64) / largest
        x = np.asarray(self.nonmember, np.float64) / largest
        n = len(x)
        mean = x.mean()
        centred = x - mean
        squares = (centred**2).sum()
        # variance without each one, as the mean
        without_each = squares - centred**2 * n / (n - 1)
        variance = np.maximum(without_each / (n - 2), 0.0)
        rounding = max(1e-20 * (x**2).sum(), 1e-14 * squares) / n
        members = _standardised(member - mean, np.array(squares / (n - 1)), rounding)
        nonmembers = _standardised(centred + centred / (n - 1), variance, rounding)
        return Sample(self.seed, members, nonmembers, self.ids)


def _standardised(distance: ndarray, variance: ndarray, rounding: float) -> ndarray:
    """Distances in standard deviations; +-1e300 where nothing varies but the distance is not 0."""
    flat = np.broadcast_to(variance <= rounding, distance.shape)
    farthest = np.sign(distance) * _FARTHEST
    scaled = np.divide(distance, np.sqrt(variance), out=farthest, where=~flat)
    scaled = np.clip(scaled, -_FARTHEST, _FARTHEST)
    no_distance = flat & (distance**2 <= rounding)
    return np.where(no_distance, 0.0, scaled)


# -- rates as a board shows them -------------------------------------------------------------------


def tf01_of(samples: Sequence[Sample], n: int | None = None) -> Interval | None:
    """TF01 in percent over ``n`` units (by default as many as samples), by thresholds of their own
    or else by one for all of them; None with too few non-members.
    """
    ranks = ranks_of(samples)
    if ranks is None:
        return None
    low, high = (100 * limit for limit in ranks.limits)
    several = len({s.seed for s in samples}) > 1
    if n is None:
        n = len(samples)
    return Interval(100 * ranks.value, (high - low) / 2, n, between=several, ends=(low, high))


def ranks_of(units: Sequence[Sample]) -> Ranks | None:
    """Thresholds at 0.1 %, which no increasing transformation of a unit's scores changes or, of
    smaller units, no change of their location and scale; None with too few non-members.
    """
    if not has_rate(units):
        return None
    if enough([len(unit.nonmember) for unit in units]):
        return _own_thresholds(units, TF01_FPR)
    return _common_threshold(units)


def has_rate(units: Sequence[Sample]) -> bool:
    """Tell whether units have enough non-members for TF01."""
    sizes = [len(unit.nonmember) for unit in units]
    return enough(sizes) or alignable(sizes, len({unit.seed for unit in units}))


def enough(sizes: Sequence[int]) -> bool:
    """Tell whether units of so many non-members can have thresholds of their own: 999 each and
    1,999 together.
    """
    if not sizes:
        return False
    together = TF01_FPR * (sum(sizes) + 1)
    smallest = TF01_FPR * (min(sizes) + 1)
    return together >= FEWEST and smallest >= 1


def alignable(sizes: Sequence[int], seeds: int) -> bool:
    """Tell whether units of so many non-members, of so many seeds, can be judged together: 999 in
    all and 30 each.
    """
    together = TF01_FPR * (sum(sizes) + 1) >= 1
    return seeds >= ALIGNED_SEEDS and together and min(sizes) >= ALIGNED_OF_ONE


def low_rate(units: Sequence[Sample]) -> float:
    """TF01 as a fraction, at as low a false-positive rate as every unit has non-members for; 0 with
    hardly any.
    """
    fewest = min((len(unit.nonmember) for unit in units), default=0)
    fpr = max(TF01_FPR, 1 / (fewest + 1))
    return _own_thresholds(units, fpr).value if fpr <= MAX_FPR else 0.0


def aligned_rate(units: Sequence[Sample]) -> float:
    """TF01 of aligned units as a fraction; 0 without one that has enough non-members to be
    aligned.
    """
    aligned = [unit.aligned for unit in units if len(unit.nonmember) >= ALIGNED_OF_ONE]
    if not aligned:
        return 0.0
    members = np.concatenate([unit.member for unit in aligned])
    nonmembers = np.concatenate([unit.nonmember for unit in aligned])
    n = len(nonmembers)
    most = min(int(TF01_FPR * (n + 1)) + 2, n)  # as many as can be thresholds
    largest = np.partition(nonmembers, n - most)[n - most :]
    return _hits(members, _falling(largest), n, TF01_FPR) / len(members)


# -- estimates -------------------------------------------------------------------------------------


def _own_thresholds(units: Sequence[Sample], fpr: float) -> Ranks:
    """Thresholds of the units' own; targets of a seed with non-members in common are one block."""
    seeds = _numbered([unit.seed for unit in units])
    blocks = np.arange(len(units))
    for seed in range(seeds.max() + 1):
        of_seed = np.flatnonzero(seeds == seed).tolist()
        ids = np.concatenate([units[i].ids for i in of_seed])
        if len(np.unique(ids)) < len(ids):
            blocks[of_seed] = len(units) + seed
    members = [unit.member for unit in units]
    nonmembers = [_falling(unit.nonmember) for unit in units]
    return Ranks(members, nonmembers, seeds, _numbered(blocks), fpr)


def _common_threshold(units: Sequence[Sample]) -> Ranks:
    """Set one threshold for all; a non-member is the same where seed and id are."""
    unit_of = np.repeat(np.arange(len(units)), [len(unit.nonmember) for unit in units])
    seeds = _numbered([unit.seed for unit in units])
    ids = np.concatenate([unit.ids for unit in units])
    nonmembers = np.concatenate([unit.aligned.nonmember for unit in units])
    falling = np.argsort(-nonmembers, kind="stable")
    top = falling[: max(2, round(4 * TF01_FPR * (len(nonmembers) + 1)))]
    sample_of = _numbered(seeds[unit_of] * (1 + np.ptp(ids)) + ids - ids.min())
    groupings = sample_of, unit_of, seeds[unit_of]
    clustered = max(1.0, *(_dispersion(groups, top) for groups in groupings))
    members = [unit.aligned.member for unit in units]
    ordered = [nonmembers[falling]] * len(units)
    blocks = np.zeros(len(units), int)
    return Ranks(members, ordered, seeds, blocks, TF01_FPR, clustered)


def _numbered(values: Sequence[int] | ndarray) -> ndarray:
    """[n] int: which of the distinct values each is."""
    return np.unique(values, return_inverse=True)[1]


def _falling(values: ndarray) -> ndarray:
    return np.sort(values)[::-1]


def _dispersion(groups: ndarray, top: ndarray) -> float:
    """Variance over mean of how many of the ``top`` each group has: 1 where they fall
    independently.
    """
    counts = np.bincount(groups[top], minlength=groups.max() + 1)
    if len(counts) < 2:
        return 1.0
    return float(counts.var(ddof=1) / counts.mean())


def _hits(members: ndarray, nonmembers: ndarray, n: int, fpr: float) -> float:
    """Members above rank ``fpr`` (n + 1), at least 1, of ``n`` non-members, of which the largest
    are given, falling; interpolated between whole ranks.
    """
    rank = max(1.0, fpr * (n + 1))
    rank_below = int(rank + 1e-9)  # 1 / 49 * 49 is less than 1
    above, above_next = _above(members, nonmembers, np.array([rank_below, rank_below + 1]))
    return float(above + max(rank - rank_below, 0.0) * (above_next - above))


def _above(members: ndarray, nonmembers: ndarray, ranks: ndarray) -> ndarray:
    """Count members above the falling non-members of these ranks, of equal scores none; above rank
    0 none, above N + 1 all.
    """
    thresholds = nonmembers[: ranks.max()]
    ascending = np.sort(members[members > thresholds.min(initial=np.inf)])
    above = len(ascending) - np.searchsorted(ascending, thresholds, "right")
    counts = np.array([0, *above, len(members)])
    return np.asarray(counts[np.minimum(ranks, len(counts) - 1)])


@dataclass(frozen=True)
class Ranks:
    """Members above thresholds that are ranks among non-members, of each of U units."""

    members: Sequence[ndarray]
    """scores of each unit's members"""
    nonmembers: Sequence[ndarray]
    """scores of each unit's non-members, falling"""
    seeds: ndarray
    """[U]"""
    blocks: ndarray
    """[U] thresholds of one block have all their noise in common, those of others none"""
    fpr: float
    clustered: float = 1.0
    """variance of the number of non-members above a threshold, over that of independent ones"""

    @cached_property
    def sizes(self) -> ndarray:
        """[U] members."""
        return np.array([len(member) for member in self.members])

    @cached_property
    def hits(self) -> ndarray:
        """[U] members above rank ``fpr`` (N + 1), at least 1, interpolated between whole ranks."""
        both = zip(self.members, self.nonmembers, strict=True)
        return np.array([_hits(m, others, len(others), self.fpr) for m, others in both])

    @property
    def value(self) -> float:
        """TPR of thresholds with this expected FPR, a fraction."""
        return float(self.hits.sum() / self.sizes.sum())

    @cached_property
    def limits(self) -> tuple[float, float]:
        """95 % limits around the value, of any ROC that does not fall.

        J, the number of a unit's non-members above its true threshold, is Poisson with mean ``fpr``
        N, so that the TPR there is between those of ranks J and J + 1, and unknown below the first.
        Where a ROC is steep, units with many hits have a low threshold and so a small J: the lower
        limit gives them the smallest. Hits are binomial (Clopper & Pearson 1934); what differs
        between seeds or units beyond that is added.
        """
        rng = numpy_rng(0, "limits of a pooled rate")
        levels = (np.arange(DRAWS) + 0.5) / DRAWS
        of_blocks = [rng.permutation(levels) for _ in range(self.blocks.max() + 1)]
        of_hits = rng.permutation(levels)
        spread = np.exp(np.sqrt(self._excess()) * rng.standard_normal(DRAWS))
        drawn = np.stack(of_blocks, axis=1)
        hit_rates = np.bincount(self.blocks, self.hits) / np.bincount(self.blocks, self.sizes)
        falling = np.argsort(np.argsort(-hit_rates, kind="stable"))
        opposed = np.sort(drawn, axis=1)[:, falling]
        low, high = np.zeros((2, DRAWS), int)
        for members, nonmembers, block in self._by_threshold():
            low += self._drawn(members, nonmembers, opposed[:, block], 0)
            high += self._drawn(members, nonmembers, drawn[:, block], 1)
        n = self.sizes.sum()
        lower = np.where(low > 0, betaincinv(np.maximum(low, 1), n - low + 1, of_hits), 0.0)
        upper = np.where(high < n, betaincinv(high + 1, np.maximum(n - high, 1), of_hits), 1.0)
        least = float(np.quantile(lower * spread, ENDS[0]))
        most = float(np.quantile(upper * spread, ENDS[1]))
        return min(least, self.value), min(max(most, self.value), 1.0)

    def _by_threshold(self) -> Iterator[tuple[ndarray, ndarray, int]]:
        """Yield (members, non-members falling, block) of the units that share a threshold, which
        are one.
        """
        alike: dict[tuple[int, int], list[int]] = {}
        for unit, block in enumerate(self.blocks.tolist()):
            alike.setdefault((id(self.nonmembers[unit]), block), []).append(unit)
        for (_, block), units in alike.items():
            members = np.concatenate([self.members[unit] for unit in units])
            yield members, self.nonmembers[units[0]], block

    def _drawn(self, members: ndarray, nonmembers: ndarray, levels: ndarray, more: int) -> ndarray:
        """[DRAWS] members above the falling non-members of ranks J + ``more``, J at these levels of
        its distribution.
        """
        mean = self.fpr * len(nonmembers) / self.clustered
        counts = np.arange(mean + 9 * np.sqrt(mean) + 9)
        number = np.searchsorted(pdtr(counts, mean), levels)
        ranks = self.clustered * (number + more)
        return _above(members, nonmembers, ranks.astype(int))

    def _excess(self) -> float:
        """Relative variance of the mean TPR that comes from differences between seeds, or between
        units where that is more, beyond binomial hits; 0 below 3 of them.
        """
        if not 0 < self.value < 1:
            return 0.0
        largest = 0.0
        for groups in (self.seeds, np.arange(len(self.sizes))):
            members = np.bincount(groups, self.sizes)
            hits = np.bincount(groups, self.hits)
            if len(members) > 2:
                binomial = np.mean(self.value * (1 - self.value) / members)
                excess = (hits / members).var(ddof=1) - binomial
                largest = max(largest, float(excess / len(members) / self.value**2))
        return largest
