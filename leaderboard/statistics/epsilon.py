"""Lower bounds on epsilon from guesses about canaries, each of them a member by a fair coin.

A bound holds with probability ``1 - level`` over coins and mechanism. None of them can pass a limit
that its design sets: print the number of canaries or federations beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy import ndarray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri
from scipy.stats import beta, binom

LEVEL = 0.05
_PRECISION = 1e-6
_MOST = 64.0  # no design with less than 10^27 canaries shows more


# --- one run --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Guesses:
    """Guesses about the coins of one run, or of several runs with coins of their own: together they
    are one mechanism with the same epsilon for each coin.
    """

    canaries: int
    """m"""
    guessed: int
    """r; the auditor abstained on the others"""
    right: int
    """v"""


def approximate_dp(guesses: Guesses, delta: float = 0.0, level: float = LEVEL) -> float:
    """Return the largest epsilon of an (epsilon, delta)-DP mechanism that the guesses refute.

    Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run" (2023), theorem 5.2:
    v of r guesses are right with probability at most P[Bin(r, q) >= v] + 2 m delta max_i P[v - i <=
    Bin(r, q) < v] / i, with q = e^epsilon / (1 + e^epsilon).
    """
    m, r, v = guesses.canaries, guesses.guessed, guesses.right
    steps = np.arange(1, v + 1)

    def excess(epsilon: float) -> float:
        q = 1 / (1 + math.exp(-epsilon))
        tail = binom.sf(v - 1, r, q)
        near = (binom.sf(v - steps - 1, r, q) - tail) / steps
        return float(tail + 2 * m * delta * near.max(initial=0.0) - level)

    return _largest(excess)


def gaussian_dp(guesses: Guesses, level: float = LEVEL) -> float:
    """Return the largest mu of a mu-GDP mechanism that the guesses refute.

    Mahloujifar, Melis and Chaudhuri, "Auditing f-differential privacy in one run" (2025), algorithm
    3: were v right with probability ``level``, the shares of canaries guessed right and wrong in
    such outcomes would grow with every right guess fewer by the trade-off curve, here Phi(Phi^-1(x)
    - mu), and end above the r / m that there are.
    """
    m, r, v = guesses.canaries, guesses.guessed, guesses.right
    if not r:
        return 0.0

    def excess(mu: float) -> float:
        right, wrong = level * v / m, level * (r - v) / m
        for i in range(v - 1, -1, -1):
            before = max(wrong, float(ndtr(ndtri(min(right, 1.0)) - mu)))
            right += i / (r - i) * (before - wrong)
            wrong = before
        return r / m - (right + wrong)

    return _largest(excess)


def epsilon_of_gaussian(mu: float, delta: float) -> float:
    """Return the epsilon of a mu-GDP mechanism at ``delta``.

    Dong, Roth and Su, "Gaussian differential privacy" (2022), corollary 2.13.
    """
    if not mu:
        return 0.0

    def excess(epsilon: float) -> float:
        tail = math.exp(epsilon + log_ndtr(-epsilon / mu - mu / 2))
        return float(ndtr(mu / 2 - epsilon / mu)) - tail - delta

    if excess(0.0) <= 0:
        return 0.0
    return float(brentq(excess, 0.0, mu * (mu + 40), xtol=_PRECISION))


def _largest(excess: Callable[[float], float]) -> float:
    """Return the largest value at which the increasing ``excess`` is not above 0; 0 for none."""
    if excess(0.0) > 0:
        return 0.0
    if excess(_MOST) <= 0:
        return _MOST
    root = float(brentq(excess, 0.0, _MOST, xtol=_PRECISION))
    return max(0.0, root - _PRECISION)


# --- many federations -----------------------------------------------------------------------------


def clopper_pearson(
    hits: int,
    members: int,
    false_alarms: int,
    outsiders: int,
    delta: float = 0.0,
    level: float = LEVEL,
) -> float:
    """Return the largest epsilon that decisions of independent federations refute, one decision a
    federation: ``hits`` of those with the canary, ``false_alarms`` of those without.

    An (epsilon, delta)-DP mechanism has TPR <= e^epsilon FPR + delta and TNR <= e^epsilon FNR +
    delta (Kairouz, Oh and Viswanath 2015); TPR and FPR have one-sided bounds at ``level`` / 2
    (Clopper and Pearson 1934; Nasr et al. 2021).
    """
    tpr = 0.0
    if hits:
        tpr = float(beta.ppf(level / 2, hits, members - hits + 1))
    fpr = 1.0
    if false_alarms < outsiders:
        fpr = float(beta.ppf(1 - level / 2, false_alarms + 1, outsiders - false_alarms))
    ratios = (tpr - delta) / fpr, (1 - fpr - delta) / (1 - tpr)
    return max(0.0, *(math.log(max(ratio, 1.0)) for ratio in ratios))


# --- how many to guess ----------------------------------------------------------------------------

Bound = Callable[[Guesses, float], float]
"""guesses, level -> lower bound"""


def guesses_of(scores: ndarray, member: ndarray, guessed: int) -> Guesses:
    """Guess half of ``guessed`` among the highest scores as members, half among the lowest as
    non-members, and return how many are right.

    Args:
        scores: [m], in an order that does not depend on membership, which ranks equal scores.
        member: [m] bool.
    """
    order = np.argsort(scores, kind="stable")
    lowest = order[: guessed // 2]
    highest = order[len(order) - (guessed - guessed // 2) :]
    right = np.count_nonzero(~member[lowest]) + np.count_nonzero(member[highest])
    return Guesses(canaries=len(scores), guessed=guessed, right=int(right))


@dataclass(frozen=True)
class Explicit:
    """A number of guesses that was fixed before the scores were seen."""

    guessed: int

    def bound(self, scores: ndarray, member: ndarray, bound: Bound, level: float = LEVEL) -> float:
        """Return the lower bound of [m] ``scores`` and memberships."""
        return bound(guesses_of(scores, member, self.guessed), level)


@dataclass(frozen=True)
class Bonferroni:
    """The best of several numbers of guesses, each at its share of the level."""

    sizes: tuple[int, ...]

    def bound(self, scores: ndarray, member: ndarray, bound: Bound, level: float = LEVEL) -> float:
        """Return the lower bound of [m] ``scores`` and memberships."""
        share = level / len(self.sizes)
        return max(bound(guesses_of(scores, member, size), share) for size in self.sizes)


@dataclass(frozen=True)
class Split:
    """The number of guesses with the best bound on the first canaries, used on the others."""

    sizes: tuple[int, ...]
    """numbers of guesses about the others"""
    chosen_on: int
    """number of the first canaries"""

    def bound(self, scores: ndarray, member: ndarray, bound: Bound, level: float = LEVEL) -> float:
        """Return the lower bound of [m] ``scores`` and memberships."""
        first, rest = np.split(scores, [self.chosen_on])
        first_member, rest_member = np.split(member, [self.chosen_on])
        scale = len(first) / len(rest)

        def on_first(size: int) -> float:
            return bound(guesses_of(first, first_member, round(size * scale)), level)

        best = max(self.sizes, key=on_first)
        return bound(guesses_of(rest, rest_member, best), level)
