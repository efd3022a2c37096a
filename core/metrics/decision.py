"""An attack that says "member" itself, by a threshold of its own: accuracy, precision and recall of what it says.

The poisoning papers' metrics (AGREvader, Zhang et al., WWW 2023; FedPoisonMIA section 6.1.7). They report the best of all
rounds, an oracle; here it stands beside the last round, a round chosen on other candidates, and its null value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class DecisionReport:
    """As fractions. ``*_accuracy``: (TPR + TNR) / 2, which for equal classes is the share of right answers;
    ``*_precision``: None where nobody was called a member.

    ``last_*``: the last round with scores. ``calibrated_*``: the round of the best accuracy on a random half of the
    candidates, judged on the other half; None when a class has fewer than two. ``best_*``: the oracle, at position
    ``best_index``; ``null_best_accuracy``: its mean over shuffled memberships.
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
    scores: np.ndarray, member: np.ndarray, threshold: float, rng: np.random.Generator, shuffles: int = 20
) -> DecisionReport:
    """Judge "member iff score > ``threshold``" of ``scores`` [R, n] (or [n]) against ``member`` [n].

    A row of NaN is a round without the target. ``rng`` draws the half and the shuffles. Raises ValueError when no round
    is left or a class is missing.
    """
    rounds = np.atleast_2d(np.asarray(scores, np.float64))
    member = np.asarray(member, bool)
    there = np.flatnonzero(~np.isnan(rounds).all(axis=1))
    if len(there) == 0:
        raise ValueError("no round has scores")
    if member.all() or not member.any():
        raise ValueError("members and non-members are both needed")
    said = rounds[there] > threshold
    accuracies = _accuracy(said, member)
    best = int(np.argmax(accuracies))
    null = [float(_accuracy(said, rng.permutation(member)).max()) for _ in range(shuffles)]
    last, calibrated, oracle = _three(said[-1], member), _calibrated(said, member, rng), _three(said[best], member)
    return DecisionReport(
        last_accuracy=last[0], last_precision=last[1], last_recall=last[2],
        calibrated_accuracy=calibrated[0], calibrated_precision=calibrated[1], calibrated_recall=calibrated[2],
        best_accuracy=oracle[0], best_precision=oracle[1], best_recall=oracle[2],
        best_index=int(there[best]), null_best_accuracy=float(np.mean(null)),
    )  # fmt: skip


def _accuracy(said: np.ndarray, member: np.ndarray) -> np.ndarray:
    """[R] balanced accuracy."""
    accuracies: np.ndarray = (said[:, member].mean(axis=1) + (~said[:, ~member]).mean(axis=1)) / 2
    return accuracies


def _three(said: np.ndarray, member: np.ndarray) -> tuple[float, float | None, float]:
    """(accuracy, precision, recall) of one round."""
    precision = float(member[said].mean()) if said.any() else None
    return float(_accuracy(said[None], member)[0]), precision, float(said[member].mean())


def _calibrated(
    said: np.ndarray, member: np.ndarray, rng: np.random.Generator
) -> tuple[float | None, float | None, float | None]:
    first = np.zeros(len(member), bool)
    for group in (np.flatnonzero(member), np.flatnonzero(~member)):
        if len(group) < 2:
            return None, None, None
        first[rng.permutation(group)[: len(group) // 2]] = True
    chosen = int(np.argmax(_accuracy(said[:, first], member[first])))
    return _three(said[chosen][~first], member[~first])
