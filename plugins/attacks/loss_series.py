"""Loss-Series: the average loss along the trajectory."""

from __future__ import annotations

import numpy as np

from fedbench.core import Attack, Audit, Observations
from fedbench.plugins.attacks.series import time_average


class LossSeries(Attack):
    """Score = mean over audited rounds of -CE(L_{k,t}(x), y).

    Source: Yeom et al. (CSF 2018) as CoFedMID (appendix D) uses it; not CS-MIA's learned series.
    """

    needs = frozenset({"loss"})

    def score(self, observations: Observations, audit: Audit) -> np.ndarray:
        return -time_average(observations.of_target("loss"))
