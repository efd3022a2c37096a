"""Avg-Cosine: how well the target's updates align with the sample's gradient."""

from __future__ import annotations

import numpy as np

from fedbench.core import Audit, Observations
from fedbench.plugins.attacks.measures import MEASURES, of_target
from fedbench.plugins.attacks.series import time_average
from fedbench.plugins.attacks.trajectory import Trajectory


class AvgCosine(Trajectory):
    """Score = mean over audited rounds of cos(grad CE(G_t; x, y), G_t - L_{k,t}).

    Source: Li et al. (ICLR 2023), over the audited rounds as in CoFedMID (appendix D).
    """

    needs = MEASURES["grad-cosine"].needs

    def score(self, observations: Observations, audit: Audit) -> np.ndarray:
        return time_average(self._read(of_target(MEASURES["grad-cosine"].of(observations), observations), audit))
