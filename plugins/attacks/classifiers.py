"""Classifiers trained on samples of known membership: logistic regression, nearest neighbours, a
forest, a net.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

import numpy as np
from numpy import ndarray
from pydantic import Field
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.neighbors import NearestNeighbors
from sklearn.neural_network import MLPClassifier

from fedbench.core import Observations
from fedbench.plugins.attacks.taught import Scorer, TaughtByRound, Teaching, balanced

SMALLEST = 1e-30  # under a logarithm: a gradient of exactly zero has a finite length
PARTS = 3  # of cross-validation
INVERSE_PENALTIES = np.logspace(-4, 2, 10)  # TF-Privacy's grid
TOLERANCE = 1e-8  # of the gradient of the mean loss: sklearn's own is 1e-4

Train = Callable[[ndarray, ndarray, int], Scorer]


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
        signals = {"logits", "loss"}
        if self.params.features == "logits-loss-gradient":
            signals.add("upload-grad-sq")
        return frozenset(signals)

    def _features(self, observations: Observations, y: ndarray) -> ndarray:
        features = [observations.of_target("logits"), observations.of_target("loss")[..., None]]
        if "upload-grad-sq" in self.needs:
            sq = observations.of_target("upload-grad-sq").astype(np.float64)
            features.append(np.log(sq + SMALLEST)[..., None] / 2)
        return np.concatenate(features, axis=2, dtype=np.float64)

    def _learn(self, x: ndarray, member: ndarray, y: ndarray, rng: np.random.Generator) -> Scorer:
        return standardised(self._train, x, member, rng)

    def _train(self, x: ndarray, member: ndarray, seed: int) -> Scorer:
        """Fit a classifier to ``x`` [n, d] and ``member`` [n] bool, half of them true; return its
        log odds of membership, or a score of the same sign.
        """
        raise NotImplementedError


def standardised(train: Train, x: ndarray, member: ndarray, rng: np.random.Generator) -> Scorer:
    """Train on as many members as non-members of ``x`` [n, d]; the features of lessons and of
    samples are shifted and scaled by mean and deviation of the lessons.
    """
    chosen = balanced(member, rng.permutation)
    mean = x[chosen].mean(axis=0)
    deviation = x[chosen].std(axis=0)
    deviation = np.where(deviation > 0, deviation, 1.0)
    seed = int(rng.integers(2**31))
    score = train((x[chosen] - mean) / deviation, member[chosen], seed)
    return lambda samples: score((samples - mean) / deviation)


def three_parts(member: ndarray, seed: int) -> Iterator[tuple[ndarray, ndarray]]:
    """Yield (positions to learn from, positions to test on) of ``member`` [n] bool, three times;
    none with too few samples.
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

    def _train(self, x: ndarray, member: ndarray, seed: int) -> Scorer:
        return regression(x, member, seed)


def regression(x: ndarray, member: ndarray, seed: int) -> Scorer:
    """Fit a regression to ``x`` [n, d] and ``member`` [n] bool with the penalty that
    cross-validation chooses; return its log odds.
    """
    right = np.zeros(len(INVERSE_PENALTIES), np.int64)
    for lesson, test in three_parts(member, seed):
        fits = (_fitted(x[lesson], member[lesson], c) for c in INVERSE_PENALTIES)
        right += [int((model.predict(x[test]) == member[test]).sum()) for model in fits]
    return _fitted(x, member, INVERSE_PENALTIES[int(right.argmax())]).decision_function


def _fitted(x: ndarray, member: ndarray, inverse_penalty: float) -> LogisticRegression:
    model = LogisticRegression(C=inverse_penalty, solver="newton-cholesky", tol=TOLERANCE)
    return model.fit(x, member)


# --- forest, net and neighbours -------------------------------------------------------------------


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

    def _train(self, x: ndarray, member: ndarray, seed: int) -> Scorer:
        p = self.params
        forest = RandomForestClassifier(
            p.trees,
            min_samples_leaf=p.leaf,
            max_features={"sqrt": "sqrt", "all": None}[p.split],
            random_state=seed,
            n_jobs=1,
        )
        return partial(member_share, forest.fit(x, member))


def member_share(forest: RandomForestClassifier, x: ndarray) -> ndarray:
    """Return the mean share of members [n] among the trees' leaves, minus one half."""
    return forest.predict_proba(x)[:, 1] - 0.5


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

    def _train(self, x: ndarray, member: ndarray, seed: int) -> Scorer:
        p = self.params
        net = MLPClassifier((64,), alpha=p.penalty, max_iter=p.epochs, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # it may stop at the last epoch
            return partial(net_log_odds, net.fit(x, member))


def net_log_odds(net: MLPClassifier, x: ndarray) -> ndarray:
    """Return the value [n] before the sigmoid; a probability is 1 from a log odds of 37 on."""
    (hidden, out), (bias, last) = net.coefs_, net.intercepts_
    return (np.maximum(x @ hidden + bias, 0) @ out + last)[:, 0]


NEIGHBOURS = (3, 5, 7)  # TF-Privacy's grid
NEAREST = 1e-9  # standardised units: a sample that lies on a neighbour has a finite weight
NO_NEIGHBOUR = 1e-30  # the weight of a kind without a neighbour: below that of any kind with one


class KNN(TrainedAttack):
    """Score = the log odds of the distance-weighted share of members among the k nearest lessons.

    k of 3, 5 and 7 is the one that is right most often in three-fold cross-validation, by majority;
    of equally good ones the smallest. A plain share has k + 1 values, and one with weights still
    ties wherever all neighbours are of one kind, which decides TF01; the odds rank these by how
    near the neighbours are (harmonic mean of the distances): surrounded by members more closely is
    more of a member. Source: TF-Privacy, ``KNearestNeighborsAttacker`` (its score is the plain
    share); the weights: Dudani, IEEE SMC 1976.
    """

    def _train(self, x: ndarray, member: ndarray, seed: int) -> Scorer:
        right = np.zeros(len(NEIGHBOURS), np.int64)
        for lesson, test in three_parts(member, seed):
            _, kind = nearest(x[lesson], member[lesson], max(NEIGHBOURS), x[test])
            votes = [kind[:, :k].mean(axis=1) > 0.5 for k in NEIGHBOURS]
            right += [int((vote == member[test]).sum()) for vote in votes]
        return partial(neighbour_log_odds, x, member, NEIGHBOURS[int(right.argmax())])


def nearest(x: ndarray, member: ndarray, k: int, samples: ndarray) -> tuple[ndarray, ndarray]:
    """Return the distances [n, k] of the ``k`` lessons of ``x`` nearest to each of ``samples``,
    nearest first, and whether they are members.
    """
    index = NearestNeighbors(algorithm="brute", n_jobs=1).fit(x)
    distance, position = index.kneighbors(samples, n_neighbors=min(k, len(x)))
    return distance, member[position]


def neighbour_log_odds(x: ndarray, member: ndarray, k: int, samples: ndarray) -> ndarray:
    """Return ln of the members' weight over the others' [n] among the ``k`` lessons of ``x``
    nearest to each of ``samples``; a neighbour at distance d weighs 1/d.
    """
    distance, kind = nearest(x, member, k, samples)
    weight = 1 / np.maximum(distance, NEAREST)
    members = np.where(kind, weight, 0.0).sum(axis=1)
    non_members = np.where(~kind, weight, 0.0).sum(axis=1)
    return np.log(members + NO_NEIGHBOUR) - np.log(non_members + NO_NEIGHBOUR)
