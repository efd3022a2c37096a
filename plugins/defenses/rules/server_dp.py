"""Server-side noise: clip every row, average, add Gaussian noise."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from fedbench.core import Defense, Params, ServerContext, norms
from fedbench.plugins.defenses.rules.geometry import clipped_mean


def noisy_mean(updates: torch.Tensor, clip: float, sigma: float, noise: torch.Tensor) -> torch.Tensor:
    """[P]: the mean of the rows [K, P] clipped to L2 norm ``clip``, plus sigma clip / K times ``noise`` [P], standard normal."""
    return clipped_mean(updates, norms(updates), clip) + (sigma * clip / len(updates)) * noise


def shared_noise(updates: torch.Tensor, sigma: float, noise: torch.Tensor) -> torch.Tensor:
    """[P]: the plain mean of the rows [K, P] plus ``sigma`` times ``noise`` [P]."""
    return updates.mean(dim=0) + sigma * noise


class ServerDP(Defense):
    """Rows clipped to norm C, and N(0, (sigma C)^2) on their sum: a standard deviation of sigma C / K on the mean.

    One row changes the sum by C at most, which is what the noise is measured by; rows weigh the same, since a weight
    would change that. sigma .01 and C = 1 give ten rows the standard deviation of .001 that the poisoning paper's
    code uses. ``variant: shared`` is that code: nothing is clipped, and every row gets the same one vector of standard
    deviation sigma, which is the mean plus that vector; no privacy guarantee follows. Fresh noise every round.
    Source: McMahan et al., ICLR 2018; Mo et al. (FedPoisonMIA), ICCV 2025, appendix D "Differential privacy".
    """

    class Params(Params):
        clip: float = Field(1.0, gt=0, description="C, largest L2 norm of a row; not used by `variant: shared`")
        sigma: float = Field(
            0.01, ge=0, description="noise on the sum, a standard deviation in units of clip; `shared`: on the mean, absolute"
        )
        variant: Literal["clipped", "shared"] = Field(
            "clipped", description="`clipped`: clip and noise the sum; `shared`: the released code (its sigma: .001)"
        )

    def aggregate(self, updates: torch.Tensor, weights: torch.Tensor, ctx: ServerContext) -> torch.Tensor:
        """[P]."""
        p, noise = self.params, ctx.randn_like(updates[0])
        return shared_noise(updates, p.sigma, noise) if p.variant == "shared" else noisy_mean(updates, p.clip, p.sigma, noise)
