"""True-positive rate at a low false-positive rate from several audited units, with an asymmetric 95 % interval.

How well it does is measured by ``python -m fedbench.leaderboard.simulations.tf01``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import betaincinv, expit, gammaincinv, gammaln, logit, polygamma, stdtrit

MIN_FALSE_POSITIVES = 2  # expected; with one, a concave ROC reads clearly too low (E[F^a] < E[F]^a)
MAX_FPR = 0.05
SPAN = 16  # the ROC's local slope is that of its chord from ``fpr`` to 16 ``fpr``
CLUSTER_SPAN = 4  # clusters are counted among the highest non-members, four times the expected false positives
PRIOR = 2.0  # members' hits behind the prior slope 1 (no leak)
MAX_SLOPE = 3.0
MAX_STRETCH = 1.2  # log F beyond which the chord is not shortened any more; e^1.2 is 3.3 times ``fpr``
ONE_SIDED = 0.025
LEVELS = (np.arange(100) + 0.5) / 100  # of the distributions that are convolved


@dataclass(frozen=True)
class Sample:
    """One audited unit (seed, target): scores on a scale of its own, higher says member."""

    seed: int
    member: np.ndarray
    """[m] float, scores of the members"""
    nonmember: np.ndarray
    """[n] float, scores of the non-members"""
    ids: np.ndarray
    """[n] int: which samples the non-members are; one of several targets of a seed has one id in all of them"""

    @cached_property
    def standardised(self) -> tuple[np.ndarray, np.ndarray]:
        """(members [m], non-members [n]) in standard deviations of the non-members from their mean."""
        return _standardised(self)


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """Fractions; 0 <= low <= value <= high <= 1."""

    value: float
    low: float
    high: float
    n_members: int
    n_nonmembers: int
    allowed: int
    """whole false positives k that are allowed: the largest with (k + 1) / (n_nonmembers + 1) <= fpr"""


def pooled_tpr(units: Sequence[Sample], fpr: float = 0.001) -> Pooled | None:
    """TPR at ``fpr`` over all members of ``units``; None with fewer than 2 / fpr - 1 non-members (1,999 at 0.1 %).

    Scores are standardised by the non-members of their unit, each of those by the others; then one threshold holds for all.
    Just above the j-th largest of N exchangeable non-members the expected FPR is j / (N + 1) (conformal prediction; Vovk,
    Gammerman & Shafer 2005, ch. 2), so the hits at the two j around ``fpr`` (N + 1) are interpolated. Invariant to the
    location and scale of a unit, not to other monotone transformations. ValueError: scores that cannot be judged.
    """
    found = _judged(units, fpr)
    if found is None:
        return None
    value, (low, high) = found.model.value(found.hits), found.model.limits(found.hits)
    return Pooled(
        value=value, low=min(low, value), high=max(high, value), n_members=found.model.members,
        n_nonmembers=found.n_nonmembers, allowed=found.allowed,
    )  # fmt: skip


def pooled_value(units: Sequence[Sample], fpr: float = 0.001) -> float | None:
    """The value of :func:`pooled_tpr` alone, which costs a third."""
    found = _judged(units, fpr)
    return None if found is None else found.model.value(found.hits)


@dataclass(frozen=True)
class _Judged:
    model: _Model
    hits: float
    n_nonmembers: int
    allowed: int


def _judged(units: Sequence[Sample], fpr: float) -> _Judged | None:
    if not 0 < fpr <= MAX_FPR:
        raise ValueError(f"fpr must be in (0, {MAX_FPR}], got {fpr}")
    scores = [unit.standardised for unit in units]
    n = sum(len(nonmember) for _, nonmember in scores)
    expected = fpr * (n + 1)
    if expected < MIN_FALSE_POSITIVES:
        return None
    allowed = int(expected) - 1
    places = [allowed, allowed + 1, round(SPAN * expected) - 1, round(CLUSTER_SPAN * expected) - 1]
    ordered = np.partition(np.concatenate([nonmember for _, nonmember in scores]), sorted({n - 1 - i for i in places}))
    *thresholds, clustered = (float(ordered[n - 1 - i]) for i in places)
    above = np.array([[np.count_nonzero(member > t) for t in thresholds] for member, _ in scores], dtype=np.float64)
    share = expected - int(expected)
    hits = (1 - share) * above[:, 0] + share * above[:, 1]
    independent = expected / _repeats(units, scores, clustered)
    sizes = np.array([len(member) for member, _ in scores])
    between = _between_seeds([unit.seed for unit in units], hits, sizes)
    model = _Model(int(sizes.sum()), float(above[:, 2].sum()), independent, between)
    return _Judged(model, float(hits.sum()), n, allowed)


def _standardised(unit: Sample) -> tuple[np.ndarray, np.ndarray]:
    """(members [m], non-members [n]) in standard deviations of the unit's non-members from their mean.

    A member is compared with all n; a non-member with the n - 1 others, or its own outlyingness would hide it and the
    FPR of a stranger be up to 15 % higher. Of equal raw scores the member's is never the higher one, so ties count
    against the attack.
    """
    member, nonmember = (np.asarray(a, dtype=np.float64) for a in (unit.member, unit.nonmember))
    if member.ndim != 1 or nonmember.ndim != 1 or np.shape(unit.ids) != nonmember.shape:
        raise ValueError(f"vectors are needed and one id a non-member: {member.shape}, {nonmember.shape}, {np.shape(unit.ids)}")
    n = len(nonmember)
    if len(member) < 1 or n < 3:
        raise ValueError(f"a unit needs a member and 3 non-members, got {len(member)} and {n}")
    if not (np.isfinite(member).all() and np.isfinite(nonmember).all()):
        raise ValueError("a score is not finite")
    constant = nonmember.min() == nonmember.max()
    mean, deviation = (nonmember[0], 0.0) if constant else (nonmember.mean(), nonmember.std(ddof=1))
    member, plain = _divided(member - mean, deviation), _divided(nonmember - mean, deviation)
    left = np.maximum((n - 1 - n / (n - 1) * plain**2) / (n - 2), 0)  # variance of the others, in units of all
    return member, np.maximum(plain, _divided(plain * n / (n - 1), np.sqrt(left)))


def _divided(a: np.ndarray, b: np.ndarray | float) -> np.ndarray:
    """a / b where 0 / 0 is 0: whoever differs from a constant is infinitely far from it."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(a == 0, 0.0, a / b)


