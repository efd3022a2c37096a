"""FTA as published: slopes on the global model, which every participant receives."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from fedbench.core import Attack, Audit, Observations, Params
from fedbench.plugins.attacks.measures import MEASURES, of_target
from fedbench.plugins.attacks.series import slope


class FTA(Attack):
    """Score = least-squares slope of a signal on the global model against the round number; of the loss, minus it.

    A participant's attack. It sees one model a round, the same for every target, and so tells samples of the federation
    from outsiders' (``ofl``); among other clients' samples (``ifl``) it can only be at chance. As published it reads
    every round: audit every one (``audit: {every: 1}``).
    There is no calibration by population percentiles: that rank among known outsiders is the same monotone map for
    every candidate, which moves a threshold and can create ties, but changes no order, hence neither AUC nor TPR at a
    fixed FPR. It would cost the known outsiders, who could then not be audited.
    Source: Chang et al. (USENIX Security 2024). The variants on the target's uploads are ``fta-c`` and ``fta-l``.
    """

    class Params(Params):
        signal: Literal["loss", "confidence", "rescaled"] = Field(
            "loss", description="loss: -CE; confidence: p_y; rescaled: ln(p_y / (1 - p_y)), from the logits"
        )

    view = "client"

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """The signals it is computed from."""
        return MEASURES[self.params.signal].needs

    def score(self, observations: Observations, audit: Audit) -> np.ndarray:
        return slope(observations.rounds, of_target(MEASURES[self.params.signal].of(observations), observations))
