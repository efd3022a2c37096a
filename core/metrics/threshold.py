"""Metrics at the best decision threshold: a candidate is called a member when its score is >= the threshold."""

from __future__ import annotations

import numpy as np

from fedbench.core.metrics.roc import roc_curve


def advantage(scores: np.ndarray, member: np.ndarray) -> float:
    """Membership advantage max over thresholds of TPR - FPR (Yeom et al., CSF 2018), signed: an inverted attack has 0.

    The threshold is chosen on the evaluated membership, so the value is an oracle's: above 0 even for noise.
    """
    fpr, tpr, _ = roc_curve(scores, member)
    return float(np.max(tpr - fpr))


def balanced_accuracy(scores: np.ndarray, member: np.ndarray) -> float:
    """(TPR + TNR) / 2 at the threshold of the best advantage: (1 + advantage) / 2, an oracle's as well."""
    return (1 + advantage(scores, member)) / 2
