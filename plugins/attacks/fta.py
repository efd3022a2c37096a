"""FTA: members are learnt faster, so their loss falls and their confidence rises more steeply."""

from __future__ import annotations

import numpy as np

from fedbench.core import Audit, Observations
from fedbench.plugins.attacks.series import slope
from fedbench.plugins.attacks.trajectory import Trajectory


class FTAC(Trajectory):
    """Score = least-squares slope of p_y against the round number, on the target's uploaded models.

    Source: Chang et al. (USENIX Security 2024), over the audited rounds as CoFedMID (appendix D) uses it. Their final
    calibration by population percentiles is monotone, hence left out: it could only create ties.
    """

    needs = frozenset({"confidence"})

    def score(self, observations: Observations, audit: Audit) -> np.ndarray:
        return slope(observations.rounds, self._read(observations.of_target("confidence"), audit))


class FTAL(Trajectory):
    """Score = minus the least-squares slope of the loss against the round number, on the target's uploaded models.

    Source: Chang et al. (USENIX Security 2024), as FTA-C.
    """

    needs = frozenset({"loss"})

    def score(self, observations: Observations, audit: Audit) -> np.ndarray:
        return -slope(observations.rounds, self._read(observations.of_target("loss"), audit))
