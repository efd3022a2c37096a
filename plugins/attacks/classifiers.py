"""Classifiers trained on samples of known membership: logistic regression, nearest neighbours, a
forest, a net.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.neighbors import NearestNeighbors
from sklearn.neural_network import MLPClassifier

from fedbench.core import Observations
from fedbench.plugins.attacks.taught import TaughtByRound, Teaching, balanced

SMALLEST = 1e-30  # under a logarithm: a gradient of exactly zero has a finite length
PARTS = 3  # of cross-validation
INVERSE_PENALTIES = np.logspace(-4, 2, 10)  # TF-Privacy's grid
TOLERANCE = 1e-8  # of the gradient of the mean loss: sklearn's own is 1e-4


@dataclass(frozen=True)
class Standardised:
    """``model`` on features shifted by ``mean`` and divided by ``deviation``, both [d], of the
    lessons.
    """

    mean: np.ndarray
    deviation: np.ndarray
    model: Any

    def of(self, x: np.ndarray) -> np.ndarray:
        """[n, d] as the model reads it."""
        return (x - self.mean) / self.deviation


class TrainedAttack(TaughtByRound):
    """A classifier on the logits, the loss and the gradient's length of one round; score = its log
    odds of "member".

    TF-Privacy's trained attacks read logits and loss; MemberShield's evaluation runs them on the
    labelled half of the judged samples (``teacher: half``), two-fold. The gradient's length, at the
    model that is attacked, is added here (as a logarithm, since it spans orders of magnitude).
    Lessons have as many members as non-members, and each feature is shifted and scaled by its mean
    and deviation on them. Source: TensorFlow Privacy, privacy_tests/membership_inference_attack;
    Shokri et al., IEEE S&P 2017; Nasr et al., IEEE S&P 2019 (gradients).
    """

    class Params(Teaching):
        features: Literal["logits-loss", "logits-loss-gradient"] = Field(
            "logits-loss-gradient",
            description="what the classifier reads; logits-loss: as TF-Privacy's",
        )

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """The signals of its features."""
        gradient = {"upload-grad-sq"} if self.params.features == "logits-loss-gradient" else set()
        return frozenset({"logits", "loss"} | gradient)

    def _features(self, observations: Observations, y: np.ndarray) -> np.ndarray:
        parts = [observations.of_target("logits"), observations.of_target("loss")[..., None]]
        if "upload-grad-sq" in self.needs:
            sq = np.asarray(observations.of_target("upload-grad-sq"), np.float64)
            parts.append(np.log(sq + SMALLEST)[..., None] / 2)
        return np.concatenate([np.asarray(p, np.float64) for p in parts], axis=2)

    def _learn(
        self, x: np.ndarray, member: np.ndarray, y: np.ndarray, rng: np.random.Generator
    ) -> Standardised:
        return standardised(self._train, x, member, rng)

    def _predict(self, model: Standardised, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return self._log_odds(model.model, model.of(x))

    def _train(self, x: np.ndarray, member: np.ndarray, seed: int) -> Any:
        """A classifier fitted to ``x`` [n, d], ``member`` [n] bool, half of them true."""
        raise NotImplementedError(
            f"{type(self).__name__} does not implement _train(x, member, seed)"
        )

    def _log_odds(self, model: Any, x: np.ndarray) -> np.ndarray:
        """[n]: ln(p / (1 - p)) of membership, or a score of the same sign."""
        raise NotImplementedError(f"{type(self).__name__} does not implement _log_odds(model, x)")


def standardised(
    train: Callable[[np.ndarray, np.ndarray, int], Any],
    x: np.ndarray,
    member: np.ndarray,
    rng: np.random.Generator,
) -> Standardised:
    """``train``(features, member, seed) on as many members as non-members of ``x`` [n, d],
    standardised on them.
    """
    chosen = balanced(member, rng)
    mean, deviation = x[chosen].mean(axis=0), x[chosen].std(axis=0)
    deviation, seed = np.where(deviation > 0, deviation, 1.0), int(rng.integers(2**31))
    return Standardised(
        mean, deviation, train((x[chosen] - mean) / deviation, member[chosen], seed)
    )


def three_parts(member: np.ndarray, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(positions to learn from, positions to test on) of ``member`` [n] bool, three times; none
    with too few samples.
    """
    if min(int(member.sum()), int((~member).sum())) >= 2 * PARTS:
        yield from StratifiedKFold(PARTS, shuffle=True, random_state=seed).split(
            np.zeros(len(member)), member
        )


class LogisticRegressionAttack(TrainedAttack):
    """Logistic regression; its penalty is the one of ten that is right most often in three-fold
    cross-validation.

    Source: TF-Privacy, ``LogisticRegressionAttacker`` (C from logspace(-4, 2, 10), three folds,
    accuracy). Of equally good penalties the strongest.
    """

    def _train(self, x: np.ndarray, member: np.ndarray, seed: int) -> LogisticRegression:
        return regression(x, member, seed)

    def _log_odds(self, model: LogisticRegression, x: np.ndarray) -> np.ndarray:
        return model.decision_function(x)


