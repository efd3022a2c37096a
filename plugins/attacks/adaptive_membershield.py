"""The adversary who knows MemberShield: losses against its soft labels, lessons of a client that stops as the target does."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from fedbench.core import Observations
from fedbench.plugins.attacks.logistic_regression import Standardised, log_odds, regression, standardised
from fedbench.plugins.attacks.measures import Measure
from fedbench.plugins.attacks.taught import TaughtByRound
from fedbench.plugins.attacks.thresholds import Threshold


class AdaptiveMemberShield(Threshold):
    """Score = minus the loss against the softened label, (1 - theta) CE + theta mean_c(-ln p_c), in one round.

    A client that trains on y' = (1 - theta) onehot + theta / C brings its members to p = y': the plain loss takes a more
    confident non-member for a member, the loss against y' is least at y' itself. ``form: trained`` is a logistic regression
    on the logits, the loss, the mean loss over all classes and the loss against y'. How long the target trains is not among
    the observations; a colluder that runs the same defense stops by the same rule, so that its models teach it. The note of
    the cell says "(defended)" of a colluder that does; one that is not teaches another distribution.
    Source: MemberShield, section 7.8 and Table 12 (Song & Mittal's adaptive attack: thresholds and attack models fitted with
    the same soft labels and early stopping).
    """

    class Params(Threshold.Params):
        theta: float = Field(0.8, ge=0, lt=1, description="share of the uniform distribution in the target's soft labels")
        form: Literal["threshold", "trained"] = Field(
            "threshold", description="a threshold on the loss against the soft labels, or a classifier that reads it"
        )

        @model_validator(mode="after")
        def _what_is_trained_has_a_teacher(self):
            if self.form == "trained" and self.teacher == "none":
                raise ValueError("form 'trained' learns from a teacher: set teacher to colluder or half")
            if self.form == "trained" and self.classes:
                raise ValueError("'classes' belongs to the form 'threshold': set form to threshold, or classes to false")
            return self

    @property
    def reads(self) -> Measure:
        return Measure(frozenset({"loss", "uniform-loss"}), self._minus_soft_loss)

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """The signals of the loss against soft labels; the classifier reads the logits, too."""
        return self.reads.needs | ({"logits"} if self._is_trained else set())

    @property
    def _is_trained(self) -> bool:
        return self.params.form == "trained"

    def _minus_soft_loss(self, observations: Observations) -> np.ndarray:
        """[R, M, n]: cross-entropy is linear in the label, so the soft one's is the mean of both, turned over."""
        theta = self.params.theta
        loss, uniform = (np.asarray(observations[name], np.float64) for name in ("loss", "uniform-loss"))
        return -((1 - theta) * loss + theta * uniform)

    def _features(self, observations: Observations, y: np.ndarray) -> np.ndarray:
        value = super()._features(observations, y)
        if not self._is_trained:
            return value
        one = [observations.of_target(name)[..., None] for name in ("loss", "uniform-loss")]
        return np.concatenate([value, *one, observations.of_target("logits")], axis=2, dtype=np.float64)

    def _learn(self, x: np.ndarray, member: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> Any:
        return standardised(regression, x, member, rng) if self._is_trained else super()._learn(x, member, y, rng)

    def _answer(self, models: Any, fold: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        if not self._is_trained:
            return super()._answer(models, fold, x, y)
        return TaughtByRound._answer(self, models, fold, x, y)

    def _predict(self, model: Standardised, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return log_odds(model.model, model.of(x))
