"""Intervals of what a board averages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedbench.core.metrics import Interval, combined_interval


def interval_of(values: Sequence[float], errors: Sequence[float | None]) -> Interval | None:
    """``combined_interval``, or a NaN half-width where a value has no standard error; None of nothing."""
    if not values:
        return None
    known = [e for e in errors if e is not None]
    if len(known) < len(values):
        return Interval(float(np.mean(values)), float("nan"), len(values), between=False)
    return combined_interval(values, known)


def mean_of(values: Sequence[float | None]) -> float | None:
    """Mean of the values there are; None of nothing."""
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None


def share_error(share: float, n: int) -> float:
    """Binomial standard error of a share of ``n``."""
    return float(np.sqrt(share * (1 - share) / max(n, 1)))


def accuracy_error(accuracy: float, recall: float, members: int, nonmembers: int) -> float:
    """Standard error of (TPR + TNR) / 2 from so many members and non-members, each judged once.

    One right and one wrong answer are added to each class: the plain binomial error is 0 where all answers are right or
    wrong (Agresti & Caffo, The American Statistician 2000, for the difference of two proportions, here TPR - FPR).
    """
    variance = 0.0
    for rate, n in ((recall, members), (2 * accuracy - recall, nonmembers)):
        p = (min(max(rate, 0.0), 1.0) * n + 1) / (n + 2)
        variance += p * (1 - p) / (n + 2)
    return float(np.sqrt(variance) / 2)
