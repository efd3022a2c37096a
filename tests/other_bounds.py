"""Lower bounds on epsilon that fedbench compares with its own and does not print on boards: of
Gaussian mechanisms, and of one decision a federation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.special import ndtr, ndtri

from fedbench.core.metrics.intervals import exact_interval
from fedbench.leaderboard.statistics.epsilon import LEVEL, Guesses, largest_refuted


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

    return largest_refuted(excess)


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
