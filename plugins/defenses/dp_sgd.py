"""DP-SGD: clip what one example (or one client) contributes, then add noise of that size."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field

from fedbench.core import Batch, Defense, FactValue, MemberContext, Params, ReportContext, UserError, norm, norms

DELTA = 1e-5  # at which epsilon is reported
_BUDGET = 2**26  # per-sample gradient elements held at a time: 256 MB in float32


class DPSGD(Defense):
    """Differentially private local training: by example in every step, or by client on the update.

    ``example``: each sample's gradient is clipped to the norm C, the batch is averaged and N(0, (sigma C / B)^2) is
    added, B being the batch's own size (Abadi et al., CCS 2016, algorithm 1). With ``augment_multiplicity`` k > 1 a
    sample's gradient is the mean over k random views of it before it is clipped, so its contribution is still bounded
    by C (De et al., 2022, section 3.2).

    ``client``: the update is scaled down to the norm C_delta and N(0, (sigma C_delta)^2) is added to every parameter
    (McMahan et al., ICLR 2018). ``clip_update: median`` takes the median norm of the member's updates in earlier
    rounds, and in round 1, which has none, the norm of the update itself (nothing is clipped then). A bound
    computed from private data supports no epsilon.

    What epsilon would mean: see :func:`epsilon`. It would hold for one member's example (or the member) against whoever
    reads that member's uploads, not for the coalition, and only if nothing else depends on the data: a fixed
    clipping norm, no batch statistics in the model. The noise multipliers usual in this literature (.05 to .2) give
    an epsilon in the thousands: an empirical defense, not a guarantee.
    """

    class Params(Params):
        mode: Literal["example", "client"] = Field("example", description="whose contribution is clipped and hidden")
        sigma: float = Field(0.1, ge=0, description="noise multiplier, in units of the clipping norm")
        clip: float = Field(1.0, gt=0, description="C, largest L2 norm of one example's gradient (mode example)")
        clip_update: Annotated[float, Field(gt=0)] | Literal["median"] = Field(
            1.0, description="C_delta, largest L2 norm of an update, or `median` of the past ones (mode client)"
        )
        augment_multiplicity: int = Field(
            1, ge=1, description="views of a sample averaged before clipping; 1: the sample as it is"
        )
        shift: int = Field(4, ge=0, description="largest shift of a view, in pixels, zero padded")
        flip: bool = Field(False, description="whether a view is mirrored left to right with probability 1/2")

    def local_step(self, batch: Batch, ctx: MemberContext) -> torch.Tensor | None:
        if self.params.mode == "client":
            return None
        size = len(batch.hard_labels("dp-sgd"))
        mean = self._clipped_sum(batch, ctx) / size
        return mean + (self.params.sigma * self.params.clip / size) * ctx.randn_like(mean)

    def protect(self, update: torch.Tensor, ctx: MemberContext) -> torch.Tensor:
        if self.params.mode == "example":
            return update
        bound = self._update_bound(update, ctx)
        return clip_to(update, bound) + (self.params.sigma * bound) * ctx.randn_like(update)

    def report(self, ctx: ReportContext) -> dict[str, FactValue]:
        """Mode example: the epsilon of one member's example against whoever reads that member's uploads; see :func:`epsilon`.

        Nothing is claimed without noise, nor in mode client, where running statistics go out unclipped.
        """
        if self.params.mode == "client" or self.params.sigma == 0:
            return {}
        steps = ctx.federation.rounds * ctx.federation.local_epochs  # an example is in at most one batch of an epoch
        return {"epsilon": epsilon(self.params.sigma, steps, DELTA), "delta": DELTA, "unit of privacy": "example"}

    def _clipped_sum(self, batch: Batch, ctx: MemberContext) -> torch.Tensor:
        """[P]: the sum of the clipped gradients, a few samples at a time to bound memory."""
        views = self.params.augment_multiplicity
        chunk = max(1, _BUDGET // (views * len(ctx.params)))
        total = torch.zeros_like(ctx.params)
        for x, y in zip(batch.x.split(chunk), batch.y.split(chunk), strict=True):
            if views > 1:
                x, y = self._views(x, ctx), y.repeat_interleave(views)
            gradients = ctx.per_sample_gradients(x, y)
            if views > 1:
                gradients = gradients.unflatten(0, (-1, views)).mean(1)
            total += clip_factors(gradients, self.params.clip) @ gradients
        return total

    def _views(self, x: torch.Tensor, ctx: MemberContext) -> torch.Tensor:
        if x.ndim != 4:
            raise UserError(
                f"dp-sgd: augment_multiplicity shifts images [channels, height, width]; "
                f"these samples have the shape {list(x.shape[1:])}: use augment_multiplicity 1"
            )
        return random_views(x, self.params.augment_multiplicity, self.params.shift, self.params.flip, ctx.generator)

    def _update_bound(self, update: torch.Tensor, ctx: MemberContext) -> float:
        if self.params.clip_update != "median":
            return self.params.clip_update
        length = float(norm(update))
        past = ctx.memory.setdefault("update-norms", [])
        bound = float(torch.tensor(past or [length], dtype=torch.float64).quantile(0.5))
        past.append(length)
        return bound


def clip_to(vector: torch.Tensor, bound: float) -> torch.Tensor:
    """[P] scaled down to at most the L2 norm ``bound``."""
    return vector * (bound / norm(vector).clamp_min(1e-30)).clamp_max(1)


def clip_factors(rows: torch.Tensor, bound: float) -> torch.Tensor:
    """[B] factors, at most 1, that scale each row of [B, P] down to at most the L2 norm ``bound``."""
    return (bound / norms(rows).clamp_min(1e-30)).clamp_max(1).to(rows)


def random_views(x: torch.Tensor, views: int, shift: int, flip: bool, generator: torch.Generator) -> torch.Tensor:
    """[B * views, C, H, W] from [B, C, H, W]: pad with zeros, crop at random, mirror; one sample's views adjacent.

    Source: pad-and-crop augmentation of He et al. (CVPR 2016, section 4.2).
    """
    n, (height, width) = len(x) * views, x.shape[-2:]
    padded = torch.nn.functional.pad(x, (shift,) * 4).repeat_interleave(views, 0)
    offset = torch.randint(0, 2 * shift + 1, (2, n, 1), generator=generator).to(x.device)
    mirror = (torch.randint(0, 2, (n, 1), generator=generator).to(x.device) * int(flip)).bool()
    columns = torch.arange(width, device=x.device)
    rows = torch.arange(height, device=x.device) + offset[0]
    columns = torch.where(mirror, columns.flip(0), columns) + offset[1]
    sample = torch.arange(n, device=x.device)
    # n=views r=rows c=columns: picking [n, r, c] puts the channels last
    return padded.movedim(1, -1)[sample[:, None, None], rows[:, :, None], columns[:, None, :]].movedim(-1, 1)


def epsilon(sigma: float, participations: int, delta: float) -> float:
    """The epsilon at ``delta`` after an example (or client) took part in ``participations`` noisy steps.

    Without subsampling amplification, which shuffled batches do not earn: a step is 1/sigma-Gaussian-DP when the
    neighbour replaces the example by one without gradient, steps compose to mu = sqrt(participations)/sigma, and
    delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu) (Dong, Roth & Su, JRSS-B 2022, corollaries 2.13, 3.3).
    By example: participations = rounds * local epochs; by client: rounds. Infinite for sigma = 0.
    """
    if sigma == 0:
        return math.inf
    mu = math.sqrt(participations) / sigma
    low, high = 0.0, mu * mu / 2 + 40 * mu + 1  # 40 standard deviations beyond the mean of the privacy loss
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _delta(middle, mu) > delta else (low, middle)
    return high


def _delta(eps: float, mu: float) -> float:
    tails = torch.tensor([mu / 2 - eps / mu, -mu / 2 - eps / mu], dtype=torch.float64)
    log_upper, log_lower = torch.special.log_ndtr(tails).tolist()
    return math.exp(log_upper) - math.exp(eps + log_lower)
