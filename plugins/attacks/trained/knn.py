"""Nearest neighbours among one round's logits, losses and gradient lengths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.neighbors import NearestNeighbors

from fedbench.plugins.attacks.trained.base import TrainedAttack
from fedbench.plugins.attacks.trained.parts import three_parts

NEIGHBOURS = (3, 5, 7)  # TF-Privacy's grid
NEAREST = 1e-9  # standardised units: a sample that lies on a neighbour has a finite weight
NOBODY = 1e-30  # the weight of a kind without a neighbour: beyond that of any kind with one


@dataclass(frozen=True)
class Neighbours:
    """The lessons as ``index``, who of them is a ``member``, and how many neighbours are asked, ``k``."""

    index: NearestNeighbors
    member: np.ndarray
    k: int

    def odds(self, x: np.ndarray) -> np.ndarray:
        """[n]: ln of the members' weight over the others' among the k nearest, a neighbour at distance d weighing 1/d."""
        return log_odds(*self.nearest(x))

    def nearest(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """([n, k] distances, nearest first; [n, k] bool who of them is a member)."""
        distance, who = self.index.kneighbors(x, n_neighbors=self.k)
        return distance, self.member[who]


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
            for i, k in enumerate(NEIGHBOURS):
                right[i] += int(((near[:, :k].mean(axis=1) > 0.5) == member[asked]).sum())
        return _neighbours(x, member, NEIGHBOURS[int(right.argmax())])

    def _log_odds(self, model: Neighbours, x: np.ndarray) -> np.ndarray:
        return model.odds(x)


def log_odds(distance: np.ndarray, member: np.ndarray) -> np.ndarray:
    """[n] from the neighbours' distances [n, k] and kinds [n, k]."""
    weight = 1 / np.maximum(distance, NEAREST)
    members, others = (np.where(side, weight, 0.0).sum(axis=1) for side in (member, ~member))
    return np.asarray(np.log(members + NOBODY) - np.log(others + NOBODY))


def _neighbours(x: np.ndarray, member: np.ndarray, k: int) -> Neighbours:
    index = NearestNeighbors(algorithm="brute", n_jobs=1).fit(x)
    return Neighbours(index, member, min(k, len(x)))
