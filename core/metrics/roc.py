"""The ROC curve and the areas under it."""

from __future__ import annotations

import numpy as np

from fedbench.core.metrics.counts import auc_of_counts, count


def auc(scores: np.ndarray, member: np.ndarray) -> float:
    """Area under the ROC curve: P(member's score > non-member's), ties one half (Mann-Whitney U, exact ranks)."""
    _, members, nonmembers = count(scores, member)
    return float(auc_of_counts(members, nonmembers))


def roc_curve(scores: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(fpr, tpr, thresholds), each [m + 1] for m distinct scores: every step, none dropped.

    Point 0 is (0, 0) at threshold +inf; point j flags scores >= thresholds[j].
    """
    values, members, nonmembers = count(scores, member)
    fp, tp = (np.concatenate([[0], np.cumsum(c[::-1])]) for c in (nonmembers, members))
    return fp / fp[-1], tp / tp[-1], np.concatenate([[np.inf], values[::-1]])
