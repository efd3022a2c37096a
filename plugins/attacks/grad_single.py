"""Single-round attacks on gradients: the sample's at the global model against the target's update of that round."""

from __future__ import annotations

import numpy as np
from pydantic import Field, model_validator

from fedbench.core import Audit, Observations, Params
from fedbench.plugins.attacks.series import time_average
from fedbench.plugins.attacks.single_round import SingleRound


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
