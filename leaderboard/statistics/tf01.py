"""TF01: the true-positive rate at a false-positive rate of 0.1 % from several audited units, with an asymmetric 95 %
interval.

Units have their own scales and tails and too few non-members for 0.1 %, so nothing but ranks is compared between
them: in each unit the threshold is its own j-th largest non-member: its expected FPR is j / (N + 1) for all
scores (conformal prediction; Vovk, Gammerman & Shafer 2005, ch. 2). Where that is above the wanted FPR, a straight
line leads from there to it, in the logit of the TPR over the logarithm of the FPR.

Units with fewer than 333 non-members are *aligned*: their scores are standardised by the mean and deviation of their
own non-members, a non-member by those of the others, and one threshold judges all of them. Without a leak the rate is
right whatever the scores. With one it is biased where the tails of units differ. ``python
tests/benchmarks/tf01.py`` prints bias and coverage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from scipy.special import expit, gammaln, logit
from scipy.stats import beta

from fedbench.core.metrics import Interval
from fedbench.core.metrics.roc import TF01_FPR
from fedbench.core.numerics.rng import numpy_rng

MAX_FPR = 0.05
FEWEST = 2.0  # expected false positives of all units together
FURTHEST = 3.0  # a unit's smallest FPR over the wanted one: how far the line is drawn out
FEWEST_OF_ONE = 333  # non-members of a unit at 0.1 %, by FURTHEST
SPAN = 8  # the slope is that of the chord from the smallest FPR to 8 times that
PRIOR = 8.0  # members' hits behind the prior slope 1 (no leak)
MAX_SLOPE = 3.0
DRAWS = 2000
ENDS = (0.025, 0.975)
ALIGNED_TOGETHER = 999  # non-members of aligned units at 0.1 %: the largest of them is the threshold
ALIGNED_OF_ONE = 30  # non-members of an aligned unit: its mean and deviation are to be known
ALIGNED_SEEDS = 3  # with fewer it does not show how far these differ
TAILS = 0.7  # deviation of log TPR that different tails of aligned units give it, where members are farthest out
_FARTHEST = 1e300  # score of an outlier where all others are equal; finite, so that it can be compared


@dataclass(frozen=True)
class Sample:
    """One audited unit (seed, target): scores on a scale of its own, higher for members."""

    seed: int
    member: np.ndarray
    """[m] float, scores of the members"""
    nonmember: np.ndarray
    """[n] float, scores of the non-members"""
    ids: np.ndarray
    """[n] int: which samples the non-members are; one of several targets of a seed has one id in all of them"""

    def signed(self, sign: int) -> Sample:
        """With ``sign`` -1: of scores that are lower for members."""
        return self if sign > 0 else Sample(self.seed, -self.member, -self.nonmember, self.ids)

    @cached_property
    def aligned(self) -> Sample:
        """On the common scale: mean 0 and deviation 1 of its own non-members, of which there must be three."""
        largest = np.abs(self.nonmember).max() or 1.0  # squares must not overflow
        member, x = (np.asarray(of, np.float64) / largest for of in (self.member, self.nonmember))
        n, mean = len(x), x.mean()
        centred = x - mean
        squares = (centred**2).sum()
        variance = np.maximum((squares - centred**2 * n / (n - 1)) / (n - 2), 0.0)  # without each one, as the mean
        rounding = max(1e-20 * (x**2).sum(), 1e-14 * squares) / n
        others = _standardised(centred + centred / (n - 1), variance, rounding)
        return Sample(self.seed, _standardised(member - mean, np.array(squares / (n - 1)), rounding), others, self.ids)


def _standardised(away: np.ndarray, variance: np.ndarray, rounding: float) -> np.ndarray:
    """Distances in standard deviations; +-1e300 where nothing varies but the distance is not 0."""
    flat = np.broadcast_to(variance <= rounding, away.shape)
    found = np.divide(away, np.sqrt(variance), out=np.sign(away) * _FARTHEST, where=~flat)
    return np.where(flat & (away**2 <= rounding), 0.0, np.clip(found, -_FARTHEST, _FARTHEST))


# -- rates as a board shows them ------------------------------------------------------------------------------------------


def tf01_of(samples: Sequence[Sample], n: int | None = None, aligned: bool = False) -> Interval | None:
    """TF01 in percent over ``n`` units (by default as many as samples); None with too few non-members. ``aligned``:
    by one threshold for all of them."""
    usable = [s for s in samples if len(s.nonmember) and len(s.member)]
    found = (aligned_tpr if aligned else pooled_tpr)(usable, TF01_FPR)
    if found is None:
        return None
    low, high = 100 * found.low, 100 * found.high
    return Interval(100 * found.value, (high - low) / 2, len(samples) if n is None else n, between=True, ends=(low, high))


def rates_elsewhere(samples: Sequence[Sample], folds: Sequence[int], aligned: bool) -> dict[int, float]:
    """Fold -> TF01 as a fraction on the samples of all other folds, at as low a rate as they have non-members for.
    ``folds``: that of each sample."""
    there = [(s, fold) for s, fold in zip(samples, folds, strict=True) if len(s.nonmember) and len(s.member)]
    rate = aligned_rate if aligned else low_rate
    return {fold: rate([s for s, other in there if other != fold]) for fold in dict.fromkeys(folds)}


def low_rate(samples: Sequence[Sample]) -> float:
    """TF01 as a fraction, at as low a false-positive rate as every unit has non-members for; 0 with hardly any."""
    lowest = max((1 / (len(s.nonmember) + 1) for s in samples), default=1.0)
    return pooled_value(samples, max(TF01_FPR, lowest)) if lowest <= MAX_FPR else 0.0


def aligned_rate(samples: Sequence[Sample], fpr: float = TF01_FPR) -> float:
    """The same of aligned units; 0 of none with enough non-members to be aligned."""
    usable = [s for s in samples if len(s.nonmember) >= ALIGNED_OF_ONE]
    total = sum(len(s.nonmember) for s in usable)
    return _merged(usable, max(fpr, 1 / (total + 1))).value() if usable else 0.0


def enough(sizes: Sequence[int], fpr: float = TF01_FPR) -> bool:
    """Whether units of so many non-members can have thresholds of their own: 1,999 together and 333 each at 0.1 %."""
    return bool(sizes) and fpr * (sum(sizes) + 1) >= FEWEST and FURTHEST * fpr * (min(sizes) + 1) >= 1


def alignable(sizes: Sequence[int], seeds: int, fpr: float = TF01_FPR) -> bool:
    """Whether units of so many non-members, of so many seeds, can be judged together: 999 in all and 30 each at 0.1
    %."""
    return seeds >= ALIGNED_SEEDS and fpr * (sum(sizes) + 1) >= 1 and min(sizes) >= ALIGNED_OF_ONE


def pooled_tpr(units: Sequence[Sample], fpr: float = TF01_FPR) -> Pooled | None:
    """Mean TPR at ``fpr`` over the members of ``units``; None with too few non-members (:func:`enough`).

    Invariant to any increasing transformation of a unit's scores.
    """
    return Ranks(units, fpr).estimate() if enough([len(unit.nonmember) for unit in units], fpr) else None


def pooled_value(units: Sequence[Sample], fpr: float = TF01_FPR) -> float:
    """The same number without its interval, however few non-members there are; 0 of nothing."""
    return Ranks(units, fpr).value() if units else 0.0


def aligned_tpr(units: Sequence[Sample], fpr: float = TF01_FPR) -> Pooled | None:
    """Share of all members above the one threshold of ``fpr``; None with too few non-members (:func:`alignable`).

    Invariant to a change of location and scale of a unit's scores.
    """
    sizes, seeds = [len(unit.nonmember) for unit in units], {unit.seed for unit in units}
    return _merged(units, fpr).estimate() if alignable(sizes, len(seeds), fpr) else None


# -- estimates ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pooled:
    """Fractions; 0 <= low <= value <= high <= 1."""

    value: float
    low: float
    high: float


def _highest(unit: Sample, rank: float) -> list[int]:
    """Ids of the non-members down to about rank 4 ``rank``."""
    found: list[int] = unit.ids[np.argsort(-unit.nonmember, kind="stable")[: max(2, round(4 * rank))]].tolist()
    return found


def _above(member: np.ndarray, highest: np.ndarray, rank: float) -> float:
    """Members above the non-member of that rank, interpolated between whole ranks; of equal scores none is above."""
    whole = int(rank)
    hits, more = (float(np.count_nonzero(member > highest[min(r, len(highest)) - 1])) for r in (whole, whole + 1))
    return hits + (rank - whole) * (more - hits)


def _merged(units: Sequence[Sample], fpr: float) -> OneThreshold:
    """All aligned units as one: its non-members are the same where seed and id are."""
    seeds = np.unique([unit.seed for unit in units], return_inverse=True)[1]
    ids = np.concatenate([unit.ids for unit in units])
    of_other, unit_of = (np.repeat(np.arange(len(units)), [len(getattr(u, s)) for u in units]) for s in ("nonmember", "member"))
    ids = seeds[of_other] * (int(ids.max()) - int(ids.min()) + 1) + ids - ids.min()
    member, nonmember = (np.concatenate([getattr(u.aligned, side) for u in units]) for side in ("member", "nonmember"))
    return OneThreshold((Sample(0, member, nonmember, ids),), fpr, unit_of, seeds[unit_of])


@dataclass(frozen=True)
class Ranks:
    """logit T(F) = logit T(f) + b log(F / f) near the thresholds; F of rank j is all but Gamma(j) / (N + 1)."""

    units: Sequence[Sample]
    fpr: float

    @cached_property
    def ranks(self) -> np.ndarray:
        """[U] of each unit's first threshold among its non-members."""
        return np.array([max(1.0, self.fpr * (len(unit.nonmember) + 1)) for unit in self.units])

    @cached_property
    def of_units(self) -> np.ndarray:
        """[U, 2] members of each unit above its first threshold, and above the further one, of SPAN times the rank."""
        found = []
        for unit, rank in zip(self.units, self.ranks, strict=True):
            highest = np.sort(unit.nonmember)[::-1]
            found.append([_above(unit.member, highest, min(r, float(len(highest)))) for r in (rank, SPAN * rank)])
        return np.array(found)

    @cached_property
    def hits(self) -> tuple[float, float]:
        """Of all units together, above the first thresholds and the further ones."""
        near, far = self.of_units.sum(axis=0)
        return float(near), float(far)

    @cached_property
    def members(self) -> int:
        return sum(len(unit.member) for unit in self.units)

    @cached_property
    def place(self) -> tuple[float, float]:
        """(rank, FPR) of the first thresholds, means over members."""
        weights = [len(unit.member) for unit in self.units]
        rates = self.ranks / [len(unit.nonmember) + 1 for unit in self.units]
        return float(np.average(self.ranks, weights=weights)), float(np.average(rates, weights=weights))

    @cached_property
    def concavity(self) -> float:
        """d log T / d log F at the first thresholds."""
        near, far = self.hits
        return float(slope(np.array(near), np.array(far), self.members, self.place[0])[1])

    def value(self) -> float:
        """T(fpr), a fraction."""
        near, far = (np.array(hits) for hits in self.hits)
        return min(float(self._rate(near, far)), 1.0) if near else 0.0

    def estimate(self) -> Pooled:
        """With its interval."""
        value, (low, high) = self.value(), self._limits()
        return Pooled(value, min(low, value), min(max(high, value), 1.0))

    def _rate(self, near: np.ndarray, far: np.ndarray) -> np.ndarray:
        """T(fpr) of so many hits at the first and the further thresholds."""
        rank, first = self.place
        b, a = slope(near, far, self.members, rank)
        share = np.clip(near / self.members, 1e-12, 1 - 1e-12)
        rates: np.ndarray = expit(logit(share) - _log_mean(a, rank) / (1 - share) + b * np.log(self.fpr / first))
        return rates

    def _limits(self) -> tuple[float, float]:
        """Quantiles of T(fpr) under Jeffreys' priors for both counts, thresholds drawn anew, and seeds that differ.

        At zero hits the lower one is 0 and the upper one no lower than the exact one of the first threshold (Clopper
        & Pearson 1934): the wanted rate is below that one's.
        """
        near, far = self.hits
        of_thresholds = self._of_thresholds()
        rng = numpy_rng(0, "limits of a pooled rate")
        normal = rng.standard_normal(DRAWS)
        first_hits = rng.gamma(near + 0.5, size=DRAWS)
        further = first_hits + rng.gamma(max(far - near, 0) + 0.5, size=DRAWS)
        first_hits = first_hits * np.exp(of_thresholds / 2 - normal * np.sqrt(of_thresholds))
        drawn = self._rate(first_hits, further)
        spread = self.between_seeds(of_thresholds, near / self.members)
        if spread > 0:
            drawn = drawn * np.exp(np.sqrt(spread) * rng.standard_normal(DRAWS))
        low, high = (float(q) for q in np.quantile(drawn, ENDS))
        return (low, high) if near else (0.0, max(high, float(beta.ppf(ENDS[1], 1, self.members))))

    def _of_thresholds(self) -> float:
        """Relative variance of the mean TPR that comes from the thresholds' own FPRs.

        A non-member with high scores for several targets of a seed moves their thresholds together (Kish 1965).
        """
        rank, a = self.place[0], self.concavity
        one = float(np.exp(gammaln(rank + 2 * a) + gammaln(rank) - 2 * gammaln(rank + a)) - 1)
        total = squares = 0
        for seed in {unit.seed for unit in self.units}:
            own = (_highest(u, rank) for u, rank in zip(self.units, self.ranks, strict=True) if u.seed == seed)
            times = Counter(chain.from_iterable(own)).values()
            total, squares = total + sum(times), squares + sum(n * n for n in times)
        return one * squares / total / len(self.units)

    def between_seeds(self, of_thresholds: float, rate: float) -> float:
        """Relative variance of the mean TPR that comes from true differences between seeds, by moments; 0 below 3
        seeds."""
        place = np.unique([unit.seed for unit in self.units], return_inverse=True)[1]
        members, hits = np.bincount(place, [len(u.member) for u in self.units]), np.bincount(place, self.of_units[:, 0])
        return _excess(members, hits, rate, len(members) * of_thresholds * rate**2)


