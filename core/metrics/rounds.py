"""Choice of an attack's round: the last, one chosen on other candidates, or the best, beside its
null value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy import ndarray
from numpy.random import Generator

from fedbench.core.contract.attack import EXCLUDED, MEMBER, OFL
from fedbench.core.metrics.intervals import SharedDraws
from fedbench.core.metrics.roc import (
    TF01_FPR,
    TF01_MIN_NONMEMBERS,
    allowed_false_positives,
    checked,
)


@dataclass(frozen=True, kw_only=True)
class RoundScores:
    """Metrics of a single-round attack by the choice of its round; TF01 in percent, None with too
    few non-members.
    """

    last_auc: float
    """AUC of the last audited round"""
    last_tf01: float | None
    """TF01 of the last audited round"""
    calibrated_auc: float | None
    """round chosen on a random half of the candidates, judged on the other half"""
    calibrated_tf01: float | None
    """TF01 of the calibrated choice"""
    best_round: int
    """which round the oracle chose"""
    best_auc: float
    """labelled oracle: the round is chosen on the answers; read it only beside its null value"""
    best_tf01: float | None
    """TF01 of the oracle's choice"""
    null_best_auc: float
    """the oracle's mean over shuffled memberships"""
    null_best_tf01: float | None
    """the oracle's mean TF01 over shuffled memberships"""
    # part of a record: unknown fields are refused
    __pydantic_config__: ClassVar = {"extra": "forbid"}


def round_report(
    scores: ndarray,
    member: ndarray,
    numbers: ndarray,
    rng: Generator,
    shuffles: int = 20,
) -> RoundScores:
    """Last, calibrated and best round of ``scores`` [R, n], rounds with these ``numbers`` [R],
    against ``member`` [n].

    A row of NaN is a round without the target, which is not chosen. The best round has the largest
    TF01, ties by AUC (FedMIA: Zhu et al., CVPR 2025, table 1, where single-round attacks are given
    by their best of 30 snapshots); where TF01 is None, the largest AUC. The null repeats this on
    shuffled membership. ``rng`` draws the half and the shuffles.

    Raises:
        ValueError: a round is partly not finite, no round has scores, or a class is missing.
    """
    rounds, present = _with_scores(scores)
    for row in rounds:
        flags = checked(row, member)[1]
    calibrated = _calibrated(rounds, flags, rng)
    memberships = np.stack([flags, *(rng.permutation(flags) for _ in range(shuffles))])
    aucs, tf01s = _by_round(rounds, memberships)
    best = _best(aucs, tf01s)
    best_aucs, best_tf01s = (
        np.take_along_axis(values, best[:, None], axis=1)[:, 0] for values in (aucs, tf01s)
    )
    return RoundScores(
        **_fields("last", aucs[0, -1], tf01s[0, -1]),
        **_fields("calibrated", *calibrated),
        **_fields("best", best_aucs[0], best_tf01s[0]),
        best_round=int(numbers[present[best[0]]]),
        **_fields("null_best", best_aucs[1:].mean(), best_tf01s[1:].mean()),
    )


def _fields(prefix: str, auc: float, tf01: float) -> dict[str, Any]:
    values = {f"{prefix}_auc": float(auc), f"{prefix}_tf01": float(tf01)}
    return {name: None if np.isnan(value) else value for name, value in values.items()}


def _calibrated(rounds: ndarray, member: ndarray, rng: Generator) -> tuple[float, float]:
    """(AUC, TF01) on the second half in the round that is best on the first; NaN if too few."""
    first = _half(member, rng)
    if first is None:
        return np.nan, np.nan
    aucs, tf01s = _by_round(rounds[:, first], member[None, first])
    second_aucs, second_tf01s = _by_round(rounds[:, ~first], member[None, ~first])
    return second_aucs[0, np.argmax(aucs[0])], second_tf01s[0, _best(aucs, tf01s)[0]]


def _with_scores(scores: ndarray) -> tuple[ndarray, ndarray]:
    """Rounds that are not all NaN, [r, n] float64, and their positions. ValueError for none."""
    rounds = np.atleast_2d(np.asarray(scores, np.float64))
    present = np.flatnonzero(~np.isnan(rounds).all(axis=1))
    if not len(present):
        raise ValueError("no round has scores")
    return rounds[present], present


