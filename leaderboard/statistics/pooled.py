"""True-positive rate at a low false-positive rate from several audited units, with an asymmetric 95 % interval.

Every unit has its own scale, its own tails and too few non-members for 0.1 %, so nothing but ranks is compared between them: in
each unit the threshold is its own j-th largest non-member, whose expected FPR is j / (N + 1) whatever the scores (conformal
prediction; Vovk, Gammerman & Shafer 2005, ch. 2). Where that is above the wanted FPR, a straight line leads from there to it, in
the logit of the TPR over the logarithm of the FPR. How well all of it does: ``python -m fedbench.leaderboard.simulation``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from typing import Any

import numpy as np
from scipy.special import expit, gammaln, logit
from scipy.stats import beta

from fedbench.core.numerics.rng import numpy_rng
from fedbench.leaderboard.statistics.sample import Sample

MAX_FPR = 0.05
FEWEST = 2.0  # expected false positives of all units together
FURTHEST = 3.0  # a unit's smallest FPR over the wanted one: how far the line is drawn out
FEWEST_OF_ONE = 333  # non-members of a unit at 0.1 %, by FURTHEST
SPAN = 8  # the slope is that of the chord from the smallest FPR to 8 times that
PRIOR = 8.0  # members' hits behind the prior slope 1 (no leak)
MAX_SLOPE = 3.0
DRAWS = 2000
ENDS = (0.025, 0.975)
Number = float | np.ndarray
"""one for all, or one each"""


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """Fractions; 0 <= low <= value <= high <= 1. ``nearest``: the mean FPR that the units' own thresholds stand for, from
    which the line leads to the one asked for."""

    value: float
    low: float
    high: float
    n_members: int
    n_nonmembers: int
    nearest: float


def enough(sizes: Sequence[int], fpr: float = 0.001) -> bool:
    """Whether units of so many non-members say anything: 1,999 together and 333 each at 0.1 %."""
    return bool(sizes) and fpr * (sum(sizes) + 1) >= FEWEST and FURTHEST * fpr * (min(sizes) + 1) >= 1


def pooled_tpr(units: Sequence[Sample], fpr: float = 0.001) -> Pooled | None:
    """Mean TPR at ``fpr`` over the members of ``units``; None with too few non-members (:func:`enough`).

    Invariant to any increasing transformation of a unit's scores. ValueError: scores that cannot be judged.
    """
    found = _judged(units, fpr)
    return found.estimate() if enough([len(unit.nonmember) for unit in units], fpr) else None


def pooled_value(units: Sequence[Sample], fpr: float = 0.001) -> float:
    """The same number without its interval, however few non-members there are; 0 of nothing."""
    return _judged(units, fpr).value() if units else 0.0


def _judged(units: Sequence[Sample], fpr: float) -> Ranks:
    if not 0 < fpr <= MAX_FPR:
        raise ValueError(f"fpr must be in (0, {MAX_FPR}], got {fpr}")
    return Ranks(tuple(units), tuple(count(unit, fpr) for unit in units), fpr)


@dataclass(frozen=True, kw_only=True)
class Counted:
    """``near`` and ``far``: members above the unit's own thresholds of rank ``rank`` and SPAN times that."""

    near: float
    far: float
    members: int
    rank: float
    first: float
    """the FPR that ``rank`` stands for"""
    outliers: np.ndarray
    """ids of the non-members from about rank 4 ``rank`` on"""


def count(unit: Sample, fpr: float) -> Counted:
    """Members above the unit's own thresholds. ValueError: scores that cannot be judged."""
    member, nonmember = (np.asarray(a, dtype=np.float64) for a in (unit.member, unit.nonmember))
    if member.ndim != 1 or nonmember.ndim != 1 or np.shape(unit.ids) != nonmember.shape:
        raise ValueError(f"vectors are needed and one id a non-member: {member.shape}, {nonmember.shape}, {np.shape(unit.ids)}")
    n = len(nonmember)
    if len(member) < 1 or n < 1:
        raise ValueError(f"a unit needs members and non-members, got {len(member)} and {n}")
    if not (np.isfinite(member).all() and np.isfinite(nonmember).all()):
        raise ValueError("a score is not finite")
    rank = max(1.0, fpr * (n + 1))
    order = np.argsort(-nonmember, kind="stable")
    highest = nonmember[order]
    near, far = (above(member, highest, min(r, float(n))) for r in (rank, SPAN * rank))
    outliers = np.asarray(unit.ids)[order[: max(2, round(4 * rank))]]
    return Counted(near=near, far=far, members=len(member), rank=rank, first=rank / (n + 1), outliers=outliers)


