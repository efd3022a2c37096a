"""The oracle that picks an attack's best round on the evaluated membership, next to what it finds in noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedbench.core.metrics.roc import auc


@dataclass(frozen=True)
class BestRound:
    """``auc`` of the best of R rounds, its position ``index``, and ``null``: its mean under shuffled membership."""

    auc: float
    index: int
    null: float


def best_round(scores: np.ndarray, member: np.ndarray, rng: np.random.Generator, shuffles: int = 20) -> BestRound:
    """Largest AUC over the rounds of ``scores`` [R, n], with its null value over ``shuffles`` shuffled memberships.

    Several papers report this maximum (FedMIA's single-round attacks, FedPoisonMIA, MemberShield). It exceeds 0.5
    without any leakage, so it is never a headline and never shown without ``null``.
    """
    rounds = np.atleast_2d(scores)
    aucs = [auc(row, member) for row in rounds]
    null = [max(auc(row, flags) for row in rounds) for flags in (rng.permutation(member) for _ in range(shuffles))]
    best = int(np.argmax(aucs))
    return BestRound(aucs[best], best, float(np.mean(null)))
