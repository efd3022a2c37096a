"""A small network on one round's logits, loss and gradient length."""

from __future__ import annotations

import numpy as np
from pydantic import Field
from scipy.special import logit
from sklearn.neural_network import MLPClassifier

from fedbench.plugins.attacks.trained.base import TrainedAttack

HIDDEN = 64
EPSILON = 1e-15  # of a probability: its log odds stay finite


class MLPAttack(TrainedAttack):
    """Score = the log odds of a network with one hidden layer of 64 ReLUs, Adam.

    Source: TF-Privacy, ``MultilayerPerceptronAttacker``, the first net of its grid (64; the other is 32, 32).
    """

    class Params(TrainedAttack.Params):
        epochs: int = Field(100, ge=1, le=10_000, description="passes over the lessons at most")
        penalty: float = Field(0.01, ge=0, description="of the squared weights (TF-Privacy's grid: 0.0001, 0.001, 0.01)")

    def _train(self, x: np.ndarray, member: np.ndarray, seed: int) -> MLPClassifier:
        return MLPClassifier((HIDDEN,), alpha=self.params.penalty, max_iter=self.params.epochs, random_state=seed).fit(x, member)

    def _log_odds(self, model: MLPClassifier, x: np.ndarray) -> np.ndarray:
        return np.asarray(logit(np.clip(model.predict_proba(x)[:, list(model.classes_).index(True)], EPSILON, 1 - EPSILON)))
