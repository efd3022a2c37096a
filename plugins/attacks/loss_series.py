"""Loss-Series: the average loss along the trajectory."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from fedbench.core import Attack, Audit, Observations, Params
from fedbench.plugins.attacks.series import time_average


class LossSeries(Attack):
    """Score = mean over audited rounds of -CE(L_{k,t}(x), y).

    ``loss_on: pre_defense`` reads the loss of the local model before the client protected its upload, which no server
    ever sees: FedMIA's released code does so under sparsification and quantisation (only the uploaded copy is changed).
    Source: Yeom et al. (CSF 2018) as CoFedMID (appendix D) uses it; not CS-MIA's learned series.
    """

    class Params(Params):
        loss_on: Literal["uploaded", "pre_defense"] = Field(
            "uploaded", description="which local model: the uploaded one, or as it was before its protection (faithful)"
        )

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({self._signal})

    @property
    def _signal(self) -> str:
        return "loss" if self.params.loss_on == "uploaded" else "loss@pre-defense"

    def score(self, observations: Observations, audit: Audit) -> np.ndarray:
        return -time_average(observations.of_target(self._signal))