def regression(x: np.ndarray, member: np.ndarray, seed: int) -> LogisticRegression:
    """Fitted to ``x`` [n, d], ``member`` [n] bool, with the penalty that cross-validation chooses."""
    right = np.zeros(len(INVERSE_PENALTIES), np.int64)
    for learnt, tested in three_parts(member, seed):
        fits = (_fitted(x[learnt], member[learnt], c) for c in INVERSE_PENALTIES)
        right += [int((model.predict(x[tested]) == member[tested]).sum()) for model in fits]
    return _fitted(x, member, INVERSE_PENALTIES[int(right.argmax())])


def _fitted(x: np.ndarray, member: np.ndarray, inverse_penalty: float) -> LogisticRegression:
    return LogisticRegression(C=inverse_penalty, solver="newton-cholesky", tol=TOLERANCE).fit(
        x, member
    )


# --- forest, net and neighbours -------------------------------------------------------------------


NEIGHBOURS = (3, 5, 7)  # TF-Privacy's grid
NEAREST = 1e-9  # standardised units: a sample that lies on a neighbour has a finite weight
NO_NEIGHBOUR = 1e-30  # the weight of a kind without a neighbour: below that of any kind with one


class RandomForest(TrainedAttack):
    """Score = the mean of the trees' shares of members, minus one half.

    TF-Privacy searches depths and leaf sizes on a grid; here both are parameters, since a forest
    with leaves of several samples varies little with them. Source: TF-Privacy,
    ``RandomForestAttacker``; Breiman, Machine Learning 2001.
    """

    class Params(TrainedAttack.Params):
        trees: int = Field(100, ge=1, le=10_000, description="trees in the forest")
        leaf: int = Field(5, ge=1, description="samples a leaf holds at least")
        split: Literal["sqrt", "all"] = Field(
            "sqrt", description="features a split may choose from: their root, or all"
        )

    def _train(self, x: np.ndarray, member: np.ndarray, seed: int) -> RandomForestClassifier:
        p = self.params
        asked = "sqrt" if p.split == "sqrt" else None
        return RandomForestClassifier(
            p.trees, min_samples_leaf=p.leaf, max_features=asked, random_state=seed, n_jobs=1
        ).fit(x, member)

    def _log_odds(self, model: RandomForestClassifier, x: np.ndarray) -> np.ndarray:
        return model.predict_proba(x)[:, 1] - 0.5


class MLPAttack(TrainedAttack):
    """Score = the log odds of a network with one hidden layer of 64 ReLUs, Adam.

    Source: TF-Privacy, ``MultilayerPerceptronAttacker``, the first net of its grid (64; the other
    is 32, 32).
    """

    class Params(TrainedAttack.Params):
        epochs: int = Field(100, ge=1, le=10_000, description="passes over the lessons at most")
        penalty: float = Field(
            0.01,
            ge=0,
            description="of the squared weights (TF-Privacy's grid: 0.0001, 0.001, 0.01)",
        )

    def _train(self, x: np.ndarray, member: np.ndarray, seed: int) -> MLPClassifier:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # it may stop at the last epoch
            return MLPClassifier(
                (64,), alpha=self.params.penalty, max_iter=self.params.epochs, random_state=seed
            ).fit(x, member)

    def _log_odds(self, model: MLPClassifier, x: np.ndarray) -> np.ndarray:
        # a probability would be 1 from a log odds of 37 on
        (hidden, out), (bias, last) = model.coefs_, model.intercepts_
        return (np.maximum(x @ hidden + bias, 0) @ out + last)[:, 0]


@dataclass(frozen=True)
class Neighbours:
    """The lessons as ``index``, which of them are ``member``, and how many neighbours are asked,
    ``k``.
    """

    index: NearestNeighbors
    member: np.ndarray
    k: int

    def odds(self, x: np.ndarray) -> np.ndarray:
        """[n]: ln of the members' weight over the others' among the k nearest, a neighbour at
        distance d weighing 1/d.
        """
        return neighbour_log_odds(*self.nearest(x))

    def nearest(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """([n, k] distances, nearest first; [n, k] bool, which of them are members)."""
        distance, position = self.index.kneighbors(x, n_neighbors=self.k)
        return distance, self.member[position]


class KNN(TrainedAttack):
    """Score = the log odds of the distance-weighted share of members among the k nearest lessons.

    k of 3, 5 and 7 is the one that is right most often in three-fold cross-validation, by majority;
    of equally good ones the smallest. A plain share has k + 1 values, and one with weights still
    ties wherever all neighbours are of one kind, which decides TF01; the odds rank these by how
    near the neighbours are (harmonic mean of the distances): surrounded by members more closely is
    more of a member. Source: TF-Privacy, ``KNearestNeighborsAttacker`` (its score is the plain
    share); the weights: Dudani, IEEE SMC 1976.
    """

    def _train(self, x: np.ndarray, member: np.ndarray, seed: int) -> Neighbours:
        right = np.zeros(len(NEIGHBOURS), np.int64)
        for learnt, asked in three_parts(member, seed):
            near = _neighbours(x[learnt], member[learnt], max(NEIGHBOURS)).nearest(x[asked])[1]
            right += [
                int(((near[:, :k].mean(axis=1) > 0.5) == member[asked]).sum()) for k in NEIGHBOURS
            ]
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
