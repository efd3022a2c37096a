"""CS-MIA: a small net reads the series of prediction confidences along the rounds."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fedbench.core import Observations, Params, SkipCell
from fedbench.plugins.attacks.adam import Adam
from fedbench.plugins.attacks.crossfit import CrossFitted

HIDDEN, BATCH, RATE, WEIGHT_DECAY = 64, 128, 1e-3, 5e-4


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

    def _learn(self, x: np.ndarray, member: np.ndarray, generator: torch.Generator) -> nn.Module:
        net, read, y = SeriesNet(x.shape[1], generator), torch.from_numpy(x), torch.from_numpy(member).float()
        if self.params.standardise:
            net.standardise_by(read)
        adam = Adam(list(net.parameters()), WEIGHT_DECAY)
        for _ in range(self.params.epochs):
            for batch in torch.randperm(len(read), generator=generator).split(BATCH):
                adam.step(binary_cross_entropy_with_logits(net(read[batch]), y[batch]), RATE)
        return net

    def _logit(self, net: nn.Module, x: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return np.asarray(net(torch.from_numpy(x)).double().numpy())


class SeriesNet(nn.Module):
    """Linear(R, 64) -> ReLU -> Linear(64, 1); [n, R] -> [n], the value before the sigmoid.

    The weights are drawn from ``generator`` by PyTorch's usual rule (uniform, one over the root of the inputs).
    """

    def __init__(self, rounds: int, generator: torch.Generator) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(rounds))
        self.register_buffer("std", torch.ones(rounds))
        # made on the meta device: the layers' own initialisers would draw from the global generator
        self.hidden = nn.Linear(rounds, HIDDEN, device="meta").to_empty(device="cpu")
        self.out = nn.Linear(HIDDEN, 1, device="meta").to_empty(device="cpu")
        for layer in (self.hidden, self.out):
            for p in layer.parameters():
                nn.init.uniform_(p, -(layer.in_features**-0.5), layer.in_features**-0.5, generator=generator)

    def standardise_by(self, x: torch.Tensor) -> None:
        """Take each round's mean and deviation over the samples of ``x`` [n, R]."""
        self.mean = x.mean(0)
        self.std = x.std(0, correction=0).clamp_min(1e-12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.hidden((x - self.mean) / self.std).relu()).squeeze(1)


def carried(series: np.ndarray) -> np.ndarray:
    """[R, n] with each row of NaN replaced by the last row before it, the first ones by the first seen."""
    seen = ~np.isnan(series).any(axis=1)
    if not seen.any():
        raise SkipCell("the client took part in no audited round")
    latest = np.maximum.accumulate(np.where(seen, np.arange(len(series)), -1))
    return series[np.where(latest < 0, np.argmax(seen), latest)]
