"""All metrics of one attack on one target, per group of candidates: what a record stores."""

from __future__ import annotations

import numpy as np

from fedbench.core.metrics.bootstrap import bootstrap
from fedbench.core.metrics.roc import auc
from fedbench.core.metrics.threshold import advantage
from fedbench.core.metrics.tpr import tf01
from fedbench.core.store.record import Group, Score

MEMBER, OFL, IFL = 0, 1, 2  # values of ``kind``; a negative one takes no part in any group


def score_groups(
    scores: np.ndarray, kind: np.ndarray, canary: np.ndarray, rng: np.random.Generator
) -> dict[Group, Score]:
    """Metrics per group: ``mix``, ``ofl``, ``ifl`` (all members against those non-members) and ``canary``.

    ``scores``: [n] float; ``kind``: [n] int, 0 member, 1 outside the federation, 2 another client's, negative excluded;
    ``canary``: [n] bool, mislabelled samples (they count in the other groups too). A group without members or without
    non-members is absent. Raises ValueError on non-finite scores of candidates that count.
    """
    scores, kind, canary = np.asarray(scores), np.asarray(kind), np.asarray(canary, dtype=bool)
    if not scores.shape == kind.shape == canary.shape:
        raise ValueError(f"scores, kind and canary differ in shape: {scores.shape}, {kind.shape}, {canary.shape}")
    if (kind > IFL).any():
        raise ValueError(f"kind must be 0, 1, 2 or negative, found {int(kind.max())}")
    counted, member = kind >= 0, kind == MEMBER
    groups: dict[Group, np.ndarray] = {
        "mix": counted, "ofl": member | (kind == OFL), "ifl": member | (kind == IFL), "canary": counted & canary,
    }  # fmt: skip
    return {
        name: _score(scores[mask], member[mask], rng)
        for name, mask in groups.items()
        if (mask & member).any() and (mask & ~member).any()
    }


def _score(scores: np.ndarray, member: np.ndarray, rng: np.random.Generator) -> Score:
    n_members = int(member.sum())
    gain = advantage(scores, member)
    # one candidate of a class cannot say how sure it is
    spread = bootstrap(scores, member, rng) if 1 < n_members < len(member) - 1 else None
    return Score(
        auc=auc(scores, member),
        auc_se=spread.auc_se if spread else None,
        tf01=tf01(scores, member),
        tf01_se=spread.tf01_se if spread else None,
        advantage=gain,
        balanced_accuracy=(1 + gain) / 2,
        n_members=n_members,
        n_nonmembers=len(member) - n_members,
    )
