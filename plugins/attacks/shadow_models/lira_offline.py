"""LiRA, offline: how far the target's confidence lies above that of models which never saw the candidate."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from fedbench.core import Attack, Audit, Observations, Params
from fedbench.plugins.attacks.shadow_models.confidence import rescaled_confidence, shadow_models_of

ENOUGH_MODELS = 64  # Carlini et al.: below it one variance for all samples attacks better than one a sample
LEAST_DEVIATION = 1e-12  # of a candidate on which all shadow models agree to the last bit


class LiRAOffline(Attack):
    """Score = (phi - mu) / sigma, phi = ln(p_y / (1 - p_y)) on the final model, mu and sigma over the shadow models.

    The paper's score is 1 - Pr[Z > phi] = Phi of this z, a monotone function of it: AUC and TF01 are the same, but Phi
    is 1 in float64 from z = 8.3 on, so the clearest members would tie exactly where TF01 is decided.
    The global variance is the mean over the candidates of the variance over the shadow models; as one constant for all,
    it leaves the ranking to phi - mu.
    Source: Carlini et al., S&P 2022, the offline attack (one-sided test against the out-models alone), one query a sample.
    """

    class Params(Params):
        variance: Literal["auto", "global", "per-sample"] = Field(
            "auto",
            description="of the out-models: one for all candidates, or one each; auto: global below 64 shadow models",
        )

    view = "external"
    needs_shadow_models = True

    def score(self, observations: Observations, audit: Audit) -> np.ndarray:
        shadows = shadow_models_of(observations)
        out = np.stack([rescaled_confidence(logits, audit.y) for logits in shadows.logits])  # [M, n]
        phi = rescaled_confidence(shadows.target_logits, audit.y)
        return (phi - out.mean(axis=0)) / self._deviation(out)

    def _deviation(self, out: np.ndarray) -> np.ndarray:
        """[n]: the deviation over the models of ``out`` [M, n]."""
        variance = out.var(axis=0, ddof=1)
        chosen = self.params.variance
        if chosen == "global" or (chosen == "auto" and len(out) < ENOUGH_MODELS):
            variance = np.full_like(variance, variance.mean())
        return np.maximum(np.sqrt(variance), LEAST_DEVIATION)
