"""What the trained attacks share: the features of one round, balanced and standardised lessons, a classifier's log odds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from fedbench.core import Observations
from fedbench.plugins.attacks.taught import Lesson, TaughtByRound, Teaching, balanced

SMALLEST = 1e-30  # under a logarithm: a gradient of exactly zero has a finite length


class Prepared(NamedTuple):
    """What a classifier learns from: ``x`` [n, d] standardised, ``member`` [n] bool, half of them true; ``seed`` of its draws."""

    x: np.ndarray
    member: np.ndarray
    seed: int


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

    def _learn_each(self, lessons: Sequence[Lesson]) -> list[Any]:
        scaled = [_prepared(lesson.x, lesson.member, lesson.rng) for lesson in lessons]
        models = self._train_each([prepared for *_, prepared in scaled])
        return [Standardised(mean, deviation, model) for (mean, deviation, _), model in zip(scaled, models, strict=True)]

    def _predict(self, model: Standardised, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return self._log_odds(model.model, model.of(x))

    def _train_each(self, lessons: Sequence[Prepared]) -> list[Any]:
        """A classifier for every lesson; a subclass that can fit several at once does so here."""
        return [self._train(*lesson) for lesson in lessons]

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
    mean, deviation, prepared = _prepared(x, member, rng)
    return Standardised(mean, deviation, train(*prepared))


def _prepared(x: np.ndarray, member: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, Prepared]:
    """([d] mean, [d] deviation, the lessons shifted and scaled by them)."""
    chosen = balanced(member, rng)
    mean, deviation = x[chosen].mean(axis=0), x[chosen].std(axis=0)
    deviation, seed = np.where(deviation > 0, deviation, 1.0), int(rng.integers(2**31))
    return mean, deviation, Prepared((x[chosen] - mean) / deviation, member[chosen], seed)
