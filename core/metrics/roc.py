"""ROC curve of an attack's scores: its area, and the true-positive rate at low error rates."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy import ndarray


def checked(scores: ndarray, member: ndarray) -> tuple[ndarray, ndarray]:
    """Convert to [n] float64 and [n] bool; ValueError for scores that cannot be judged."""
    scores = np.asarray(scores, dtype=np.float64)
    member = np.asarray(member)
    if scores.ndim != 1 or member.shape != scores.shape:
        raise ValueError(
            f"scores and member must be two vectors of one length, got {scores.shape} and "
            f"{member.shape}"
        )
    if member.dtype != bool and not np.isin(member, (0, 1)).all():
        raise ValueError("member must hold booleans (or 0 and 1) only")
    bad = np.flatnonzero(~np.isfinite(scores))
    if len(bad):
        raise ValueError(
            f"{len(bad)} of {len(scores)} scores are not finite, the first at position {bad[0]}"
        )
    member = member.astype(bool)
    members = int(member.sum())
    if members in (0, len(member)):
        raise ValueError(
            f"both classes are needed: {members} members, {len(member) - members} non-members"
        )
    return scores, member


class Counts(NamedTuple):
    """Candidates at each of the m distinct scores, ascending."""

    values: ndarray
    """[m] the scores"""
    members: ndarray
    """[m] int"""
    nonmembers: ndarray
    """[m] int"""


def counts_by_value(scores: ndarray, member: ndarray) -> Counts:
    """Count members and non-members at each distinct score."""
    scores, member = checked(scores, member)
    order = np.argsort(scores)
    ascending = scores[order]
    last = np.flatnonzero(np.append(ascending[1:] != ascending[:-1], True))
    upto = np.append(-1, last)
    members = np.diff(np.cumsum(member[order])[last], prepend=0)
    return Counts(ascending[last], members, np.diff(upto) - members)


def allowed_false_positives(n_nonmembers: int, fpr: float) -> int:
    """Largest number f of false positives with an expected rate of at most ``fpr``; -1: none.

    The threshold lies just above the (f+1)-th largest of n non-members, which another
    non-member exceeds with a chance of at most (f + 1) / (n + 1), exactly so without ties
    (conformal p-values: Vovk et al. 2005, section 2.2). The share f / n of those at hand is
    smaller: counting by it finds (f + 1) / f times as many of the members without any leak.
    """
    n = n_nonmembers + 1
    f = min(n, int(fpr * n) + 1)
    while f > 0 and f / n > fpr:  # compared as the quotient: 10 / 10,000 <= 0.001 holds exactly
        f -= 1
    return f - 1


# --- curve and area -------------------------------------------------------------------------------


def auc(scores: ndarray, member: ndarray) -> float:
    """Area under the ROC curve: P(member's score > non-member's), ties one half."""
    return auc_of(counts_by_value(scores, member))


def auc_of(counts: Counts) -> float:
    """:func:`auc` from counts."""
    _, members, nonmembers = counts
    below = np.cumsum(nonmembers) - 0.5 * nonmembers
    return float(members @ below / (members.sum() * nonmembers.sum()))


def roc_curve(scores: ndarray, member: ndarray) -> tuple[ndarray, ndarray, ndarray]:
    """Points (fpr, tpr, thresholds), each [m + 1] for m distinct scores.

    Point 0 is (0, 0) at threshold +inf; point j flags scores >= thresholds[j].
    """
    return _curve(counts_by_value(scores, member))


def _curve(counts: Counts) -> tuple[ndarray, ndarray, ndarray]:
    values, members, nonmembers = counts
    false = np.concatenate([[0], np.cumsum(nonmembers[::-1])])
    true = np.concatenate([[0], np.cumsum(members[::-1])])
    thresholds = np.concatenate([[np.inf], values[::-1]])
    return false / false[-1], true / true[-1], thresholds


def advantage(scores: ndarray, member: ndarray) -> float:
    """Membership advantage: largest TPR - FPR over thresholds (Yeom et al., CSF 2018), signed.

    An inverted attack has 0. The threshold is chosen on the evaluated membership, so the value is
    above 0 even for noise.
    """
    return advantage_of(counts_by_value(scores, member))


def advantage_of(counts: Counts) -> float:
    """:func:`advantage` from counts."""
    fpr, tpr, _ = _curve(counts)
    return float(np.max(tpr - fpr))


def balanced_accuracy(scores: ndarray, member: ndarray) -> float:
    """(TPR + TNR) / 2 at the threshold of the advantage: (1 + advantage) / 2."""
    return balanced_accuracy_of(counts_by_value(scores, member))


def balanced_accuracy_of(counts: Counts) -> float:
    """:func:`balanced_accuracy` from counts."""
    return (1 + advantage_of(counts)) / 2


# --- true-positive rate at a low false-positive rate ----------------------------------------------


TF01_FPR = 0.001
# With fewer no false positive is allowed, and the value reads far too low on a concave curve.
TF01_MIN_NONMEMBERS = 1999


def tf01(scores: ndarray, member: ndarray) -> float | None:
    """TPR at 0.1 % FPR in PERCENT (0 to 100); None with fewer than 1,999 non-members.

    docs/method.md#tf01 has its bias; boards pool targets and seeds
    (``leaderboard/statistics/tf01.py``).
    """
    return tf01_of(counts_by_value(scores, member))


def tf01_of(counts: Counts) -> float | None:
    """:func:`tf01` from counts."""
    if counts.nonmembers.sum() < TF01_MIN_NONMEMBERS:
        return None
    return 100 * _tpr_at_fpr(counts, TF01_FPR)


def tpr_at_fpr(scores: ndarray, member: ndarray, fpr: float) -> float:
    """TPR at ``fpr``; both rates are FRACTIONS (0 to 1).

    Largest TPR among thresholds that a new non-member exceeds with a chance of at most ``fpr``; 0
    where there are too few non-members for any. Unbiased without a leak. Papers use other
    conventions: docs/methods/protocol.md.
    """
    if not 0 < fpr <= 1:
        raise ValueError(f"fpr must be in (0, 1], got {fpr}")
    return _tpr_at_fpr(counts_by_value(scores, member), fpr)


def _tpr_at_fpr(counts: Counts, fpr: float) -> float:
    _, members, nonmembers = counts
    false = np.cumsum(nonmembers[::-1])
    true = np.cumsum(members[::-1])
    allowed = false <= allowed_false_positives(int(nonmembers.sum()), fpr)
    largest = np.where(allowed, true, 0).max()
    return float(largest / members.sum())


# --- covariance of areas --------------------------------------------------------------------------


def auc_covariance(scores: ndarray, member: ndarray) -> tuple[ndarray, ndarray]:
    """(AUC [V], covariance [V, V]) of V score vectors [V, n] over the same n candidates; at least 2
    of each class.

    DeLong, DeLong & Clarke-Pearson, Biometrics 1988: the covariance of the placement values of
    members and of non-members. It is the limit of the paired bootstrap over both classes and needs
    no randomness, so the error of any weighted sum w of AUCs (a mean over attacks, a difference of
    two defenses) is sqrt(w' C w).
    """
    aucs, *placed = placements(scores, member)
    return aucs, covariance_of(*placed)


def covariance_of(of_members: ndarray, of_nonmembers: ndarray) -> ndarray:
    """[V, V] covariance of AUCs from their :func:`placements`; ValueError below 2 of a class."""
    members = of_members.shape[1]
    nonmembers = of_nonmembers.shape[1]
    if min(members, nonmembers) < 2:
        raise ValueError("a covariance needs at least 2 members and 2 non-members")
    member_part = np.cov(of_members) / members
    nonmember_part = np.cov(1 - of_nonmembers) / nonmembers
    return np.atleast_2d(member_part + nonmember_part)


def placements(scores: ndarray, member: ndarray) -> tuple[ndarray, ndarray, ndarray]:
    """AUC [V] of score vectors [V, n], the share of non-members below each member [V, members], and
    of members below each non-member [V, non-members]; ties one half.

    From midranks: Sun & Xu, IEEE Signal Processing Letters 2014. Raises ValueError for scores that
    cannot be judged.
    """
    from scipy.stats import rankdata  # a second to import

    rows = np.atleast_2d(np.asarray(scores, np.float64))
    for row in rows:
        member = checked(row, member)[1]
    ranks = rankdata(rows, axis=1)
    below, members_below = (
        # row by row in memory: sums then have the order of those of one vector
        np.ascontiguousarray(ranks[:, mask] - rankdata(rows[:, mask], axis=1))
        for mask in (member, ~member)
    )
    members = below.shape[1]
    nonmembers = members_below.shape[1]
    aucs = below.sum(axis=1) / (members * nonmembers)
    return aucs, below / nonmembers, members_below / members
