"""Metrics at one decision threshold: a candidate is called a member when its score is >= the threshold."""

from __future__ import annotations

import numpy as np

from fedbench.core.metrics.counts import checked
from fedbench.core.metrics.roc import roc_curve


def advantage(scores: np.ndarray, member: np.ndarray) -> float:
    """Membership advantage max over thresholds of TPR - FPR (Yeom et al., CSF 2018), signed: an inverted attack has 0.

    The threshold is chosen on the evaluated membership, so the value is an oracle's: above 0 even for noise.
    """
    fpr, tpr, _ = roc_curve(scores, member)
    return float(np.max(tpr - fpr))


def best_threshold(scores: np.ndarray, member: np.ndarray) -> float:
    """The highest threshold of the best advantage (+inf: call nobody a member)."""
    fpr, tpr, thresholds = roc_curve(scores, member)
    return float(thresholds[np.argmax(tpr - fpr)])


def balanced_accuracy(scores: np.ndarray, member: np.ndarray, threshold: float | None = None) -> float:
    """(TPR + TNR) / 2 at ``threshold``; None: at the threshold of the best advantage, (1 + advantage) / 2."""
    if threshold is None:
        return (1 + advantage(scores, member)) / 2
    scores, member = checked(scores, member)
    flagged = scores >= threshold
    return float((flagged[member].mean() + (~flagged[~member]).mean()) / 2)


def precision_recall(scores: np.ndarray, member: np.ndarray, threshold: float) -> tuple[float | None, float]:
    """(precision, recall) at ``threshold``, unsmoothed; precision is None when nobody is called a member."""
    scores, member = checked(scores, member)
    flagged = scores >= threshold
    hits = int((flagged & member).sum())
    return (hits / int(flagged.sum()) if flagged.any() else None), hits / int(member.sum())
