"""Logistic regression on one round's logits, loss and gradient length."""

from __future__ import annotations

import numpy as np
from sklearn.linear_model import LogisticRegression

from fedbench.plugins.attacks.trained.base import TrainedAttack
from fedbench.plugins.attacks.trained.parts import three_parts

INVERSE_PENALTIES = np.logspace(-4, 2, 10)  # TF-Privacy's grid
ITERATIONS = 100


class LogisticRegressionAttack(TrainedAttack):
    """Logistic regression; its penalty is the one of ten that is right most often in three-fold cross-validation.

    Source: TF-Privacy, ``LogisticRegressionAttacker`` (C from logspace(-4, 2, 10), three folds, accuracy). Of equally good
    penalties the strongest.
    """

    def _train(self, x: np.ndarray, member: np.ndarray, seed: int) -> LogisticRegression:
        return regression(x, member, seed)

    def _log_odds(self, model: LogisticRegression, x: np.ndarray) -> np.ndarray:
        return log_odds(model, x)


def regression(x: np.ndarray, member: np.ndarray, seed: int) -> LogisticRegression:
    """Fitted to ``x`` [n, d], ``member`` [n] bool, with the penalty that cross-validation chooses."""
    right = np.zeros(len(INVERSE_PENALTIES), np.int64)
    for learnt, asked in three_parts(member, seed):
        for i, c in enumerate(INVERSE_PENALTIES):
            right[i] += int((_fitted(c, x[learnt], member[learnt]).predict(x[asked]) == member[asked]).sum())
    return _fitted(INVERSE_PENALTIES[int(right.argmax())], x, member)


def log_odds(model: LogisticRegression, x: np.ndarray) -> np.ndarray:
    """[n]: of membership."""
    return np.asarray(model.decision_function(x))


def _fitted(c: float, x: np.ndarray, member: np.ndarray) -> LogisticRegression:
    # Newton's method: few features, many samples, and no limit on the iterations of a weak penalty is ever met
    return LogisticRegression(C=c, solver="newton-cholesky", max_iter=ITERATIONS).fit(x, member)
