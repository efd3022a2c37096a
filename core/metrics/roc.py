"""The ROC curve of an attack's scores: its area with an error, and the true-positive rate at a low
false-positive rate.
"""

from __future__ import annotations

import numpy as np


def checked(scores: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``scores`` as [n] float64 and ``member`` as [n] bool; ValueError when they cannot be judged."""
    scores, member = np.asarray(scores, dtype=np.float64), np.asarray(member)
    if scores.ndim != 1 or member.shape != scores.shape:
        raise ValueError(
            f"scores and member must be two vectors of one length, got {scores.shape} and "
            f"{member.shape}"
        )
    if member.dtype != bool:
        if not np.isin(member, (0, 1)).all():
            raise ValueError("member must hold booleans (or 0 and 1) only")
        member = member.astype(bool)
    bad = ~np.isfinite(scores)
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"{int(bad.sum())} of {len(scores)} scores are not finite, the first at position "
            f"{first}"
        )
    if member.all() or not member.any():
        raise ValueError(
            f"both classes are needed: {int(member.sum())} members, {int((~member).sum())} "
            "non-members"
        )
    return scores, member


def count(scores: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(values [m] ascending and distinct, members [m], non-members [m]): how many candidates have
    each value.
    """
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
    """Largest TPR with at most ``allowed`` false positives of counts [..., m] over ascending
    values; 0 where it is negative.
    """
    fp = np.cumsum(nonmembers[..., ::-1], axis=-1)
    steps = (fp <= allowed).sum(axis=-1)  # fp grows, so these are the first ones
    tp = np.cumsum(members[..., ::-1], axis=-1)
    last = np.take_along_axis(tp, np.maximum(steps - 1, 0)[..., None], axis=-1)[..., 0]
    rates: np.ndarray = np.where(steps > 0, last, 0) / members.sum(axis=-1)
    return rates


def allowed_false_positives(n_nonmembers: int, fpr: float) -> int:
    """The most false positives f at which the threshold's expected false-positive rate is at most
    ``fpr``; -1: not even 0.

    The threshold then lies just above the (f+1)-th largest of n non-members, which another
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


def auc(scores: np.ndarray, member: np.ndarray) -> float:
    """Area under the ROC curve: P(member's score > non-member's), ties one half (Mann-Whitney U,
    exact ranks).
    """
    _, members, nonmembers = count(scores, member)
    return float(auc_of_counts(members, nonmembers))


def roc_curve(scores: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(fpr, tpr, thresholds), each [m + 1] for m distinct scores: every step, none dropped.

    Point 0 is (0, 0) at threshold +inf; point j flags scores >= thresholds[j].
    """
    values, members, nonmembers = count(scores, member)
    fp, tp = (np.concatenate([[0], np.cumsum(c[::-1])]) for c in (nonmembers, members))
    return fp / fp[-1], tp / tp[-1], np.concatenate([[np.inf], values[::-1]])


def advantage(scores: np.ndarray, member: np.ndarray) -> float:
    """Membership advantage max over thresholds of TPR - FPR (Yeom et al., CSF 2018), signed: an
    inverted attack has 0.

    The threshold is chosen on the evaluated membership, so the value is an oracle's: above 0 even
    for noise.
    """
    fpr, tpr, _ = roc_curve(scores, member)
    return float(np.max(tpr - fpr))


def balanced_accuracy(scores: np.ndarray, member: np.ndarray) -> float:
    """(TPR + TNR) / 2 at the threshold of the best advantage: (1 + advantage) / 2, an oracle's as
    well.
    """
    return (1 + advantage(scores, member)) / 2


# --- true-positive rate at a low false-positive rate ----------------------------------------------


TF01_FPR = 0.001
# With fewer not even one false positive is allowed, and where the ROC curve is concave the value
# reads far too low.
TF01_MIN_NONMEMBERS = 1999


def tf01(scores: np.ndarray, member: np.ndarray) -> float | None:
    """TPR at 0.1 % FPR in PERCENT (0 to 100); None with fewer than 1,999 non-members.

    docs/method.md#tf01 has its bias; boards pool targets and seeds
    (``leaderboard/statistics/tf01.py``).
    """
    return (
        100 * tpr_at_fpr(scores, member, TF01_FPR)
        if np.sum(~np.asarray(member, bool)) >= TF01_MIN_NONMEMBERS
        else None
    )


def tpr_at_fpr(scores: np.ndarray, member: np.ndarray, fpr: float) -> float:
    """TPR at ``fpr`` as a FRACTION (0 to 1); both rates are fractions.

    The largest TPR among thresholds that a new non-member exceeds with a chance of at most ``fpr``;
    0 where there are too few non-members for any. Unbiased without a leak. Papers use other
    conventions: docs/methods/protocol.md.
    """
    if not 0 < fpr <= 1:
        raise ValueError(f"fpr must be in (0, 1], got {fpr}")
    _, members, nonmembers = count(scores, member)
    return float(
        tpr_of_counts(members, nonmembers, allowed_false_positives(int(nonmembers.sum()), fpr))
    )


# --- covariance of areas --------------------------------------------------------------------------


def auc_covariance(scores: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(AUC [V], covariance [V, V]) of V score vectors [V, n] over the same n candidates; at least 2
    of each class.

    DeLong, DeLong & Clarke-Pearson, Biometrics 1988: the covariance of the placement values of
    members and of non-members. It is the limit of the paired bootstrap over both classes and needs
    no randomness, so the error of any weighted sum w of AUCs (a mean over attacks, a difference of
    two defenses) is sqrt(w' C w).
    """
    aucs, *placed = placements(scores, member)
    return aucs, covariance_of(*placed)


def covariance_of(of_members: np.ndarray, of_nonmembers: np.ndarray) -> np.ndarray:
    """[V, V]: the covariance of AUCs, of their :func:`placements`. ValueError of fewer than 2 of a
    class.
    """
    if min(of_members.shape[1], of_nonmembers.shape[1]) < 2:
        raise ValueError("a covariance needs at least 2 members and 2 non-members")
    covariance = (
        np.cov(of_members) / of_members.shape[1]
        + np.cov(1 - of_nonmembers) / of_nonmembers.shape[1]
    )
    return np.atleast_2d(covariance)


def placements(scores: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of score vectors [V, n]: AUC [V]; for each member the share of non-members below it [V,
    members]; for each non-member the share of members below it [V, non-members]. Ties count one
    half. ValueError: scores that cannot be judged.
    """
    rows = np.atleast_2d(np.asarray(scores, np.float64))
    member = checked(rows[0], member)[1]
    if not np.isfinite(rows).all():
        for row in rows:
            checked(row, member)  # says which
    order = np.argsort(rows, axis=1)
    ascending, called = np.take_along_axis(rows, order, 1), member[order]
    members, others = int(member.sum()), int((~member).sum())
    # non-members up to each place, members up to it are the rest
    lower = np.cumsum(~called, axis=1)
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
    members, nonmembers = (
        np.bincount(group[mask], minlength=len(values)) for mask in (member, ~member)
    )
    below = (np.cumsum(nonmembers) - 0.5 * nonmembers) / nonmembers.sum()
    members_below = (np.cumsum(members) - 0.5 * members) / members.sum()
    return (
        float(auc_of_counts(members, nonmembers)),
        below[group[member]],
        members_below[group[~member]],
    )
