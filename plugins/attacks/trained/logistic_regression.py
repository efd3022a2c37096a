"""Logistic regression on one round's logits, loss and gradient length."""

from __future__ import annotations

import numpy as np

from fedbench.plugins.attacks.trained.base import TrainedAttack
from fedbench.plugins.attacks.trained.newton import logistic_regressions
from fedbench.plugins.attacks.trained.parts import three_parts

INVERSE_PENALTIES = np.logspace(-4, 2, 10)  # TF-Privacy's grid


class LogisticRegressionAttack(TrainedAttack):
    """Logistic regression; its penalty is the one of ten that is right most often in three-fold cross-validation.

    Source: TF-Privacy, ``LogisticRegressionAttacker`` (C from logspace(-4, 2, 10), three folds, accuracy). Of equally good
    penalties the strongest.
    """

    def _train(self, x: np.ndarray, member: np.ndarray, seed: int) -> np.ndarray:
        return regression(x, member, seed)

    def _log_odds(self, model: np.ndarray, x: np.ndarray) -> np.ndarray:
        return log_odds(model, x)


def regression(x: np.ndarray, member: np.ndarray, seed: int) -> np.ndarray:
    """[d + 1] weights fitted to ``x`` [n, d], ``member`` [n] bool, with the penalty that cross-validation chooses."""
    parts = list(three_parts(member, seed))
    counted = np.zeros((len(parts), len(x)), bool)
    for learns, (learnt, _) in zip(counted, parts, strict=True):
        learns[learnt] = True
    right = np.zeros(len(INVERSE_PENALTIES), np.int64)
    if parts:
        rows = counted.repeat(len(INVERSE_PENALTIES), axis=0)  # part by part, each with every penalty
        tried = logistic_regressions(x, member, np.tile(INVERSE_PENALTIES, len(parts)), rows)
        for of_part, (_, asked) in zip(np.split(tried, len(parts)), parts, strict=True):
            right += _right(of_part, x[asked], member[asked])
    best = INVERSE_PENALTIES[[int(right.argmax())]]
    return np.asarray(logistic_regressions(x, member, best, np.ones((1, len(x)), bool))[0])


def _right(weights: np.ndarray, x: np.ndarray, member: np.ndarray) -> np.ndarray:
    """[K]: of how many of ``x`` [n, d] each of K regressions says what is true."""
    return np.asarray([int(((log_odds(w, x) > 0) == member).sum()) for w in weights])


def log_odds(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    """[n]: of membership."""
    return np.asarray(x @ weights[:-1] + weights[-1])
