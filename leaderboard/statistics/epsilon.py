"""Lower bounds on epsilon from guesses about canaries, each of them a member by a fair coin.

A bound holds with probability ``1 - LEVEL`` over coins and mechanism. It cannot pass a limit that
its design sets: print the number of canaries beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy import ndarray
from scipy.optimize import brentq
from scipy.stats import binom

LEVEL = 0.05
SIZES = (50, 100, 200, 400, 800, 1600)
"""numbers of guesses to choose from"""
_PRECISION = 1e-6
_MOST = 64.0  # no design with less than 10^27 canaries shows more


# --- the bound ------------------------------------------------------------------------------------


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


def approximate_dp(guesses: Guesses, delta: float) -> float:
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

    return largest_refuted(excess)


def largest_refuted(excess: Callable[[float], float]) -> float:
    """Return the largest value at which the increasing ``excess`` is not above 0; 0 for none."""
    if excess(0.0) > 0:
        return 0.0
    if excess(_MOST) <= 0:
        return _MOST
    root = float(brentq(excess, 0.0, _MOST, xtol=_PRECISION))
    return max(0.0, root - _PRECISION)


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
