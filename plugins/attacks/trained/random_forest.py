"""A random forest on one round's logits, loss and gradient length."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field
from sklearn.ensemble import RandomForestClassifier

from fedbench.plugins.attacks.trained.base import TrainedAttack


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

    def _train(self, x: np.ndarray, member: np.ndarray, seed: int) -> RandomForestClassifier:
        return RandomForestClassifier(
            self.params.trees, min_samples_leaf=self.params.leaf, max_features=1.0 if self.params.split == "all" else "sqrt",
            random_state=seed, n_jobs=1,
        ).fit(x, member)  # fmt: skip

    def _log_odds(self, model: RandomForestClassifier, x: np.ndarray) -> np.ndarray:
        return np.asarray(model.predict_proba(x)[:, list(model.classes_).index(True)]) - 0.5
