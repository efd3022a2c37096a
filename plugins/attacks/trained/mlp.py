"""A small network on one round's logits, loss and gradient length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from fedbench.plugins.attacks.hidden_layer import HiddenLayer, with_ones
from fedbench.plugins.attacks.trained.base import Prepared, TrainedAttack
from fedbench.plugins.attacks.trained.mlp_train import train


class MLPAttack(TrainedAttack):
    """Score = the log odds of a network with one hidden layer of 64 ReLUs, Adam.

    Source: TF-Privacy, ``MultilayerPerceptronAttacker``, the first net of its grid (64; the other is 32, 32).
    """

    class Params(TrainedAttack.Params):
        epochs: int = Field(100, ge=1, le=10_000, description="passes over the lessons at most")
        penalty: float = Field(0.01, ge=0, description="of the squared weights (TF-Privacy's grid: 0.0001, 0.001, 0.01)")

    def _train_each(self, lessons: Sequence[Prepared]) -> list[HiddenLayer]:
        return train(lessons, self.params.epochs, self.params.penalty)

    def _log_odds(self, model: HiddenLayer, x: np.ndarray) -> np.ndarray:
        return np.asarray(model.logits(with_ones(x)[None])[0])