def above(member: np.ndarray, highest: np.ndarray, rank: float) -> float:
    """Members above the non-member of that rank, interpolated between whole ranks; of equal scores none is above."""
    whole = int(rank)
    hits, more = (float(np.count_nonzero(member > highest[min(r, len(highest)) - 1])) for r in (whole, whole + 1))
    return hits + (rank - whole) * (more - hits)


@dataclass(frozen=True)
class Ranks:
    """logit T(F) = logit T(f) + b log(F / f) near the thresholds; F of rank j is all but Gamma(j) / (N + 1)."""

    units: tuple[Sample, ...]
    counted: tuple[Counted, ...]
    fpr: float

    @cached_property
    def hits(self) -> tuple[float, float]:
        """Of all units together, above the first thresholds and the further ones."""
        return sum(c.near for c in self.counted), sum(c.far for c in self.counted)

    @cached_property
    def members(self) -> int:
        return sum(c.members for c in self.counted)

    @cached_property
    def place(self) -> tuple[float, float]:
        """(rank, FPR) of the first thresholds, means over members."""
        rank, first = sum(c.members * c.rank for c in self.counted), sum(c.members * c.first for c in self.counted)
        return rank / self.members, first / self.members

    @cached_property
    def line(self) -> tuple[np.ndarray, np.ndarray]:
        """(b, a) [1] each of :func:`slope`, at the hits that there are."""
        near, far = self.hits
        return slope(np.array([near]), np.array([far]), self.members, self.place[0])

    def value(self) -> float:
        """T(fpr), a fraction."""
        near, _ = self.hits
        return min(float(_along(self.line, self.fpr, np.array([near]), self.members, *self.place)[0]), 1.0) if near else 0.0

    def estimate(self) -> Pooled:
        """With its interval."""
        value, (low, high) = self.value(), self._limits()
        return Pooled(
            value=value, low=min(low, value), high=min(max(high, value), 1.0), n_members=self.members,
            n_nonmembers=sum(len(unit.nonmember) for unit in self.units), nearest=self.place[1],
        )  # fmt: skip

    def _limits(self) -> tuple[float, float]:
        """Quantiles of T(fpr) under Jeffreys' priors for both counts, thresholds drawn anew, and seeds that differ.

        At zero hits the lower one is 0 and the upper one no lower than the exact one of the first threshold (Clopper &
        Pearson 1934): the wanted rate is below that one's.
        """
        members, (near, far), (rank, first) = self.members, self.hits, self.place
        of_thresholds = self._of_thresholds(float(self.line[1][0]), rank)
        normal, rng = _drawn()
        first_hits = rng.gamma(near + 0.5, size=DRAWS)
        further = first_hits + rng.gamma(max(far - near, 0) + 0.5, size=DRAWS)
        first_hits = first_hits * np.exp(of_thresholds / 2 - normal * np.sqrt(of_thresholds))
        drawn = rate_at(self.fpr, first_hits, further, members, rank, first)
        spread = self.between_seeds(of_thresholds, near / members)
        if spread > 0:
            drawn = drawn * np.exp(np.sqrt(spread) * rng.standard_normal(DRAWS))
        low, high = (float(q) for q in np.quantile(drawn, ENDS))
        if near == 0:
            return 0.0, max(high, float(beta.ppf(ENDS[1], 1, members)))
        return low, high

    def _of_thresholds(self, a: float, rank: float) -> float:
        """Relative variance of the mean TPR that comes from the thresholds' own FPRs.

        A non-member that stands high for several targets of a seed moves their thresholds together (Kish 1965).
        """
        one = float(np.exp(gammaln(rank + 2 * a) + gammaln(rank) - 2 * gammaln(rank + a)) - 1)
        total = squares = 0
        for seed in {unit.seed for unit in self.units}:
            own = (c.outliers.tolist() for unit, c in zip(self.units, self.counted, strict=True) if unit.seed == seed)
            times = Counter(chain.from_iterable(own)).values()
            total, squares = total + sum(times), squares + sum(n * n for n in times)
        return one * squares / total / len(self.units)

    def between_seeds(self, of_thresholds: float, rate: float) -> float:
        """Relative variance of the mean TPR that comes from true differences between seeds, by moments; 0 below 3 seeds."""
        seeds = sorted({unit.seed for unit in self.units})
        if len(seeds) < 3 or not 0 < rate < 1:
            return 0.0
        mine = [[c for unit, c in zip(self.units, self.counted, strict=True) if unit.seed == seed] for seed in seeds]
        members = np.array([sum(c.members for c in cs) for cs in mine])
        rates = np.array([sum(c.near for c in cs) for cs in mine]) / members
        excess = rates.var(ddof=1) - np.mean(rate * (1 - rate) / members) - len(seeds) * of_thresholds * rate**2
        return float(max(excess, 0) / len(seeds) / rate**2)