def _repeats(units: Sequence[Sample], scores: Sequence[tuple[np.ndarray, np.ndarray]], threshold: float) -> float:
    """Design effect of samples that stand high for several targets of a seed (Kish 1965): sum c^2 / sum c over samples."""
    high = [(unit.seed, np.asarray(unit.ids)[nonmember >= threshold]) for unit, (_, nonmember) in zip(units, scores, strict=True)]
    total = squares = 0
    for seed in {seed for seed, _ in high}:
        _, times = np.unique(np.concatenate([ids for s, ids in high if s == seed]), return_counts=True)
        total, squares = total + int(times.sum()), squares + int((times**2).sum())
    return squares / total


def _between_seeds(seeds: Sequence[int], hits: np.ndarray, sizes: np.ndarray) -> float:
    """Variance of the logit of the mean TPR that comes from true differences between seeds, by moments; 0 below 3 seeds.

    With the square of t / 1.96 for the few degrees of freedom.
    """
    names, group = np.unique(seeds, return_inverse=True)
    rate = hits.sum() / sizes.sum()
    if len(names) < 3 or not 0 < rate < 1:
        return 0.0
    members = np.bincount(group, sizes)
    excess = np.var(np.bincount(group, hits) / members, ddof=1) - rate * (1 - rate) * np.mean(1 / members)
    few = (stdtrit(len(names) - 1, 1 - ONE_SIDED) / stdtrit(np.inf, 1 - ONE_SIDED)) ** 2
    return float(few * max(excess, 0) / len(names) / (rate * (1 - rate)) ** 2)


