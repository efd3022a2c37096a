"""LiRA, offline: how far the target's confidence lies above that of models which never saw the candidate."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from fedbench.core import Attack, Audit, Observations, Params
from fedbench.plugins.attacks.shadow_models.confidence import rescaled_confidence, shadow_models_of

ENOUGH_MODELS = 64  # Carlini et al.: below it one variance for all samples attacks better than one a sample
LEAST_DEVIATION = 1e-12  # of a candidate on which all shadow models agree to the last bit
RELEASED_GUARD = 1e-30  # what the released code adds to a deviation


class LiRAOffline(Attack):
    """Score = (phi - mu) / sigma, phi = ln(p_y / (1 - p_y)) on the final model, mu and sigma over the shadow models.

    The paper's score is 1 - Pr[Z > phi] = Phi of this z, a monotone function of it: AUC and TF01 are the same, but Phi
    is 1 in float64 from z = 8.3 on, so the clearest members would tie exactly where TF01 is decided.
    The global variance is the mean over the candidates of the variance over the shadow models; as one constant for all,
    it leaves the ranking to phi - mu.
    Source: Carlini et al., S&P 2022, the offline attack (one-sided test against the out-models alone), one query a sample.

    ``form: released`` is the offline attack of their code (TensorFlow Privacy, research/mi_lira_2021/plot.py): minus the
    log density of phi under the out-models' Gaussian, its mean the median, its deviation of divisor M. It is two-sided: a
    confidence far below the shadow models' counts as much for membership as one far above. Its fixed variance is that of
    all values of all candidates about their common mean.
    """

    class Params(Params):
        variance: Literal["auto", "global", "per-sample"] = Field(
            "auto",
            description="of the out-models: one for all candidates, or one each; auto: global below 64 shadow models",
        )
        form: Literal["one-sided", "released"] = Field(
            "one-sided", description="the paper's offline test, or the released code's density: two-sided about the median"
        )

    view = "external"
    needs_shadow_models = True

    def score(self, observations: Observations, audit: Audit) -> np.ndarray:
        shadows = shadow_models_of(observations)
        out = np.stack([rescaled_confidence(logits, audit.y) for logits in shadows.logits])  # [M, n]
        phi = rescaled_confidence(shadows.target_logits, audit.y)
        if self.params.form == "released":
            return minus_log_density(phi, out, self._one_variance(out))
        return (phi - out.mean(axis=0)) / self._deviation(out)

    def _one_variance(self, out: np.ndarray) -> bool:
        """Whether all candidates share one variance over the models of ``out`` [M, n]."""
        chosen = self.params.variance
        return chosen == "global" or (chosen == "auto" and len(out) < ENOUGH_MODELS)

    def _deviation(self, out: np.ndarray) -> np.ndarray:
        """[n]: the deviation over the models of ``out`` [M, n]."""
        variance = out.var(axis=0, ddof=1)
        if self._one_variance(out):
            variance = np.full_like(variance, variance.mean())
        return np.maximum(np.sqrt(variance), LEAST_DEVIATION)


def minus_log_density(phi: np.ndarray, out: np.ndarray, one_variance: bool) -> np.ndarray:
    """[n]: -ln N(phi; median, deviation^2) of ``phi`` [n] under the out-models' ``out`` [M, n], as the released code has it."""
    deviation = RELEASED_GUARD + (out.std() if one_variance else out.std(axis=0))
    z = (phi - np.median(out, axis=0)) / deviation
    return np.asarray(z**2 / 2 + np.log(deviation) + np.log(2 * np.pi) / 2)
