"""A random forest on one round's logits, loss and gradient length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from fedbench.plugins.attacks.trained.base import Prepared, TrainedAttack
from fedbench.plugins.attacks.trained.forest import Forest, grow


class RandomForest(TrainedAttack):
    """Score = the mean of the trees' shares of members, minus one half.

    TF-Privacy searches depths and leaf sizes on a grid; here both are parameters, since a forest with leaves of several
    samples varies little with them.
    Source: TF-Privacy, ``RandomForestAttacker``; Breiman, Machine Learning 2001.
    """

    class Params(TrainedAttack.Params):
        trees: int = Field(100, ge=1, le=10_000, description="trees in the forest")
        leaf: int = Field(5, ge=1, description="samples a leaf holds at least")
        split: Literal["sqrt", "all"] = Field("sqrt", description="features a split may choose from: their root, or all")

    def _train_each(self, lessons: Sequence[Prepared]) -> list[Forest]:
        features = lessons[0].x.shape[1]
        asked = features if self.params.split == "all" else math.isqrt(features)
        return grow(lessons, self.params.trees, self.params.leaf, asked)

    def _log_odds(self, model: Forest, x: np.ndarray) -> np.ndarray:
        return model.shares(x) - 0.5