def _half(member: ndarray, rng: Generator) -> ndarray | None:
    """[n] bool: a random half of members and non-members; None where a class has fewer than two."""
    first = np.zeros(len(member), bool)
    for group in (np.flatnonzero(member), np.flatnonzero(~member)):
        if len(group) < 2:
            return None
        first[rng.permutation(group)[: len(group) // 2]] = True
    return first


def _best(aucs: ndarray, tf01s: ndarray) -> ndarray:
    """[S] round of largest TF01, ties by AUC, from [S, R]; by AUC alone where TF01 is NaN."""
    first = np.nan_to_num(tf01s)
    largest = first == first.max(axis=1, keepdims=True)
    return np.asarray(np.argmax(np.where(largest, aucs, -1.0), axis=1))


def _by_round(rounds: ndarray, memberships: ndarray) -> tuple[ndarray, ndarray]:
    """(AUC [S, R], TF01 [S, R]) of ``rounds`` [R, n] under memberships [S, n] of one size; TF01 is
    NaN with too few non-members.
    """
    members = int(memberships[0].sum())
    nonmembers = memberships.shape[1] - members
    aucs, tf01s = np.full((2, len(memberships), len(rounds)), np.nan)
    for r, row in enumerate(rounds):
        ranking = _Ranking.of(row)
        aucs[:, r] = ranking.aucs(memberships)
        if nonmembers >= TF01_MIN_NONMEMBERS:
            true = ranking.true_positives(memberships)
            false = ranking.called[:, None] - true
            allowed = false <= allowed_false_positives(nonmembers, TF01_FPR)
            largest = np.where(allowed, true, 0).max(axis=0)
            tf01s[:, r] = 100 * (largest / members)
    return aucs, tf01s


class _Ranking(NamedTuple):
    """Candidates of one round by their scores."""

    ranks: ndarray
    """[n] from 1, the lowest; ties in the middle"""
    order: ndarray
    """[n] from the largest score down"""
    called: ndarray
    """[g] number that a threshold at each distinct score calls members, ascending"""

    @classmethod
    def of(cls, row: ndarray) -> _Ranking:
        _, group, counts = np.unique(row, return_inverse=True, return_counts=True)
        ranks = (np.cumsum(counts) - (counts - 1) / 2)[group]
        order = np.argsort(-group, kind="stable")
        return cls(ranks, order, np.cumsum(counts[::-1]))

    def aucs(self, memberships: ndarray) -> ndarray:
        """[S] of memberships [S, n]; exact, since rank sums are."""
        members = memberships.sum(axis=1)
        below = memberships @ self.ranks - members * (members + 1) / 2
        return np.asarray(below / (members * (len(self.ranks) - members)))

    def true_positives(self, memberships: ndarray) -> ndarray:
        """[g, S] at each threshold."""
        # half the memory, where it holds the products of counts
        dtype = np.int32 if len(self.order) ** 2 < 2**31 else np.int64
        true = memberships.T.astype(dtype, order="C").take(self.order, axis=0)
        np.cumsum(true, axis=0, out=true)
        return true if len(self.called) == len(true) else true[self.called - 1]


# --- attacks with a threshold of their own --------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DecisionScores:
    """Decisions of an attack with a threshold of its own, by the choice of its round; fractions.

    Accuracy is (TPR + TNR) / 2; precision is None without positives.
    """

    last_accuracy: float
    """of the last audited round"""
    last_precision: float | None
    """of the last audited round"""
    last_recall: float
    """of the last audited round"""
    calibrated_accuracy: float | None
    """round chosen on a random half of the candidates, judged on the other half"""
    calibrated_precision: float | None
    """precision of the calibrated choice"""
    calibrated_recall: float | None
    """recall of the calibrated choice"""
    best_round: int
    """which round the oracle chose"""
    best_accuracy: float
    """labelled oracle, as the poisoning papers report; read it only beside its null value"""
    best_precision: float | None
    """precision of the oracle's choice"""
    best_recall: float
    """recall of the oracle's choice"""
    null_best_accuracy: float
    """the oracle's mean over shuffled memberships"""
    __pydantic_config__: ClassVar = {"extra": "forbid"}


def decision_report(
    scores: ndarray,
    member: ndarray,
    numbers: ndarray,
    threshold: float,
    rng: Generator,
    shuffles: int = 20,
) -> DecisionScores:
    """Judge "member iff score > ``threshold``" of ``scores`` [R, n] (or [n]), rounds with these
    ``numbers`` [R], against ``member`` [n].

    A row of NaN is a round without the target. ``rng`` draws the shuffles, then the half. Raises
    ValueError when no round is left or a class is missing.
    """
    rounds, present = _with_scores(scores)
    member = np.asarray(member, bool)
    if member.all() or not member.any():
        raise ValueError("members and non-members are both needed")
    called = rounds > threshold
    best = int(np.argmax(_accuracy(called, member)))
    null = [float(_accuracy(called, rng.permutation(member)).max()) for _ in range(shuffles)]
    return DecisionScores(
        **_rates("last", called[-1], member),
        **_calibrated_rates(called, member, rng),
        **_rates("best", called[best], member),
        best_round=int(numbers[present[best]]),
        null_best_accuracy=float(np.mean(null)),
    )


def _accuracy(called: ndarray, member: ndarray) -> ndarray:
    """[R] balanced accuracy of decisions [R, n]."""
    recall = called[:, member].mean(axis=1)
    specificity = (~called[:, ~member]).mean(axis=1)
    return np.asarray((recall + specificity) / 2)


def _rates(prefix: str, called: ndarray, member: ndarray) -> dict[str, Any]:
    """Accuracy, precision and recall of decisions [n], as fields of the report."""
    precision = None
    if called.any():
        precision = float(member[called].mean())
    return {
        f"{prefix}_accuracy": float(_accuracy(called[None], member)[0]),
        f"{prefix}_precision": precision,
        f"{prefix}_recall": float(called[member].mean()),
    }


def _calibrated_rates(called: ndarray, member: ndarray, rng: Generator) -> dict[str, Any]:
    first = _half(member, rng)
    if first is None:
        return dict.fromkeys(f"calibrated_{name}" for name in ("accuracy", "precision", "recall"))
    accuracies = _accuracy(called[:, first], member[first])
    chosen = int(np.argmax(accuracies))
    return _rates("calibrated", called[chosen][~first], member[~first])


# --- the largest of many rounds and attacks -------------------------------------------------------


SHUFFLES = 200
_CHUNK = 200_000  # shuffled memberships held at once: bounds memory, changes no number


@dataclass(frozen=True, kw_only=True)
class Maximum:
    """Largest AUC and largest signed advantage (TPR - FPR) of an attack over its rounds."""

    auc: float
    advantage: float
    """not always of the same round"""
    looks: int
    """number of rounds"""
    null_auc: ndarray
    """[B] under each of B shuffled memberships"""
    null_advantage: ndarray


def maximum(
    scores: ndarray,
    kind: ndarray,
    rng: Generator,
    shuffles: int = SHUFFLES,
    draws: SharedDraws | None = None,
) -> Maximum | None:
    """Largest values over the rounds of ``scores`` [R, n]: members against outside non-members or,
    where there are none, against all others; None without members or without non-members.

    A shuffle orders all n candidates, and the first that count are called members: a generator of
    one key gives one membership whatever the attack, its scores and its rounds are, so that maxima
    over attacks can be taken shuffle by shuffle. A row of NaN is a round without the target.

    Args:
        kind: [n] int, 0 member, 1 outside the federation, 2 another client's, negative excluded.
        draws: shuffles for other attacks on the same candidates.

    Raises:
        ValueError: a round is partly not finite, or no round has scores.
    """
    counted = _counted(kind)
    member = kind[counted] == MEMBER
    if member.all() or not member.any():
        return None
    rounds, _ = _with_scores(np.atleast_2d(scores)[:, counted])
    for row in rounds:
        checked(row, member)
    members = int(member.sum())
    (chance,) = (draws or SharedDraws(0)).draw(
        rng,
        (counted.tobytes(), members, shuffles),
        lambda: (_shuffled(counted, members, rng, shuffles),),
    )
    aucs, advantages = _largest(rounds, np.concatenate([member[None], chance]))
    return Maximum(
        auc=float(aucs[0]),
        advantage=float(advantages[0]),
        looks=len(rounds),
        null_auc=aucs[1:],
        null_advantage=advantages[1:],
    )


def _counted(kind: ndarray) -> ndarray:
    """[n] bool: members and outside non-members; without the latter, all that are not excluded."""
    outside = kind == OFL
    if outside.any():
        return np.asarray(outside | (kind == MEMBER))
    return np.asarray(kind != EXCLUDED)


def _shuffled(
    counted: ndarray,
    members: int,
    rng: Generator,
    n: int,
) -> ndarray:
    """[n, m] bool: shuffled memberships of the m candidates that count, ``members`` in each.

    A shuffle orders all candidates, so that excluded ones do not change the order of the others.
    """
    flags = np.zeros((n, len(counted)), bool)
    for row in flags:
        order = rng.permutation(len(counted))
        row[order[counted[order]][:members]] = True
    return flags[:, counted]


def _largest(rounds: ndarray, flags: ndarray) -> tuple[ndarray, ndarray]:
    """(AUC [S], advantage [S]): largest over ``rounds`` [R, m] under each of the memberships
    ``flags`` [S, m], all of one size.
    """
    members = int(flags[0].sum())
    m = flags.shape[1]
    aucs = np.zeros(len(flags))
    gaps = np.zeros(len(flags), np.int64)
    step = max(1, _CHUNK // m)
    for ranking in map(_Ranking.of, rounds):
        for start in range(0, len(flags), step):
            rows = slice(start, start + step)
            aucs[rows] = np.maximum(aucs[rows], ranking.aucs(flags[rows]))
            # m x true positives - members x called = (TPR - FPR) x members x non-members
            true = ranking.true_positives(flags[rows])
            gap = m * true - (members * ranking.called).astype(true.dtype)[:, None]
            gaps[rows] = np.maximum(gaps[rows], gap.max(axis=0))
    return aucs, gaps / (members * (m - members))
