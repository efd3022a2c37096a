"""Which round of an attack counts: the last, one chosen on other candidates, or the best, beside
its null value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedbench.core.contract.attack import EXCLUDED, MEMBER, OFL
from fedbench.core.metrics.intervals import SharedDraws
from fedbench.core.metrics.roc import (
    TF01_FPR,
    TF01_MIN_NONMEMBERS,
    allowed_false_positives,
    auc_of_counts,
    checked,
    tpr_of_counts,
)


@dataclass(frozen=True, kw_only=True)
class RoundReport:
    """One attack's scores in R rounds as numbers; TF01 in percent, None with fewer than 1,999
    non-members to judge by.

    ``last_*``: the last round with scores. ``calibrated_*``: on one random half of the candidates,
    the round with the largest AUC (or TF01, ties by AUC) on the OTHER half; None when a class has
    fewer than two candidates. ``best_*``: the oracle, at position ``best_index`` of the R rounds;
    ``null_best_*``: its mean over shuffled memberships, never to be left out where ``best_*`` is
    shown.
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
    """Last, calibrated and best round of ``scores`` [R, n] against ``member`` [n], the best with
    its null value.

    A row of NaN is a round without the target: it cannot be chosen, and the last round is the last
    other one. The best round has the largest TF01, ties by AUC, and its AUC is reported (FedMIA:
    Zhu et al., CVPR 2025, table 1, where single-round attacks are given by their best of 30
    snapshots); where TF01 is None, the largest AUC. The null repeats exactly this on shuffled
    membership. ``rng`` draws the half and the shuffles. Raises ValueError on partly non-finite
    rounds, when no round is left, and when a class is missing.
    """
    rounds, there = _with_scores(scores)
    rows = [checked(rounds[r], member) for r in there]
    x, flags = np.stack([row for row, _ in rows]), rows[0][1]
    calibrated_auc, calibrated_tf01 = _calibrated(x, flags, rng)
    aucs, tf01s = _per_round(
        x, np.stack([flags, *(rng.permutation(flags) for _ in range(shuffles))])
    )
    best = _best(aucs, tf01s)  # [1 + shuffles]
    at_best_auc, at_best_tf01 = (
        np.take_along_axis(a, best[:, None], axis=1)[:, 0] for a in (aucs, tf01s)
    )
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


def _calibrated(
    x: np.ndarray, member: np.ndarray, rng: np.random.Generator
) -> tuple[float | None, float | None]:
    """(AUC, TF01), each on the second half, in the round where it was best on the first."""
    first = _half(member, rng)
    if first is None:
        return None, None
    auc_1, tf01_1 = _per_round(x[:, first], member[None, first])
    auc_2, tf01_2 = _per_round(x[:, ~first], member[None, ~first])
    by_tf01 = int(_best(auc_1, tf01_1)[0])
    return float(auc_2[0, np.argmax(auc_1[0])]), _or_none(tf01_2[0, by_tf01])


