"""Dropout before the last fully connected layers, in members' local training alone."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import nn

from fedbench.core import Defense, MemberContext, Params
from fedbench.plugins.defenses.linear_layers import last_linear


class Dropout(Defense):
    """Each input of the last linear layers is zeroed with probability ``rate`` in a training step, the others are divided
    by 1 - ``rate``, so that its expectation stays.

    The model itself has no such layer: hooks stand on its layers while the member trains, and do nothing in eval mode, so
    whatever is measured, sent or aggregated is the plain model's. Masks are drawn from the member's own generator.
    Source: Srivastava et al. (JMLR 2014); MemberShield, section 7.2 ("AoF"): .25, .5, .75 before the last one to three
    fully connected layers.
    """

    class Params(Params):
        rate: float = Field(0.5, ge=0, lt=1, description="probability that an input of the layer is zeroed")
        layers: Annotated[int, Field(ge=1)] | Literal["all"] = Field(
            1, description="before how many of the last linear layers, or `all` of them"
        )

    def local_train(self, ctx: MemberContext) -> None:
        count = None if self.params.layers == "all" else self.params.layers

        def drop(layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
            if not layer.training:
                return None
            return (dropped(inputs[0], self.params.rate, ctx.generator), *inputs[1:])

        hooks = [layer.register_forward_pre_hook(drop) for layer in last_linear(ctx.model, count, "dropout")]
        try:
            ctx.train()
        finally:
            for hook in hooks:
                hook.remove()


def dropped(x: torch.Tensor, rate: float, generator: torch.Generator) -> torch.Tensor:
    """``x`` with each entry zero with probability ``rate``, else divided by 1 - ``rate``."""
    keep = (torch.rand(x.shape, generator=generator) >= rate).to(x.device)
    return x * keep / (1 - rate)
