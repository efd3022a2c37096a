"""Source inference: which client's local model fits the sample best."""

from __future__ import annotations

import numpy as np
from numpy import ndarray

from fedbench.core import Observations
from fedbench.plugins.attacks.measures import MEASURES, of_others, of_target
from fedbench.plugins.attacks.trajectory import SingleRound


class SourceInference(SingleRound):
    """Score = ln P(k | losses) - max over the other clients j of ln P(j | losses), in the last
    audited round in which the target k took part.

    With parameters distributed as exp(-loss / T) given the samples (their Bayesian model) and all
    clients equally likely, P(k | losses) is proportional to exp(-loss_k / T): the source is the
    client of the least local loss. T scales the score alone and is 1 here, so the score is the
    least loss of another client minus the target's, and above 0 the verdict is the target. The
    recall at 0 is their accuracy of source inference, guessing being 1 / K. Where clients are left
    out (``audit.references``), the verdict is among those seen. Source: Hu et al., "Source
    Inference Attacks in Federated Learning" (ICDM 2021), with the argmin in its released code
    (17bcb21).
    """

    measure = "loss"
    threshold = 0.0

    def _measured(self, observations: Observations) -> ndarray:
        likelihood = MEASURES["loss"].compute(observations)
        others = of_others(likelihood, observations)
        # the largest number, NaN (an absent client) left out
        return of_target(likelihood, observations) - np.fmax.reduce(others, axis=1)
