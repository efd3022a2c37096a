"""GradNoise: Gaussian noise on what a member uploads."""

from __future__ import annotations

import torch
from pydantic import Field

from fedbench.core import Defense, MemberContext, Params


class GradNoise(Defense):
    """Add N(0, sigma^2 I) to each member's update, fresh every round.

    Source: CoFedMID (appendix E). The update is not clipped, so no privacy guarantee follows; FedMIA's code does the
    same to the weights under the name of client-level differential privacy. With clipping: ``dp-sgd``, mode ``client``.
    """

    class Params(Params):
        sigma: float = Field(0.01, ge=0, description="standard deviation of the noise, in units of the parameters")

    def protect(self, update: torch.Tensor, ctx: MemberContext) -> torch.Tensor:
        return update + self.params.sigma * ctx.randn_like(update)
