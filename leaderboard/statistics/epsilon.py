"""Lower bounds on epsilon from guesses about canaries, each of them a member by a fair coin.

A bound holds with probability ``1 - LEVEL`` over coins and mechanism. None of them can pass a limit
that its design sets: print the number of canaries or federations beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy import ndarray
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from fedbench.core.metrics.intervals import exact_interval

LEVEL = 0.05
SIZES = (50, 100, 200, 400, 800, 1600)
"""numbers of guesses to choose from"""
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


def approximate_dp(guesses: Guesses, delta: float = 0.0) -> float:
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
        return float(tail + 2 * m * delta * near.max(initial=0.0) - LEVEL)

    return _largest(excess)


def gaussian_dp_of_run(guesses: Guesses) -> float:
    """Return the largest mu of a mu-GDP mechanism that the guesses refute. No bound on another.

    Mahloujifar, Melis and Chaudhuri, "Auditing f-differential privacy in one run" (2025): were at
    least v guesses right more often than in LEVEL of runs, the right and the wrong ones of runs
    with at least i right ones were r and h parts of m, and f(x) = Phi(Phi^-1(x) - mu), the curve of
    the mechanism, bounds h by r, from i = v down to 0. More parts than guesses refute mu.
    """
    m, guessed, right = guesses.canaries, guesses.guessed, guesses.right

    def excess(mu: float) -> float:
        r = LEVEL * right / m
        h = LEVEL * (guessed - right) / m
        for i in range(right - 1, -1, -1):
            previous = h
            h = max(h, float(ndtr(ndtri(r) - mu)))
            r += i / (guessed - i) * (h - previous)
        return guessed / m - (r + h)

    return _largest(excess)


def _largest(excess: Callable[[float], float]) -> float:
    """Return the largest value at which the increasing ``excess`` is not above 0; 0 for none."""
    if excess(0.0) > 0:
        return 0.0
    if excess(_MOST) <= 0:
        return _MOST
    root = float(brentq(excess, 0.0, _MOST, xtol=_PRECISION))
    return max(0.0, root - _PRECISION)


# --- many federations -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Decisions:
    """Decisions of independent federations whether they have the canary, one a federation."""

    hits: int
    """of the ``members``, those with the canary"""
    members: int
    false_alarms: int
    """of the ``outsiders``, those without it"""
    outsiders: int

    @property
    def rates(self) -> tuple[float, float]:
        """A lower bound on TPR and an upper bound on FPR, each at half the level (Clopper and
        Pearson 1934).
        """
        # a two-sided interval at 95 %: each end is at LEVEL / 2
        tpr, _ = exact_interval(self.hits, self.members)
        _, fpr = exact_interval(self.false_alarms, self.outsiders)
        return tpr, fpr


def clopper_pearson(decisions: Decisions, delta: float = 0.0) -> float:
    """Return the largest epsilon of an (epsilon, delta)-DP mechanism that the decisions refute.

    It has TPR <= e^epsilon FPR + delta and TNR <= e^epsilon FNR + delta (Kairouz, Oh and Viswanath
    2015; Nasr et al. 2021).
    """
    tpr, fpr = decisions.rates
    ratios = (tpr - delta) / fpr, (1 - fpr - delta) / (1 - tpr)
    return max(0.0, *(math.log(max(ratio, 1.0)) for ratio in ratios))


def gaussian_dp(decisions: Decisions) -> float:
    """Return the largest mu of a mu-GDP mechanism that the decisions refute: it has Phi^-1(TPR) <=
    Phi^-1(FPR) + mu by definition (Dong, Roth and Su 2022). No bound on another mechanism.
    """
    tpr, fpr = decisions.rates
    return max(0.0, float(ndtri(tpr) - ndtri(fpr)))


# --- what to guess --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Coins:
    """Fair coins with an attack's scores: high ones are to mean heads."""

    scores: ndarray
    """[m], in an order that does not depend on the coins, which ranks equal scores"""
    heads: ndarray
    """[m] bool"""


def guesses_of(coins: Coins, guessed: int) -> Guesses:
    """Guess heads for the highest scores and tails for the lowest, half of ``guessed`` each, and
    return how many are right.
    """
    order = np.argsort(coins.scores, kind="stable")
    lowest = order[: guessed // 2]
    highest = order[len(order) - (guessed - guessed // 2) :]
    right = np.count_nonzero(~coins.heads[lowest]) + np.count_nonzero(coins.heads[highest])
    return Guesses(canaries=len(order), guessed=guessed, right=int(right))


@dataclass(frozen=True)
class ChosenBound:
    """Lower bound on epsilon with what was chosen for it."""

    epsilon: float
    limit: float
    """that of as many right guesses"""
    attack: str
    guesses: Guesses


def chosen_bound(
    first: Mapping[str, Coins],
    rest: Mapping[str, Coins],
    bound: Callable[[Guesses], float],
) -> ChosenBound:
    """Return the bound of the ``rest`` of the coins, by attack. The attack, its sign and the number
    of guesses are those with the largest bound on the ``first`` coins, which are not judged.
    """

    def guesses(coins: Coins, sign: int, size: int) -> Guesses:
        signed = replace(coins, scores=sign * coins.scores)
        return guesses_of(signed, min(size, len(coins.heads)))

    def on_first(choice: tuple[str, int, int]) -> float:
        attack, sign, size = choice
        return bound(guesses(first[attack], sign, size))

    attack, sign, size = max(product(first, (1, -1), SIZES), key=on_first)
    judged = guesses(rest[attack], sign, size)
    perfect = replace(judged, right=judged.guessed)
    return ChosenBound(bound(judged), bound(perfect), attack, judged)
