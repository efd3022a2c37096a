"""No defense, the floors of every board, and changes of a member's update before upload."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedbench.core import EVERY_TASK, Defense, MemberContext, Params, Selection
from fedbench.plugins.defenses.dp_sgd import clip_to


class NoDefense(Defense):
    """Plain FedAvg; the baseline of every delta."""


class FreeRider(Defense):
    """Every member's update is zero: nothing of its own can leak, and nothing of it is learnt.

    The floor of privacy on every board, and of the members' contribution: a defense that does no
    better than this in accuracy protects by not taking part. The server still counts the members'
    weights, as it would for honest zeros.
    """

    tasks = EVERY_TASK
    private = ()  # it uses no data

    def local_train(self, ctx: MemberContext) -> None:
        """Train nothing: the update is what was received minus what was received."""


class Placebo(Defense):
    """Plain local training with the samples in another order: what a defense that does nothing
    scores by chance.

    Its differences to the undefended federation are the noise of training, which every claimed
    difference must exceed.
    """

    tasks = EVERY_TASK
    private = ()  # an order drawn by chance

    def select(self, ctx: MemberContext) -> Selection | None:
        """Shuffle the samples that are not held out once more than the standard loop does."""
        usable = ctx.data.trainable
        return Selection(usable[ctx.randperm(len(usable))])


class GradNoise(Defense):
    """Add N(0, sigma^2 I) to each member's update, fresh every round.

    Source: CoFedMID (appendix E). The update is not clipped, so no privacy guarantee follows;
    FedMIA's code does the same to the weights under the name of client-level differential privacy.
    With clipping: ``dp-sgd``, mode ``client``.
    """

    private = ()  # the update alone

    class Params(Params):
        sigma: float = Field(
            0.01, ge=0, description="standard deviation of the noise, in units of the parameters"
        )

    def protect(self, update: Tensor, ctx: MemberContext) -> Tensor:
        return update + self.params.sigma * ctx.randn_like(update)


def tensors_of(update: Tensor, ctx: MemberContext) -> tuple[Tensor, ...]:
    """Split ``update`` [P] into the trainable tensors of the model."""
    return update.split([p.numel() for p in ctx.model.parameters() if p.requires_grad])


class GradSparse(Defense):
    """Zero the smallest entries of each member's update, tensor by tensor.

    Source: sparse updates as in Aji & Heafield (EMNLP 2017); CoFedMID (appendix E) removes .1 and
    .2, FedMIA (A.2.1) .1 to .99. The attacks see the sparse model, for losses too; FedMIA's code
    shows it to gradient attacks alone.
    """

    private = ()  # the update alone

    class Params(Params):
        rate: float = Field(
            0.2, ge=0, lt=1, description="fraction of a tensor's entries removed, 0 to 1"
        )
        min_elements: int = Field(
            1000, ge=0, description="tensors of at most this many elements stay whole"
        )

    def protect(self, update: Tensor, ctx: MemberContext) -> Tensor:
        p = self.params
        return torch.cat([sparsify(t, p.rate, p.min_elements) for t in tensors_of(update, ctx)])


def sparsify(values: Tensor, rate: float, whole: int) -> Tensor:
    """Zero the floor(rate * n) entries of smallest magnitude of [n], of equal ones the earlier.

    A tensor of at most ``whole`` entries stays as it is.
    """
    n = len(values)
    remove = int(rate * n + 1e-9)  # 0.29 * 100 is 28.999... in floating point
    if remove == 0 or n <= whole:
        return values
    magnitude = values.abs()
    threshold = magnitude.topk(remove, largest=False, sorted=False).values.max()
    below = magnitude < threshold
    # Ties at the threshold are broken by position, so that every device removes the same entries.
    ties = (magnitude == threshold).nonzero().squeeze(1)[: remove - int(below.sum())]
    return values.masked_fill(below, 0).index_fill(0, ties, 0)


Rounding = Literal["floor", "nearest", "stochastic"]


class Quantize(Defense):
    """Round each tensor of a member's update to at most 2^bits values between its least and its
    largest entry.

    ``floor``: 2^bits equal bins, an entry becomes the lower edge of its bin, as in FedMIA's
    released code; every entry moves down, half a bin on average, so the update is biased.
    ``nearest`` and ``stochastic`` use 2^bits levels evenly spaced from minimum to maximum;
    ``stochastic`` rounds up with the probability that makes it unbiased (QSGD: Alistarh et al.,
    NeurIPS 2017, section 3.1). No tensor is exempt; a constant one stays as it is. Source: Zhu et
    al. (FedMIA, CVPR 2025), A.2.1, bits 1 to 10. The attacks see the quantised model, for losses
    too; FedMIA's code shows it to gradient attacks alone.
    """

    private = ()  # the update alone

    class Params(Params):
        bits: int = Field(
            4, ge=1, le=16, description="bits per entry: at most 2^bits values in a tensor"
        )
        rounding: Rounding = Field(
            "floor", description="down to the bin's edge, to the nearest level, or unbiased"
        )

    def protect(self, update: Tensor, ctx: MemberContext) -> Tensor:
        p = self.params
        tensors = tensors_of(update, ctx)
        return torch.cat([quantize(t, p.bits, p.rounding, ctx.device_generator) for t in tensors])


def quantize(values: Tensor, bits: int, rounding: Rounding, generator: torch.Generator) -> Tensor:
    """Round [n] to at most 2^bits values; ``stochastic`` alone draws from ``generator``."""
    exact = values.double()  # in float32 an entry on a bin's edge could fall into the bin below
    low, high = exact.aminmax()
    top = 2**bits - 1
    intervals = top + 1 if rounding == "floor" else top
    step = torch.where(high > low, (high - low) / intervals, 1.0)
    level = (exact - low) / step
    if rounding == "nearest":
        level = level.round()
    else:
        if rounding == "stochastic":
            level = level + torch.rand(
                values.shape, generator=generator, device=generator.device, dtype=torch.float64
            )
        level = level.floor().clamp_max(top)  # the maximum belongs to the last bin
    return (low + level * step).to(values.dtype)


class Perturb(Defense):
    """Scale the update down to the L2 norm C, then add N(0, s^2) to every entry, fresh every round.

    ``absolute``: s = sigma, as FedMIA states its sweep (.01 to .5); ``relative``: s = sigma C, the
    noise multiplier of McMahan et al. (ICLR 2018). The papers give no C. Source: Zhu et al.
    (FedMIA, CVPR 2025), A.2.1 "client-level differential privacy".

    ``clip: none`` is FedMIA's released code: N(0, sigma^2) on the local weights and no clipping.
    Noise on the weights and noise on the update are one thing, (w + z) - w0 = (w - w0) + z; that
    code also measures losses on the noisy weights, and so do the attacks here, which only ever see
    the uploaded model w0 + update. It is then ``grad-noise``, and no privacy guarantee follows.
    """

    private = ()  # the update alone

    class Params(Params):
        clip: Annotated[float, Field(gt=0)] | Literal["none"] = Field(
            1.0, description="C, largest L2 norm of an update, or `none`: FedMIA's released code"
        )
        sigma: float = Field(
            0.1, ge=0, description="standard deviation of the noise, in the units of `scale`"
        )
        scale: Literal["absolute", "relative"] = Field(
            "absolute",
            description="`absolute`: sigma in units of the parameters; `relative`: in units of "
            "clip",
        )

        @model_validator(mode="after")
        def _consistent(self):
            if self.clip == "none" and self.scale == "relative":
                raise ValueError(
                    "scale relative is in units of clip, and clip is none: give a clip, or scale "
                    "absolute"
                )
            return self

    def protect(self, update: Tensor, ctx: MemberContext) -> Tensor:
        p = self.params
        deviation = self.params.sigma
        if p.clip != "none":
            update = clip_to(update, p.clip)
            if p.scale == "relative":
                deviation *= p.clip
        return update + deviation * ctx.randn_like(update)
