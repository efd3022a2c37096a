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
    aucs, *placed = placements(scores, member)
    return aucs, covariance_of(*placed)


def covariance_of(of_members: np.ndarray, of_nonmembers: np.ndarray) -> np.ndarray:
    """[V, V]: the covariance of AUCs, of their :func:`placements`. ValueError of fewer than 2 of a class."""
    if min(of_members.shape[1], of_nonmembers.shape[1]) < 2:
        raise ValueError("a covariance needs at least 2 members and 2 non-members")
    covariance = np.cov(of_members) / of_members.shape[1] + np.cov(1 - of_nonmembers) / of_nonmembers.shape[1]
    return np.atleast_2d(covariance)


def placements(scores: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of score vectors [V, n]: AUC [V]; for each member the share of non-members below it [V, members]; for each non-member the
    share of members below it [V, non-members]. Ties count one half. ValueError: scores that cannot be judged."""
    rows = np.atleast_2d(np.asarray(scores, np.float64))
    member = checked(rows[0], member)[1]
    if not np.isfinite(rows).all():
        for row in rows:
            checked(row, member)  # says which
    order = np.argsort(rows, axis=1)
    ascending, called = np.take_along_axis(rows, order, 1), member[order]
    members, others = int(member.sum()), int((~member).sum())
    lower = np.cumsum(~called, axis=1)  # non-members up to each place, members up to it are the rest
    shares = np.where(called, lower / others, (np.arange(1, rows.shape[1] + 1) - lower) / members)
    found = np.empty_like(rows)
    np.put_along_axis(found, order, shares, 1)
    aucs = np.where(called, lower, 0).sum(axis=1) / (members * others)
    # row by row in memory, so that sums have the order that they have for one vector
    of_members, of_nonmembers = (np.ascontiguousarray(found[:, mask]) for mask in (member, ~member))
    for i in np.flatnonzero((ascending[:, 1:] == ascending[:, :-1]).any(axis=1)):
        aucs[i], of_members[i], of_nonmembers[i] = _placements(rows[i], member)
    return aucs, of_members, of_nonmembers


def _placements(scores: np.ndarray, member: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """The same of one vector, in which some scores are equal."""
    values, group = np.unique(scores, return_inverse=True)
    members, nonmembers = (np.bincount(group[mask], minlength=len(values)) for mask in (member, ~member))
    below = (np.cumsum(nonmembers) - 0.5 * nonmembers) / nonmembers.sum()
    members_below = (np.cumsum(members) - 0.5 * members) / members.sum()
    return float(auc_of_counts(members, nonmembers)), below[group[member]], members_below[group[~member]]
