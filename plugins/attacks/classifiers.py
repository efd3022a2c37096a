"""Trained attacks with scikit-learn's classifiers: nearest neighbours, random forest, network."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.neighbors import NearestNeighbors
from sklearn.neural_network import MLPClassifier

from fedbench.plugins.attacks.logistic_regression import TrainedAttack, three_parts

NEIGHBOURS = (3, 5, 7)  # TF-Privacy's grid
NEAREST = 1e-9  # standardised units: a sample that lies on a neighbour has a finite weight
NO_NEIGHBOUR = 1e-30  # the weight of a kind without a neighbour: below that of any kind with one


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
        p = self.params
        asked = "sqrt" if p.split == "sqrt" else None
        return RandomForestClassifier(p.trees, min_samples_leaf=p.leaf, max_features=asked, random_state=seed, n_jobs=1).fit(
            x, member
        )

    def _log_odds(self, model: RandomForestClassifier, x: np.ndarray) -> np.ndarray:
        return model.predict_proba(x)[:, 1] - 0.5


class MLPAttack(TrainedAttack):
    """Score = the log odds of a network with one hidden layer of 64 ReLUs, Adam.

    Source: TF-Privacy, ``MultilayerPerceptronAttacker``, the first net of its grid (64; the other is 32, 32).
    """

    class Params(TrainedAttack.Params):
        epochs: int = Field(100, ge=1, le=10_000, description="passes over the lessons at most")
        penalty: float = Field(0.01, ge=0, description="of the squared weights (TF-Privacy's grid: 0.0001, 0.001, 0.01)")

    def _train(self, x: np.ndarray, member: np.ndarray, seed: int) -> MLPClassifier:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # it may stop at the last epoch
            return MLPClassifier((64,), alpha=self.params.penalty, max_iter=self.params.epochs, random_state=seed).fit(x, member)

    def _log_odds(self, model: MLPClassifier, x: np.ndarray) -> np.ndarray:
        (hidden, out), (bias, last) = model.coefs_, model.intercepts_  # a probability would be 1 from a log odds of 37 on
        return (np.maximum(x @ hidden + bias, 0) @ out + last)[:, 0]


@dataclass(frozen=True)
class Neighbours:
    """The lessons as ``index``, which of them are ``member``, and how many neighbours are asked, ``k``."""

    index: NearestNeighbors
    member: np.ndarray
    k: int

    def odds(self, x: np.ndarray) -> np.ndarray:
        """[n]: ln of the members' weight over the others' among the k nearest, a neighbour at distance d weighing 1/d."""
        return neighbour_log_odds(*self.nearest(x))

    def nearest(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """([n, k] distances, nearest first; [n, k] bool, which of them are members)."""
        distance, position = self.index.kneighbors(x, n_neighbors=self.k)
        return distance, self.member[position]


class KNN(TrainedAttack):
    """Score = the log odds of the distance-weighted share of members among the k nearest lessons.

    k of 3, 5 and 7 is the one that is right most often in three-fold cross-validation, by majority; of equally good ones
    the smallest. A plain share has k + 1 values, and one with weights still ties wherever all neighbours are of one kind,
    which decides TF01; the odds rank these by how near the neighbours are (harmonic mean of the distances): surrounded by
    members more closely is more of a member.
    Source: TF-Privacy, ``KNearestNeighborsAttacker`` (its score is the plain share); the weights: Dudani, IEEE SMC 1976.
    """

    def _train(self, x: np.ndarray, member: np.ndarray, seed: int) -> Neighbours:
        right = np.zeros(len(NEIGHBOURS), np.int64)
        for learnt, asked in three_parts(member, seed):
            near = _neighbours(x[learnt], member[learnt], max(NEIGHBOURS)).nearest(x[asked])[1]
            right += [int(((near[:, :k].mean(axis=1) > 0.5) == member[asked]).sum()) for k in NEIGHBOURS]
        return _neighbours(x, member, NEIGHBOURS[int(right.argmax())])

    def _log_odds(self, model: Neighbours, x: np.ndarray) -> np.ndarray:
        return model.odds(x)


def neighbour_log_odds(distance: np.ndarray, member: np.ndarray) -> np.ndarray:
    """[n] from the neighbours' distances [n, k] and kinds [n, k]."""
    weight = 1 / np.maximum(distance, NEAREST)
    members, others = (np.where(side, weight, 0.0).sum(axis=1) for side in (member, ~member))
    return np.log(members + NO_NEIGHBOUR) - np.log(others + NO_NEIGHBOUR)


def _neighbours(x: np.ndarray, member: np.ndarray, k: int) -> Neighbours:
    index = NearestNeighbors(algorithm="brute", n_jobs=1).fit(x)
    return Neighbours(index, member, min(k, len(x)))
