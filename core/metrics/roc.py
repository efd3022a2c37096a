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
    aucs, of_members, of_nonmembers = placements(scores, member)
    m, n = of_members.shape[1], of_nonmembers.shape[1]
    if min(m, n) < 2:
        raise ValueError("a covariance needs at least 2 members and 2 non-members")
    covariance = np.cov(of_members) / m + np.cov(1 - of_nonmembers) / n
    return aucs, np.atleast_2d(covariance)


def placements(scores: ndarray, member: ndarray) -> tuple[ndarray, ndarray, ndarray]:
    """AUC [V] of score vectors [V, n], the share of non-members below each member [V, members], and
    of members below each non-member [V, non-members]; ties one half.

    Raises ValueError for scores that cannot be judged.
    """
    of_members, of_nonmembers = placement_counts(scores, member)
    m, n = of_members.shape[1], of_nonmembers.shape[1]
    aucs = of_members.sum(axis=1) / (2 * m * n)
    return aucs, of_members / (2 * n), of_nonmembers / (2 * m)


def placement_counts(scores: ndarray, member: ndarray) -> tuple[ndarray, ndarray]:
    """Twice the number of non-members below each member [V, members] of score vectors [V, n], and
    of members below each non-member [V, non-members]; equal ones count once.

    Counted in one sorting of each vector, as from midranks: Sun & Xu, IEEE Signal Processing
    Letters 2014. Raises ValueError for scores that cannot be judged.
    """
    rows = np.atleast_2d(np.asarray(scores, np.float64))
    member = checked(rows[0], member)[1]
    if not np.isfinite(rows).all():
        for row in rows:
            checked(row, member)
    order = np.argsort(rows, axis=1)
    first, last = _ties(np.take_along_axis(rows, order, axis=1))
    is_member = member[order]
    nonmembers_before = np.cumsum(~is_member, axis=1) - ~is_member
    # those before the first equal score, and again those up to the last
    nonmembers = np.take_along_axis(nonmembers_before, first, axis=1)
    nonmembers += np.take_along_axis(nonmembers_before + ~is_member, last, axis=1)
    members = first + last + 1 - nonmembers
    below = np.empty_like(order)
    np.put_along_axis(below, order, np.where(is_member, nonmembers, members), axis=1)
    # row by row in memory: sums then have the order of those of one vector
    return np.ascontiguousarray(below[:, member]), np.ascontiguousarray(below[:, ~member])


def _ties(ascending: ndarray) -> tuple[ndarray, ndarray]:
    """First and last position [V, n] of the values equal to each of ascending vectors [V, n]."""
    positions = np.broadcast_to(np.arange(ascending.shape[1]), ascending.shape)
    differs = ascending[:, 1:] != ascending[:, :-1]
    if differs.all():
        return positions, positions
    first, last = np.array(positions), np.array(positions)
    first[:, 1:][~differs] = 0
    last[:, :-1][~differs] = ascending.shape[1]
    last = np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1]
    return np.maximum.accumulate(first, axis=1), last
