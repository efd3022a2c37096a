"""LossRises: the direction of the loss around a sample."""

from __future__ import annotations

import torch
from fedbench.core import Params, Probe, Signal, UserError
from pydantic import Field
from torch.nn.functional import cross_entropy


class LossRises(Signal):
    """Share of ``draws`` of Gaussian noise that, added to the input, raise the loss: 1 where the
    sample lies in a minimum.

    Training pulls the loss down at its own samples, so those tend to lie near a minimum in the
    space of inputs.

    Source: Jayaraman, Wang, Knipmeyer, Gu, Evans, Revisiting Membership Inference Under Realistic
    Assumptions, PoPETs 2021, the Merlin attack: 100 draws with a standard deviation of .01. There
    every sample has draws of its own; here all samples share them, so that a value depends neither
    on the other samples of its batch nor on the order of the rounds.

    Byte images get noise in units of their full range and are rounded to bytes again. Tokens are
    refused.
    """

    class Params(Params):
        sigma: float = Field(
            0.01, gt=0, le=100, description="standard deviation of the noise, in units of the input"
        )
        draws: int = Field(100, ge=1, le=100_000, description="number of noise vectors")
        seed: int = Field(0, ge=0, le=2**31, description="of the noise")

    def measure(self, probe: Probe) -> torch.Tensor:
        """[n] float32, multiples of 1 / ``draws``. Raises ``UserError`` for inputs that noise
        cannot be added to.
        """
        generator = torch.Generator().manual_seed(self.params.seed)
        before = cross_entropy(probe.logits, probe.y, reduction="none")
        rises = torch.zeros_like(before)
        for _ in range(self.params.draws):
            noise = self.params.sigma * torch.randn(probe.x.shape[1:], generator=generator)
            around = cross_entropy(
                probe.model(_noisy(probe.x, noise.to(probe.x.device))), probe.y, reduction="none"
            )
            rises += around > before
        return (rises / self.params.draws).float()


def _noisy(x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """``x`` [n, *input] plus ``noise`` [*input], in the dtype of ``x``."""
    if x.is_floating_point():
        return x + noise
    if x.dtype == torch.uint8:
        return (x + 255 * noise).round().clamp(0, 255).to(torch.uint8)
    raise UserError(
        f"loss-rises adds noise to the input: it takes floats or byte images, not {x.dtype} "
        "(tokens)"
    )
