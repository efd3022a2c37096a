"""Perturb: client-level clipping and Gaussian noise on what a member uploads."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator

from fedbench.core import Defense, MemberContext, Params, norm


class Perturb(Defense):
    """Scale the update down to the L2 norm C, then add N(0, s^2) to every entry, fresh every round.

    ``absolute``: s = sigma, as FedMIA states its sweep (.01 to .5); ``relative``: s = sigma C, the noise multiplier of
    McMahan et al. (ICLR 2018). The papers give no C.
    Source: Zhu et al. (FedMIA, CVPR 2025), A.2.1 "client-level differential privacy".

    ``clip: none`` is FedMIA's released code: N(0, sigma^2) on the local weights and no clipping. Noise on the weights
    and noise on the update are one thing, (w + z) - w0 = (w - w0) + z; that code also measures losses on the noisy
    weights, and so do the attacks here, which only ever see the uploaded model w0 + update. It is then ``grad-noise``,
    and no privacy guarantee follows.
    """

    class Params(Params):
        clip: Annotated[float, Field(gt=0)] | Literal["none"] = Field(
            1.0, description="C, largest L2 norm of an update, or `none`: FedMIA's released code"
        )
        sigma: float = Field(0.1, ge=0, description="standard deviation of the noise, in the units of `scale`")
        scale: Literal["absolute", "relative"] = Field(
            "absolute", description="`absolute`: sigma in units of the parameters; `relative`: in units of clip"
        )

        @model_validator(mode="after")
        def _consistent(self):
            if self.clip == "none" and self.scale == "relative":
                raise ValueError("scale relative is in units of clip, and clip is none: give a clip, or scale absolute")
            return self

    def protect(self, update: torch.Tensor, ctx: MemberContext) -> torch.Tensor:
        p = self.params
        if p.clip == "none":
            return update + p.sigma * ctx.randn_like(update)
        clipped = update * (p.clip / norm(update).clamp_min(1e-30)).clamp_max(1)
        return clipped + (p.sigma * (p.clip if p.scale == "relative" else 1.0)) * ctx.randn_like(update)
