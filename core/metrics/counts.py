"""Scores as counts per distinct value: the form in which ties, ROC points and resampling are all exact and cheap."""

from __future__ import annotations

import numpy as np


def checked(scores: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``scores`` as [n] float64 and ``member`` as [n] bool; ValueError when they cannot be judged."""
    scores, member = np.asarray(scores, dtype=np.float64), np.asarray(member)
    if scores.ndim != 1 or member.shape != scores.shape:
        raise ValueError(f"scores and member must be two vectors of one length, got {scores.shape} and {member.shape}")
    if member.dtype != bool:
        if not np.isin(member, (0, 1)).all():
            raise ValueError("member must hold booleans (or 0 and 1) only")
        member = member.astype(bool)
    bad = ~np.isfinite(scores)
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise ValueError(f"{int(bad.sum())} of {len(scores)} scores are not finite, the first at position {first}")
    if member.all() or not member.any():
        raise ValueError(f"both classes are needed: {int(member.sum())} members, {int((~member).sum())} non-members")
    return scores, member


def count(scores: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(values [m] ascending and distinct, members [m], non-members [m]): how many candidates have each value."""
    scores, member = checked(scores, member)
    values, group = np.unique(scores, return_inverse=True)
    members = np.bincount(group[member], minlength=len(values))
    return values, members, np.bincount(group[~member], minlength=len(values))


def auc_of_counts(members: np.ndarray, nonmembers: np.ndarray) -> np.ndarray:
    """AUC of counts [..., m] over ascending values, ties one half."""
    below = np.cumsum(nonmembers, axis=-1) - 0.5 * nonmembers
    pairs = members.sum(axis=-1) * nonmembers.sum(axis=-1)
    areas: np.ndarray = np.einsum("...m,...m->...", members, below) / pairs
    return areas


def tpr_of_counts(members: np.ndarray, nonmembers: np.ndarray, allowed: int) -> np.ndarray:
    """Largest TPR with at most ``allowed`` false positives of counts [..., m] over ascending values; 0 where it is negative."""
    fp = np.cumsum(nonmembers[..., ::-1], axis=-1)
    steps = (fp <= allowed).sum(axis=-1)  # fp grows, so these are the first ones
    tp = np.cumsum(members[..., ::-1], axis=-1)
    last = np.take_along_axis(tp, np.maximum(steps - 1, 0)[..., None], axis=-1)[..., 0]
    rates: np.ndarray = np.where(steps > 0, last, 0) / members.sum(axis=-1)
    return rates


def allowed_false_positives(n_nonmembers: int, fpr: float) -> int:
    """The most false positives f at which the threshold's expected false-positive rate is at most ``fpr``; -1: not even 0.

    The threshold then lies just above the (f+1)-th largest of n non-members, which another non-member exceeds with a
    chance of at most (f + 1) / (n + 1), exactly so without ties (conformal p-values: Vovk et al. 2005, section 2.2). The
    share f / n of those at hand is smaller: counting by it finds (f + 1) / f times as many of the members without any leak.
    """
    return counted_false_positives(n_nonmembers + 1, fpr) - 1


def counted_false_positives(n_nonmembers: int, fpr: float) -> int:
    """The largest whole number f with f / n <= fpr, compared as the quotient (10 / 10,000 <= 0.001 holds exactly)."""
    f = min(n_nonmembers, int(fpr * n_nonmembers) + 1)
    while f > 0 and f / n_nonmembers > fpr:
        f -= 1
    return f
