"""Quantize: upload an update in a few bits an entry."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from fedbench.core import Defense, MemberContext, Params

Rounding = Literal["floor", "nearest", "stochastic"]


class Quantize(Defense):
    """Round each tensor of a member's update to at most 2^bits values between its least and its largest entry.

    ``floor``: 2^bits equal bins, an entry becomes the lower edge of its bin, as in FedMIA's released code; every entry
    moves down, half a bin on average, so the update is biased. ``nearest`` and ``stochastic`` use 2^bits levels evenly
    spaced from minimum to maximum; ``stochastic`` rounds up with the probability that makes it unbiased (QSGD:
    Alistarh et al., NeurIPS 2017, section 3.1). No tensor is exempt; a constant one stays as it is.
    Source: Zhu et al. (FedMIA, CVPR 2025), A.2.1, bits 1 to 10. The attacks see the quantised model, for losses too;
    FedMIA's code shows it to gradient attacks alone.
    """

    class Params(Params):
        bits: int = Field(4, ge=1, le=16, description="bits per entry: at most 2^bits values in a tensor")
        rounding: Rounding = Field("floor", description="down to the bin's edge, to the nearest level, or unbiased")

    def protect(self, update: torch.Tensor, ctx: MemberContext) -> torch.Tensor:
        sizes = [p.numel() for p in ctx.model.parameters() if p.requires_grad]
        p = self.params
        return torch.cat([quantize(piece, p.bits, p.rounding, ctx.generator) for piece in update.split(sizes)])


def quantize(values: torch.Tensor, bits: int, rounding: Rounding, generator: torch.Generator) -> torch.Tensor:
    """[n] rounded to at most 2^bits values; ``generator`` (CPU) is used by ``stochastic`` alone."""
    exact = values.double()  # in float32 an entry on a bin's edge could fall into the bin below
    low, high = exact.aminmax()
    intervals = 2**bits if rounding == "floor" else 2**bits - 1
    step = torch.where(high > low, (high - low) / intervals, 1.0)
    position = (exact - low) / step
    if rounding == "floor":
        level = position.floor().clamp_max(2**bits - 1)  # the maximum belongs to the last bin
    elif rounding == "nearest":
        level = position.round()
    else:
        level = (position + torch.rand(values.shape, generator=generator, dtype=torch.float64).to(exact.device)).floor()
        level = level.clamp_max(intervals)
    return (low + level * step).to(values.dtype)
