"""True-positive rate at a low false-positive rate, in the convention of this benchmark and in those of the papers."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedbench.core.metrics.counts import allowed_false_positives, count, counted_false_positives, tpr_of_counts
from fedbench.core.metrics.roc import roc_curve

Convention = Literal["conformal", "step", "strict", "interpolate", "first_above"]

TF01_FPR = 0.001
# With fewer not even one false positive is allowed, and where the ROC curve is concave the value reads far too low.
TF01_MIN_NONMEMBERS = 1999


def tf01(scores: np.ndarray, member: np.ndarray) -> float | None:
    """TPR at 0.1 % FPR in PERCENT (0 to 100), convention ``conformal``; None with fewer than 1,999 non-members.

    docs/method.md#tf01 has its bias; boards pool targets and seeds (``leaderboard/statistics/tf01.py``).
    """
    _, members, nonmembers = count(scores, member)
    if nonmembers.sum() < TF01_MIN_NONMEMBERS:
        return None
    return 100 * float(tpr_of_counts(members, nonmembers, allowed_false_positives(int(nonmembers.sum()), TF01_FPR)))


def tpr_at_fpr(
    scores: np.ndarray, member: np.ndarray, fpr: float = TF01_FPR, convention: Convention = "conformal"
) -> float:
    """TPR at ``fpr`` as a FRACTION (0 to 1); both rates are fractions.

    ``conformal`` (this benchmark): the largest TPR among thresholds that a new non-member exceeds with a chance of at
    most fpr; 0 where there are too few non-members for any. Unbiased without a leak.
    ``step``: the largest TPR among thresholds with FPR <= fpr among the non-members at hand, on the full curve.
    ``strict`` (FedMIA, Zhu et al., CVPR 2025, and FTA): the last ROC point with FPR < fpr, on the curve without its
    intermediate collinear points, as in their code; never above ``step``.
    ``interpolate`` (SeqMIA, Li et al., CCS 2024): linear between ROC points, which no threshold attains.
    ``first_above`` (FedPoisonMIA's code): the first ROC point with FPR >= fpr; never below ``interpolate``.
    """
    if not 0 < fpr <= 1:
        raise ValueError(f"fpr must be in (0, 1], got {fpr}")
    if convention in ("conformal", "step"):
        _, members, nonmembers = count(scores, member)
        rule = allowed_false_positives if convention == "conformal" else counted_false_positives
        return float(tpr_of_counts(members, nonmembers, rule(int(nonmembers.sum()), fpr)))
    if convention not in ("strict", "interpolate", "first_above"):
        raise ValueError(f"unknown convention {convention!r}; one of conformal, step, strict, interpolate, first_above")
    x, y, _ = roc_curve(scores, member)
    if convention == "interpolate":
        return float(np.interp(fpr, x, y))
    if convention == "first_above":
        return float(y[np.argmax(x >= fpr)])
    corner = _corners(x, y)
    return float(y[corner][np.count_nonzero(x[corner] < fpr) - 1])


def _corners(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """[m] bool: the points left when those in the middle of equal steps are dropped (the origin is always kept)."""
    keep = np.ones(len(x), dtype=bool)
    # Differences of rates are compared, so rounding needs a tolerance far below one count.
    turns = [np.abs(np.diff(a[1:], 2)) > 1e-12 for a in (x, y)]
    keep[2:-1] = turns[0] | turns[1]
    return keep
