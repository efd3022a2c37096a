"""Analytic covariance of AUCs measured on the same candidates."""

from __future__ import annotations

import numpy as np

from fedbench.core.metrics.counts import auc_of_counts, checked


def auc_covariance(scores: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(AUC [V], covariance [V, V]) of V score vectors [V, n] over the same n candidates; at least 2 of each class.

    DeLong, DeLong & Clarke-Pearson, Biometrics 1988: the covariance of the placement values of members and of
    non-members. It is the limit of the paired bootstrap over both classes and needs no randomness, so the error of any
    weighted sum w of AUCs (a mean over attacks, a difference of two defenses) is sqrt(w' C w).
    """
    checks = [checked(row, member) for row in np.atleast_2d(scores)]
    member = checks[0][1]
    if member.sum() < 2 or (~member).sum() < 2:
        raise ValueError("a covariance needs at least 2 members and 2 non-members")
    parts = [_placements(row, member) for row, _ in checks]
    of_members, of_nonmembers = (np.stack([p[i] for p in parts]) for i in (1, 2))
    covariance = np.cov(of_members) / of_members.shape[1] + np.cov(of_nonmembers) / of_nonmembers.shape[1]
    return np.array([p[0] for p in parts]), np.atleast_2d(covariance)


def _placements(scores: np.ndarray, member: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """AUC; for each member the share of non-members below it; for each non-member the share of members above it."""
    values, group = np.unique(scores, return_inverse=True)
    members, nonmembers = (np.bincount(group[mask], minlength=len(values)) for mask in (member, ~member))
    below = (np.cumsum(nonmembers) - 0.5 * nonmembers) / nonmembers.sum()
    above = 1 - (np.cumsum(members) - 0.5 * members) / members.sum()
    return float(auc_of_counts(members, nonmembers)), below[group[member]], above[group[~member]]