@dataclass(frozen=True)
class OneThreshold(Ranks):
    """Units that share their threshold; ``unit_of`` and ``seed_of`` [m]: the number of the unit and of the seed of
    each member."""

    unit_of: np.ndarray
    seed_of: np.ndarray

    def between_seeds(self, of_thresholds: float, rate: float) -> float:
        """As for thresholds of their own, but they share the threshold's noise, so none of it is between them; and
        between units where that is more: errors of a mean and a deviation move all members of a unit together, and
        unlike tails set units apart."""
        (merged,) = self.units
        hit = merged.member > np.sort(merged.nonmember)[-max(1, round(self.ranks[0]))]
        if not 0 < rate < 1:
            return 0.0
        of_tails = (TAILS * max(1 - self.concavity, 0.0)) ** 2
        groups = (self.seed_of, self.unit_of)
        return max(_excess(np.bincount(group), np.bincount(group, hit), rate) for group in groups) + of_tails


def _excess(members: np.ndarray, hits: np.ndarray, rate: float, known: float = 0.0) -> float:
    """Variance of the rates of groups beyond that of binomial hits and a ``known`` one, of their mean and relative to
    ``rate``; 0 below 3 groups."""
    if len(members) < 3 or not 0 < rate < 1:
        return 0.0
    excess = (hits / members).var(ddof=1) - np.mean(rate * (1 - rate) / members) - known
    return float(max(excess, 0) / len(members) / rate**2)


