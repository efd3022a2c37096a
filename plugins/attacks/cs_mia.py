"""CS-MIA: a small net reads the series of prediction confidences along the rounds."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field

from fedbench.core import Observations, Params
from fedbench.plugins.attacks.measures import carried
from fedbench.plugins.attacks.networks import HiddenLayerNet, trained_net
from fedbench.plugins.attacks.taught import CrossFitted

WEIGHT_DECAY = 5e-4


class CSMIA(CrossFitted):
    """Score = the net's member logit for the series of modified entropies on the target's uploaded models.

    The net learns from one colluding client, its members against the rest of the pool, cross-fitted sample by sample.
    Its inputs are rounds, so both series have one value for every audited round: in a round without the client, that of
    the last model it uploaded (before its first one, of the first).
    Source: Gu et al., CS-MIA (Information Sciences 2022), the attack of a participant that knows its own members, with
    the target's models in place of the global ones. The paper's hidden activation is taken to be ReLU.
    """

    class Params(Params):
        epochs: int = Field(50, ge=1, le=10_000, description="passes over the colluder's samples")
        standardise: bool = Field(
            False, description="shift and scale each round by its mean and deviation on the training fold (paper: off)"
        )

    needs = frozenset({"modified-entropy"})

    def _features(self, observations: Observations, y: np.ndarray) -> np.ndarray:
        """[n, R] float32."""
        return np.ascontiguousarray(carried(observations.of_target("modified-entropy")).T, dtype=np.float32)

    def _learn(self, x: np.ndarray, member: np.ndarray, generator: torch.Generator) -> HiddenLayerNet:
        read, kind = torch.from_numpy(x), torch.from_numpy(member)
        return trained_net(read, kind, self.params.epochs, generator, WEIGHT_DECAY, self.params.standardise)

    def _logit(self, net: HiddenLayerNet, x: np.ndarray) -> np.ndarray:
        return net.logits(torch.from_numpy(x))
