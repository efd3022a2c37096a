"""RMIA, offline: does the candidate's likelihood ratio dominate that of samples the model never saw?"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from fedbench.core import Attack, Audit, Observations, Params, ShadowModels, SkipCell
from fedbench.plugins.attacks.shadow_models.confidence import log_confidence, shadow_models_of


class RMIA(Attack):
    """Score = share of population samples z with ratio(x) / ratio(z) >= gamma, ratio(x) = p(x | theta) / p(x); in [0, 1].

    p(x | theta) is the final model's softmax on the true label; p(x) = ((1 + a) p_out(x) + 1 - a) / 2 with p_out the mean
    over the shadow models, which estimates the mean of in- and out-models from out-models alone (p_in = a p_out + 1 - a).
    The population is the shadow samples. None of them is in the target's training data, but each was in that of some
    shadow models, so p_out(z) averages those alone that did not train on z; a z that all trained on is left out. A
    candidate is compared with the z under the global model that serves its own client.
    The score has steps of 1/S for S shadow samples, so TF01 wants S in the thousands.
    Source: Zarifzadeh, Liu & Shokri, ICML 2024, the offline attack; softmax without temperature, one query a sample.
    The authors' tool picks ``a`` for each data set by attacking a shadow model, and takes gamma = 1.
    """

    class Params(Params):
        a: float = Field(
            0.3, ge=0, le=1, description="p_in = a p_out + 1 - a: 1 = training leaves the confidence alone, 0 = makes it 1"
        )
        gamma: float = Field(1.0, ge=1, description="by which factor the candidate's ratio must exceed that of z")

    view = "external"
    needs_shadow_models = True

    def score(self, observations: Observations, audit: Audit) -> np.ndarray:
        shadows = shadow_models_of(observations)
        x = log_confidence(shadows.target_logits, audit.y) - self._log_evidence(_log_out(shadows, audit.y))
        population = self._population(shadows)
        score = np.empty(len(x), np.float64)
        for j in np.unique(shadows.model_of):
            here = shadows.model_of == j
            bars = np.sort(population[j] + np.log(self.params.gamma))
            score[here] = np.searchsorted(bars, x[here], side="right") / len(bars)  # right: a tie counts, as >= does
        return score

    def _population(self, shadows: ShadowModels) -> np.ndarray:
        """[s, Z]: ln ratio(z) under each global model, of the shadow samples that some shadow model did not train on."""
        kept = np.asarray(~shadows.shadow_member.all(axis=0))
        if not kept.any():
            raise SkipCell("every shadow model trained on every shadow sample, so there is no population to compare with")
        y = shadows.shadow_y[kept]
        evidence = self._log_evidence(_log_out_z(shadows, kept))
        return np.stack([log_confidence(logits[kept], y) - evidence for logits in shadows.target_shadow_logits])

    def _log_evidence(self, log_out: np.ndarray) -> np.ndarray:
        """[n]: ln p(x) from ln p_out(x)."""
        with np.errstate(divide="ignore"):  # a = 1: ln 0 = -inf adds nothing
            rest = np.log((1 - self.params.a) / 2)
        return np.logaddexp(np.log((1 + self.params.a) / 2) + log_out, rest)


def _log_out(shadows: ShadowModels, y: np.ndarray) -> np.ndarray:
    """[n]: ln of the shadow models' mean confidence in the candidates, on which none of them was trained."""
    each = np.stack([log_confidence(logits, y) for logits in shadows.logits])
    return np.logaddexp.reduce(each, axis=0) - np.log(len(each))


def _log_out_z(shadows: ShadowModels, kept: np.ndarray) -> np.ndarray:
    """[Z]: the same of the kept shadow samples, over those models that did not train on each."""
    y, out = shadows.shadow_y[kept], ~shadows.shadow_member[:, kept]
    each = np.stack([log_confidence(logits[kept], y) for logits in shadows.shadow_logits])
    return np.logaddexp.reduce(np.where(out, each, -np.inf), axis=0) - np.log(out.sum(axis=0))