def slope(near: np.ndarray, far: np.ndarray, members: int, rank: float) -> tuple[np.ndarray, np.ndarray]:
    """(b, a): of the chord between both thresholds, shrunk to 1 by PRIOR hits, and d log T / d log F at the first
    one."""
    odds = [(hits + prior) / (np.maximum(members - hits, 0) + 0.5) for hits, prior in ((near, PRIOR), (far, SPAN * PRIOR))]
    missed = [1 / (1 + o) for o in odds]
    rise = np.log(odds[1] / odds[0])
    b = np.clip(rise / np.log(SPAN), 0, MAX_SLOPE)
    for _ in range(3):  # the ranks' mean is not the mean rank's: E[F^a] is not E[F]^a
        too_high = [_log_mean(b * m, r) / m for m, r in zip(missed, (rank, SPAN * rank), strict=True)]
        b = np.clip((rise - too_high[1] + too_high[0]) / np.log(SPAN), 0, MAX_SLOPE)
    return b, b * missed[0]


def _log_mean(a: np.ndarray, rank: float) -> np.ndarray:
    """log E[(F / E F)^a] of a threshold of that rank; 0 at a = 1."""
    logarithm: np.ndarray = gammaln(rank + a) - gammaln(rank) - a * np.log(rank)
    return logarithm