@cache
def _first_draws() -> tuple[np.ndarray, Any]:
    """[DRAWS] standard normal, the same for all limits, and the state of the generator behind them."""
    rng = numpy_rng(0, "limits of a pooled rate")
    normal = rng.standard_normal(DRAWS)
    normal.setflags(write=False)
    return normal, rng.bit_generator.state


def _drawn() -> tuple[np.ndarray, np.random.Generator]:
    """These, and a generator that goes on from there."""
    normal, state = _first_draws()
    rng = np.random.Generator(np.random.Philox(0))
    rng.bit_generator.state = state
    return normal, rng


def rate_at(fpr: Number, near: np.ndarray, far: np.ndarray, members: Number, rank: Number, first: Number) -> np.ndarray:
    """T(fpr) of so many hits at the thresholds of ``rank``, which stands for the FPR ``first``, and of SPAN times that."""
    return _along(slope(near, far, members, rank), fpr, near, members, rank, first)


def _along(
    line: tuple[np.ndarray, np.ndarray], fpr: Number, near: np.ndarray, members: Number, rank: Number, first: Number
) -> np.ndarray:
    """The same, of the line (b, a)."""
    b, a = line
    share = np.clip(near / members, 1e-12, 1 - 1e-12)
    rates: np.ndarray = expit(logit(share) - _log_mean(a, rank) / (1 - share) + b * np.log(fpr / first))
    return rates


def slope(near: np.ndarray, far: np.ndarray, members: Number, rank: Number) -> tuple[np.ndarray, np.ndarray]:
    """(b, a): of the chord between both thresholds, drawn to 1 by PRIOR hits, and d log T / d log F at the first one."""
    odds = [(hits + prior) / (np.maximum(members - hits, 0) + 0.5) for hits, prior in ((near, PRIOR), (far, SPAN * PRIOR))]
    missed = [1 / (1 + o) for o in odds]
    rise = np.log(odds[1] / odds[0])
    b = np.clip(rise / np.log(SPAN), 0, MAX_SLOPE)
    for _ in range(3):  # the ranks' mean is not the mean rank's: E[F^a] is not E[F]^a
        too_high = [_log_mean(b * m, r) / m for m, r in zip(missed, (rank, SPAN * rank), strict=True)]
        b = np.clip((rise - too_high[1] + too_high[0]) / np.log(SPAN), 0, MAX_SLOPE)
    return b, b * missed[0]


def _log_mean(a: np.ndarray, rank: Number) -> np.ndarray:
    """log E[(F / E F)^a] of a threshold of that rank; 0 at a = 1."""
    logarithm: np.ndarray = gammaln(rank + a) - gammaln(rank) - a * np.log(rank)
    return logarithm
