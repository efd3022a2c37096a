"""Trained attacks: their features and lessons, and logistic regression with a cross-validated penalty."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field
from scipy.special import expit
from sklearn.model_selection import StratifiedKFold

from fedbench.core import Observations
from fedbench.plugins.attacks.taught import TaughtByRound, Teaching, balanced

SMALLEST = 1e-30  # under a logarithm: a gradient of exactly zero has a finite length
PARTS = 3  # of cross-validation
INVERSE_PENALTIES = np.logspace(-4, 2, 10)  # TF-Privacy's grid
ITERATIONS, HALVINGS = 100, 30  # of Newton's method, and of a step
TOLERANCE = 1e-6  # of the gradient of the mean loss: sklearn's own is 1e-4


@dataclass(frozen=True)
class Standardised:
    """``model`` on features shifted by ``mean`` and divided by ``deviation``, both [d], of the lessons."""

    mean: np.ndarray
    deviation: np.ndarray
    model: Any

    def of(self, x: np.ndarray) -> np.ndarray:
        """[n, d] as the model reads it."""
        return (x - self.mean) / self.deviation


class TrainedAttack(TaughtByRound):
    """A classifier on the logits, the loss and the gradient's length of one round; score = its log odds of "member".

    TF-Privacy's trained attacks read logits and loss; MemberShield's evaluation runs them on the labelled half of the
    judged samples (``teacher: half``), two-fold. The gradient's length, at the model that is attacked, is added here
    (as a logarithm, since it spans orders of magnitude). Lessons have as many members as non-members, and each feature is
    shifted and scaled by its mean and deviation on them.
    Source: TensorFlow Privacy, privacy_tests/membership_inference_attack; Shokri et al., IEEE S&P 2017; Nasr et al.,
    IEEE S&P 2019 (gradients).
    """

    class Params(Teaching):
        features: Literal["logits-loss", "logits-loss-gradient"] = Field(
            "logits-loss-gradient", description="what the classifier reads; logits-loss: as TF-Privacy's"
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

    def _learn(self, x: np.ndarray, member: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> Standardised:
        return standardised(self._train, x, member, rng)

    def _predict(self, model: Standardised, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return self._log_odds(model.model, model.of(x))

    def _train(self, x: np.ndarray, member: np.ndarray, seed: int) -> Any:
        """A classifier fitted to ``x`` [n, d], ``member`` [n] bool, half of them true."""
        raise NotImplementedError(f"{type(self).__name__} does not implement _train(x, member, seed)")

    def _log_odds(self, model: Any, x: np.ndarray) -> np.ndarray:
        """[n]: ln(p / (1 - p)) of membership, or a score of the same sign."""
        raise NotImplementedError(f"{type(self).__name__} does not implement _log_odds(model, x)")


def standardised(
    train: Callable[[np.ndarray, np.ndarray, int], Any], x: np.ndarray, member: np.ndarray, rng: np.random.Generator
) -> Standardised:
    """``train``(features, member, seed) on as many members as non-members of ``x`` [n, d], standardised on them."""
    chosen = balanced(member, rng)
    mean, deviation = x[chosen].mean(axis=0), x[chosen].std(axis=0)
    deviation, seed = np.where(deviation > 0, deviation, 1.0), int(rng.integers(2**31))
    return Standardised(mean, deviation, train((x[chosen] - mean) / deviation, member[chosen], seed))


def three_parts(member: np.ndarray, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(positions to learn from, positions to test on) of ``member`` [n] bool, three times; none with too few samples."""
    if min(int(member.sum()), int((~member).sum())) >= 2 * PARTS:
        yield from StratifiedKFold(PARTS, shuffle=True, random_state=seed).split(np.zeros(len(member)), member)


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
    right = np.zeros(len(INVERSE_PENALTIES), np.int64)
    if parts:
        counted = np.stack([np.isin(np.arange(len(x)), learnt) for learnt, _ in parts])
        rows = counted.repeat(len(INVERSE_PENALTIES), axis=0)  # part by part, each with every penalty
        tried = logistic_regressions(x, member, np.tile(INVERSE_PENALTIES, len(parts)), rows)
        for of_part, (_, asked) in zip(np.split(tried, len(parts)), parts, strict=True):
            right += [int(((log_odds(w, x[asked]) > 0) == member[asked]).sum()) for w in of_part]
    best = INVERSE_PENALTIES[[int(right.argmax())]]
    return logistic_regressions(x, member, best, np.ones((1, len(x)), bool))[0]


def log_odds(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    """[n]: of membership."""
    return x @ weights[:-1] + weights[-1]


def logistic_regressions(x: np.ndarray, member: np.ndarray, inverse_penalties: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """[K, d + 1] weights, the intercept last, of K regressions on ``x`` [n, d] and ``member`` [n] bool, by Newton's method.

    The k-th minimises |w|^2 / 2 + C_k sum_i counted_ki loss_i with C ``inverse_penalties`` [K] and ``counted`` [K, n] bool; the
    intercept goes free. As ``sklearn.linear_model.LogisticRegression``, but its 31 fits of a cross-validation take ten times as
    long on the hundred samples that teach an attack.
    """
    design = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    share = counted / counted.sum(axis=1, keepdims=True)
    penalty = np.outer(1 / (inverse_penalties * counted.sum(axis=1)), np.r_[np.ones(x.shape[1]), 0.0])
    sign = np.where(member, 1.0, -1.0)
    found = np.zeros((len(share), design.shape[1]))

    def objective(w: np.ndarray, k: np.ndarray) -> np.ndarray:
        return (share[k] * np.logaddexp(0, -sign * (w @ design.T))).sum(axis=1) + (penalty[k] * w**2).sum(axis=1) / 2

    k = np.arange(len(share))  # the regressions that have not converged
    for _ in range(ITERATIONS):
        wrong = expit(-sign * (found[k] @ design.T))  # [K, n] probability of the other kind
        gradient = -(share[k] * sign * wrong) @ design + penalty[k] * found[k]
        open_ = np.abs(gradient).max(axis=1) > TOLERANCE
        if not open_.any():
            break
        k, wrong, gradient = k[open_], wrong[open_], gradient[open_]
        curve = share[k] * (wrong * (1 - wrong))
        hessian = np.stack([(design * c[:, None]).T @ design for c in curve])
        hessian += np.apply_along_axis(np.diag, 1, penalty[k] + 1e-12)  # a perfectly separated fold has none
        step = np.linalg.solve(hessian, gradient[..., None])[..., 0]
        before, promised, length = objective(found[k], k), (gradient * step).sum(axis=1), np.ones(len(k))
        for _ in range(HALVINGS):  # until the objective falls enough (Armijo)
            short = objective(found[k] - length[:, None] * step, k) > before - 1e-4 * length * promised + 1e-14
            if not short.any():
                break
            length[short] /= 2
        found[k] -= length[:, None] * step
    return found