@dataclass(frozen=True)
class _Model:
    """Hits ~ Binomial(members, T(F)), logit T(F) = logit T(fpr) + b log(F / fpr), F / fpr ~ Gamma(k) / k.

    F is the threshold's true FPR: the k-th of N uniform order statistics is all but a Gamma(k) variable over N.
    """

    members: int
    far: float
    """hits at SPAN times the FPR"""
    k: float
    """expected false positives, effective"""
    between: float

    def value(self, hits: float) -> float:
        """T(fpr), all but unbiased."""
        rate = hits / self.members
        a = self.slope(hits) * (1 - rate)  # d log T / d log F
        return float(min(rate / np.exp(self._log_mean(a)), 1.0))

    def slope(self, hits: float) -> float:
        """b: the chord's slope, drawn to 1 by PRIOR hits and SPAN times as many at its end."""
        ends = (hits + PRIOR, self.members - hits + 0.5), (self.far + SPAN * PRIOR, self.members - self.far + 0.5)
        odds = [up / down for up, down in ends]
        return float(np.clip(np.log(odds[1] / odds[0]) / np.log(SPAN), 0, MAX_SLOPE))

    def limits(self, hits: float) -> tuple[float, float]:
        """Mid-P limits of T(fpr). At zero hits the lower one is 0.

        A truth below the upper limit at zero hits is never missed on the high side, so there the lower limit may err in
        the full 5 % of cases instead of 2.5 %.
        """
        noise = self._noise(self.slope(hits))
        (top_at_zero,) = self._quantiles(0, noise, 1 - ONE_SIDED)
        low, one_sided, high = self._quantiles(hits, noise, ONE_SIDED, 2 * ONE_SIDED, 1 - ONE_SIDED)
        return max(low, min(one_sided, top_at_zero)), high

    def _log_mean(self, b: float) -> float:
        """log E[(F / fpr)^b]."""
        return float(gammaln(self.k + b) - gammaln(self.k) - b * np.log(self.k))

    def _noise(self, b: float) -> np.ndarray:
        """logit T(F) - logit T(fpr) at LEVELS of the threshold's FPR.

        The differences between seeds widen it at an unchanged mean. A threshold with too high an F has also cut the chord
        short by log F and made it flat: the slope that was seen is undone by 1 / (1 - log F / log SPAN), in so far as it
        was seen and is not the prior's.
        """
        log_f = np.log(gammaincinv(self.k, LEVELS) / self.k)
        wide = float(np.sqrt(b**2 + self.between / polygamma(1, self.k)))
        seen = self.far / (self.far + SPAN * PRIOR)
        noise = wide * log_f - (self._log_mean(wide) - self._log_mean(b))
        stretched: np.ndarray = noise / (1 - seen * np.minimum(log_f, MAX_STRETCH) / np.log(SPAN))
        return stretched

    def _quantiles(self, hits: float, noise: np.ndarray, *levels: float) -> list[float]:
        """T(fpr) at which the mid-P probability of so many hits or more is each of ``levels``; hits may be a fraction.

        P(hits or more | T) is a distribution function in T, Beta(hits, members - hits + 1), and P(more) the next one: their
        mean over the noise is the distribution of the logit of a draw less the noise, whose quantiles are the limits.
        """
        n = self.members
        reached = betaincinv(hits, n - hits + 1, LEVELS) if hits > 0 else np.zeros_like(LEVELS)
        passed = betaincinv(hits + 1, n - hits, LEVELS) if hits < n else np.ones_like(LEVELS)
        draws = logit(np.concatenate([reached, passed]))[:, None] - noise
        return [float(t) for t in expit(np.quantile(draws, levels, method="nearest"))]