def _with_scores(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """([R, n] float64, positions of the rounds that are not all NaN). Raises ValueError if there is
    none.
    """
    rounds = np.atleast_2d(np.asarray(scores, np.float64))
    there = np.flatnonzero(~np.isnan(rounds).all(axis=1))
    if len(there) == 0:
        raise ValueError("no round has scores")
    return rounds, there


def _half(member: np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
    """[n] bool: a random half of the members and of the non-members; None where a class has fewer
    than two.
    """
    first = np.zeros(len(member), bool)
    for group in (np.flatnonzero(member), np.flatnonzero(~member)):
        if len(group) < 2:
            return None
        first[rng.permutation(group)[: len(group) // 2]] = True
    return first


def _best(aucs: np.ndarray, tf01s: np.ndarray) -> np.ndarray:
    """[S]: the round of largest TF01, ties by AUC, of [S, R]; by AUC alone where TF01 is NaN."""
    first = np.nan_to_num(tf01s)
    best: np.ndarray = np.argmax(
        np.where(first == first.max(axis=1, keepdims=True), aucs, -1.0), axis=1
    )
    return best


def _per_round(x: np.ndarray, flags: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(AUC [S, R], TF01 [S, R]) of rounds ``x`` [R, n] under S memberships of one size; each round
    is sorted once.
    """
    out = [_of_round(row, flags) for row in x]
    return np.stack([a for a, _ in out], axis=1), np.stack([t for _, t in out], axis=1)


def _of_round(row: np.ndarray, flags: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    values, group = np.unique(row, return_inverse=True)
    total = np.bincount(group, minlength=len(values))
    members = np.stack([np.bincount(group[f], minlength=len(values)) for f in flags])
    if (~flags[0]).sum() < TF01_MIN_NONMEMBERS:
        return auc_of_counts(members, total - members), np.full(len(flags), np.nan)
    allowed = allowed_false_positives(int((~flags[0]).sum()), TF01_FPR)
    return auc_of_counts(members, total - members), 100 * tpr_of_counts(
        members, total - members, allowed
    )


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


# --- attacks with a threshold of their own --------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DecisionReport:
    """As fractions. ``*_accuracy``: (TPR + TNR) / 2, which for equal classes is the share of right
    answers; ``*_precision``: None if no candidate was called a member.

    ``last_*``: the last round with scores. ``calibrated_*``: the round of the best accuracy on a
    random half of the candidates, judged on the other half; None when a class has fewer than two.
    ``best_*``: the oracle, at position ``best_index``; ``null_best_accuracy``: its mean over
    shuffled memberships.
    """

    last_accuracy: float
    last_precision: float | None
    last_recall: float
    calibrated_accuracy: float | None
    calibrated_precision: float | None
    calibrated_recall: float | None
    best_accuracy: float
    best_precision: float | None
    best_recall: float
    best_index: int
    null_best_accuracy: float


def decision_report(
    scores: np.ndarray,
    member: np.ndarray,
    threshold: float,
    rng: np.random.Generator,
    shuffles: int = 20,
) -> DecisionReport:
    """Judge "member iff score > ``threshold``" of ``scores`` [R, n] (or [n]) against ``member``
    [n].

    A row of NaN is a round without the target. ``rng`` draws the half and the shuffles. Raises
    ValueError when no round is left or a class is missing.
    """
    rounds, there = _with_scores(scores)
    member = np.asarray(member, bool)
    if member.all() or not member.any():
        raise ValueError("members and non-members are both needed")
    called = rounds[there] > threshold
    accuracies = _accuracy(called, member)
    best = int(np.argmax(accuracies))
    null = [float(_accuracy(called, rng.permutation(member)).max()) for _ in range(shuffles)]
    last, calibrated, oracle = (
        _three(called[-1], member),
        _calibrated_decision(called, member, rng),
        _three(called[best], member),
    )
    return DecisionReport(
        last_accuracy=last[0],
        last_precision=last[1],
        last_recall=last[2],
        calibrated_accuracy=calibrated[0],
        calibrated_precision=calibrated[1],
        calibrated_recall=calibrated[2],
        best_accuracy=oracle[0],
        best_precision=oracle[1],
        best_recall=oracle[2],
        best_index=int(there[best]),
        null_best_accuracy=float(np.mean(null)),
    )


def _accuracy(called: np.ndarray, member: np.ndarray) -> np.ndarray:
    """[R] balanced accuracy."""
    accuracies: np.ndarray = (
        called[:, member].mean(axis=1) + (~called[:, ~member]).mean(axis=1)
    ) / 2
    return accuracies


def _three(called: np.ndarray, member: np.ndarray) -> tuple[float, float | None, float]:
    """(accuracy, precision, recall) of one round."""
    precision = float(member[called].mean()) if called.any() else None
    return float(_accuracy(called[None], member)[0]), precision, float(called[member].mean())


def _calibrated_decision(
    called: np.ndarray, member: np.ndarray, rng: np.random.Generator
) -> tuple[float | None, float | None, float | None]:
    first = _half(member, rng)
    if first is None:
        return None, None, None
    chosen = int(np.argmax(_accuracy(called[:, first], member[first])))
    return _three(called[chosen][~first], member[~first])


# --- the largest of many rounds and attacks -------------------------------------------------------


SHUFFLES = 200
_CHUNK = 200_000  # shuffled memberships held at once: bounds memory, changes no number


@dataclass(frozen=True, kw_only=True)
class Maximum:
    """The largest ``auc`` and, for itself, the largest signed ``advantage`` (max over thresholds of
    TPR - FPR) of ``looks`` rounds; ``null_auc`` and ``null_advantage`` [B]: the same under each of
    B shuffled memberships.
    """

    auc: float
    advantage: float
    looks: int
    null_auc: np.ndarray
    null_advantage: np.ndarray


def maximum(
    scores: np.ndarray,
    kind: np.ndarray,
    rng: np.random.Generator,
    shuffles: int = SHUFFLES,
    kept: SharedDraws | None = None,
) -> Maximum | None:
    """Over the rounds of ``scores`` [R, n]: members against outside non-members or, where there are
    none, against all others.

    ``kind``: [n] int, 0 member, 1 outside the federation, 2 another client's, negative excluded.
    ``rng`` draws one order of all n candidates a shuffle, of which the first that count are called
    members: a generator of one key gives one membership whatever the attack, its scores and its
    rounds are, so that maxima over attacks can be taken shuffle by shuffle; ``kept`` holds them for
    the other attacks. A row of NaN is a round without the target and no look. None without members
    or without non-members. Raises ValueError on partly non-finite rounds, and when no round is
    left.
    """
    counts = who_counts(kind)
    member = kind[counts] == MEMBER
    if member.all() or not member.any():
        return None
    rounds, positions = _with_scores(np.atleast_2d(scores)[:, counts])
    there = rounds[positions]
    for row in there:
        checked(row, member)
    asked = counts, int(member.sum()), rng, shuffles
    (chance,) = (kept or SharedDraws(0)).draw(
        rng, (counts.tobytes(), *asked[1::2]), lambda: (shuffled(*asked),)
    )
    flags = np.concatenate([member[None], chance])
    aucs, advantages = _largest(there, flags)
    return Maximum(
        auc=float(aucs[0]),
        advantage=float(advantages[0]),
        looks=len(there),
        null_auc=aucs[1:],
        null_advantage=advantages[1:],
    )


def who_counts(kind: np.ndarray) -> np.ndarray:
    """[n] bool: members and outside non-members; without outside non-members, all that are not
    excluded.
    """
    kind = np.asarray(kind)
    counts: np.ndarray = (
        (kind == MEMBER) | (kind == OFL) if (kind == OFL).any() else kind != EXCLUDED
    )
    return counts


def shuffled(
    counts: np.ndarray, members: int, rng: np.random.Generator, n: int = SHUFFLES
) -> np.ndarray:
    """[n, m] bool: shuffled memberships of the m candidates that count, ``members`` in each.

    Every shuffle orders all candidates, counting or not: where a defense excludes some, the others
    keep their order.
    """
    found = np.zeros((n, len(counts)), bool)
    for row in found:
        order = rng.permutation(len(counts))
        row[order[counts[order]][:members]] = True
    return found[:, counts]


def _largest(rounds: np.ndarray, flags: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(AUC [S], advantage [S]): the largest over ``rounds`` [R, m] under each of the memberships
    ``flags`` [S, m], all of one size.
    """
    members, m = int(flags[0].sum()), flags.shape[1]
    others = m - members
    # half the memory, where it holds the largest product
    whole = np.dtype(np.int32 if m * m < 2**31 else np.int64)
    looked = [_descending(row) for row in rounds]
    sums, bests = np.zeros(len(flags)), np.zeros(len(flags), np.int64)
    for rows in _chunks(flags):
        for order, called, weights in looked:
            # [s, m] true positives
            found: np.ndarray = np.cumsum(flags[rows].take(order, axis=1), axis=1, dtype=whole)
            if len(called) < m:
                found = found[:, called - 1]
            ranks = (
                found.sum(axis=1, dtype=np.int64)
                if len(called) == m
                else np.einsum("sg,g->s", found, weights)
            )
            np.maximum(sums[rows], ranks, out=sums[rows])
            # (TPR - FPR) x members x others = m x true positives - members x all that are called
            # members
            np.multiply(found, m, out=found)
            np.subtract(found, (members * called).astype(whole), out=found)
            np.maximum(bests[rows], found.max(axis=1), out=bests[rows])
    return (sums - members * (members + 1) / 2) / (members * others), bests / (members * others)


def _descending(row: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(order [m] from the largest score down; called [g]: how many a threshold at each distinct
    score calls members; weights [g] of the true positives there: they add up to the members' rank
    sum, 1 the lowest, ties in the middle).

    A member of rank r (no ties) is a true positive at r thresholds, so that without ties every
    weight is 1.
    """
    order = np.argsort(-row, kind="stable")
    values = row[order]
    called = np.flatnonzero(np.concatenate([values[1:] != values[:-1], [True]])) + 1
    middle = len(row) + 0.5 - (np.concatenate([[0], called[:-1]]) + called) / 2
    return order, called, middle - np.concatenate([middle[1:], [0.0]])


def _chunks(flags: np.ndarray) -> Iterator[slice]:
    size = max(1, _CHUNK // flags.shape[1])
    for start in range(0, len(flags), size):
        yield slice(start, start + size)
