"""Attacks that measure one round: Blackbox-Loss, Grad-Cosine, Grad-Diff and Grad-Norm."""

from __future__ import annotations

import numpy as np
from pydantic import Field, model_validator

from fedbench.core import Audit, Observations, Params
from fedbench.plugins.attacks.measures import LossAttack, MeasuringAttack, last_seen, time_average


class SingleRound(MeasuringAttack):
    """Score = a measurement in the last audited round in which the target took part.

    FedMIA's table reports the best snapshot instead, picked on the answers (Zhu et al., CVPR 2025, table 1 and its
    code): that is the metric ``best_round`` over ``score_rounds``, never the score.
    """

    def score_rounds(self, observations: Observations, audit: Audit) -> np.ndarray | None:
        """[R, n]; a row of NaN for a round without the target."""
        return self._measured(observations)

    def score(self, observations: Observations, audit: Audit) -> np.ndarray:
        return last_seen(self._measured(observations))


class BlackboxLoss(LossAttack, SingleRound):
    """Score = -CE(L_{k,t}(x), y) on the target's uploaded model of one round.

    Source: Yeom et al. (CSF 2018), adversary 2 (a loss threshold), the baseline of Zhu et al. (CVPR 2025), section 4.1.
    """


class GradCosine(SingleRound):
    """Score = cos(g, I) with g = grad CE(G_t; x, y) and I = G_t - L_{k,t}.

    Source: Li et al. (ICLR 2023), cosine attack; Zhu et al. (CVPR 2025), section 4.1 and equation 7.
    """

    measure = "grad-cosine"


class GradDiff(SingleRound):
    """Score = |I|^2 - |I - g|^2 = 2 <I, g> - |g|^2: how much taking the sample's gradient out shortens the update.

    Source: Li et al. (ICLR 2023), gradient-difference attack, on the pseudo-gradient as it is, as in Zhu et al. (CVPR
    2025), section 4.1.
    """

    measure = "grad-diff"


class GradNorm(SingleRound):
    """Score = -|g|^2 at the global model, whichever client is asked about: members are fitted, their gradients small.

    It tells samples of the federation from others, not a client's from another client's, and needs no upload of the
    target. Source: Nasr et al. (CCS 2018) as Zhu et al. (CVPR 2025), section 4.1, cite it.
    """

    class Params(Params):
        average: bool = Field(False, description="mean over all audited rounds instead of the last one")
        inverted: bool = Field(
            False, description="faithful: FedMIA's code turns the average over a second time, so members score LOW"
        )

        @model_validator(mode="after")
        def _only_the_average_is_inverted(self):
            if self.inverted and not self.average:
                raise ValueError("'inverted' belongs to the average: set average to true, or inverted to false")
            return self

    measure = "grad-norm"

    def score_rounds(self, observations: Observations, audit: Audit) -> np.ndarray | None:
        """[R, n]; None for the average, which uses the trajectory."""
        return None if self.params.average else super().score_rounds(observations, audit)

    def score(self, observations: Observations, audit: Audit) -> np.ndarray:
        if not self.params.average:
            return super().score(observations, audit)
        return (-1 if self.params.inverted else 1) * time_average(self._measured(observations))
