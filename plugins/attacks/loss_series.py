"""Loss-Series: the average loss along the trajectory."""

from __future__ import annotations

import numpy as np

from fedbench.core import Audit, Observations
from fedbench.plugins.attacks.loss_on import LossOn
from fedbench.plugins.attacks.measures import of_target
from fedbench.plugins.attacks.series import time_average
from fedbench.plugins.attacks.trajectory import Followed, Trajectory


class LossSeries(Trajectory):
    """Score = mean over audited rounds of -CE(L_{k,t}(x), y).

    Source: Yeom et al. (CSF 2018) as CoFedMID (appendix D) uses it; not CS-MIA's learned series.
    """

    class Params(LossOn, Followed):
        pass

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """The loss on the chosen model."""
        return self.params.negative_loss.needs

    def score(self, observations: Observations, audit: Audit) -> np.ndarray:
        return time_average(self._read(of_target(self.params.negative_loss.of(observations), observations), audit))
