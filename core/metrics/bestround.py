"""Which round of a single-round attack counts: the last one, one chosen on separate candidates, or the oracle's best.

The oracle picks on the evaluated membership itself, so it stands next to what the same picking finds in noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedbench.core.metrics.counts import allowed_false_positives, auc_of_counts, checked, tpr_of_counts
from fedbench.core.metrics.tpr import TF01_FPR, TF01_MIN_NONMEMBERS


@dataclass(frozen=True, kw_only=True)
class RoundReport:
    """One attack's scores in R rounds as numbers; TF01 in percent, None with fewer than 1,999 non-members to judge by.

    ``last_*``: the last round with scores. ``calibrated_*``: on one random half of the candidates, the round whose AUC
    (or TF01, ties by AUC) is the largest on the OTHER half; None when a class has fewer than two candidates.
    ``best_*``: the oracle, at position ``best_index`` of the R rounds; ``null_best_*``: its mean over shuffled
    memberships, never to be left out where ``best_*`` is shown.
    """

    last_auc: float
    last_tf01: float | None
    calibrated_auc: float | None
    calibrated_tf01: float | None
    best_auc: float
    best_tf01: float | None
    best_index: int
    null_best_auc: float
    null_best_tf01: float | None


def round_report(
    scores: np.ndarray, member: np.ndarray, rng: np.random.Generator, shuffles: int = 20
) -> RoundReport:
    """Last, calibrated and best round of ``scores`` [R, n] against ``member`` [n], the best with its null value.

    A row of NaN is a round without the target: it cannot be chosen, and the last round is the last other one. The best
    round has the largest TF01, ties by AUC, and its AUC is reported (FedMIA: Zhu et al., CVPR 2025, table 1, where
    single-round attacks are given by their best of 30 snapshots); where TF01 is None, the largest AUC.
    The null repeats exactly this on shuffled membership. ``rng`` draws the half and the shuffles.
    Raises ValueError on partly non-finite rounds, when no round is left, and when a class is missing.
    """
    rounds = np.atleast_2d(np.asarray(scores, np.float64))
    there = np.flatnonzero(~np.isnan(rounds).all(axis=1))
    if len(there) == 0:
        raise ValueError("no round has scores")
    rows = [checked(rounds[r], member) for r in there]
    x, flags = np.stack([row for row, _ in rows]), rows[0][1]
    calibrated_auc, calibrated_tf01 = _calibrated(x, flags, rng)
    aucs, tf01s = _per_round(x, np.stack([flags, *(rng.permutation(flags) for _ in range(shuffles))]))
    best = _best(aucs, tf01s)  # [1 + shuffles]
    at_best_auc, at_best_tf01 = (np.take_along_axis(a, best[:, None], axis=1)[:, 0] for a in (aucs, tf01s))
    return RoundReport(
        last_auc=float(aucs[0, -1]),
        last_tf01=_or_none(tf01s[0, -1]),
        calibrated_auc=calibrated_auc,
        calibrated_tf01=calibrated_tf01,
        best_auc=float(at_best_auc[0]),
        best_tf01=_or_none(at_best_tf01[0]),
        best_index=int(there[best[0]]),
        null_best_auc=float(at_best_auc[1:].mean()),
        null_best_tf01=_or_none(at_best_tf01[1:].mean()),
    )


def _calibrated(x: np.ndarray, member: np.ndarray, rng: np.random.Generator) -> tuple[float | None, float | None]:
    """(AUC, TF01), each on the second half, in the round where it was best on the first; the halves are stratified."""
    first = np.zeros(len(member), bool)
    for group in (np.flatnonzero(member), np.flatnonzero(~member)):
        if len(group) < 2:
            return None, None
        first[rng.permutation(group)[: len(group) // 2]] = True
    auc_1, tf01_1 = _per_round(x[:, first], member[None, first])
    auc_2, tf01_2 = _per_round(x[:, ~first], member[None, ~first])
    by_tf01 = int(_best(auc_1, tf01_1)[0])
    return float(auc_2[0, np.argmax(auc_1[0])]), _or_none(tf01_2[0, by_tf01])


def _best(aucs: np.ndarray, tf01s: np.ndarray) -> np.ndarray:
    """[S]: the round of largest TF01, ties by AUC, of [S, R]; by AUC alone where TF01 is NaN."""
    first = np.nan_to_num(tf01s)
    best: np.ndarray = np.argmax(np.where(first == first.max(axis=1, keepdims=True), aucs, -1.0), axis=1)
    return best


def _per_round(x: np.ndarray, flags: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(AUC [S, R], TF01 [S, R]) of rounds ``x`` [R, n] under S memberships of one size; each round is sorted once."""
    out = [_of_round(row, flags) for row in x]
    return np.stack([a for a, _ in out], axis=1), np.stack([t for _, t in out], axis=1)


def _of_round(row: np.ndarray, flags: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    values, group = np.unique(row, return_inverse=True)
    total = np.bincount(group, minlength=len(values))
    members = np.stack([np.bincount(group[f], minlength=len(values)) for f in flags])
    if (~flags[0]).sum() < TF01_MIN_NONMEMBERS:
        return auc_of_counts(members, total - members), np.full(len(flags), np.nan)
    allowed = allowed_false_positives(int((~flags[0]).sum()), TF01_FPR)
    return auc_of_counts(members, total - members), 100 * tpr_of_counts(members, total - members, allowed)


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
