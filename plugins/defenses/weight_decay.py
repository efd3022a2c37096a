"""Weight decay: an L2 penalty on fully connected layers, in the loss."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field

from fedbench.core import Batch, Defense, MemberContext, Params
from fedbench.plugins.defenses.linear_layers import last_linear


class WeightDecay(Defense):
    """Adds ``strength`` times the sum of the squared weights of the last linear layers to the loss; biases are left out.

    As Keras' ``l2`` regulariser does: the gradient is 2 strength w, and an adaptive optimiser rescales it with the rest.
    The optimiser's own ``weight_decay``, which every client of a setting shares, adds weight_decay w to all parameters.
    Source: MemberShield, section 7.2 ("AoF"): .01 on the last one to three fully connected layers.
    """

    class Params(Params):
        strength: float = Field(0.01, ge=0, description="lambda, weight of the sum of squares")
        layers: Annotated[int, Field(ge=1)] | Literal["all"] = Field(
            1, description="how many of the last linear layers, or `all` of them"
        )

    def loss(self, logits: torch.Tensor, batch: Batch, ctx: MemberContext) -> torch.Tensor:
        count = None if self.params.layers == "all" else self.params.layers
        penalty = torch.stack([layer.weight.square().sum() for layer in last_linear(ctx.model, count, "weight-decay")]).sum()
        return super().loss(logits, batch, ctx) + self.params.strength * penalty
