"""Changes of the training samples: mixtures, augmentation, and fewer batches."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from numpy import ndarray
from numpy.random import Generator
from pydantic import Field, model_validator
from torch import Tensor

from fedbench.core import (
    EVERY_TASK,
    Batch,
    Defense,
    MemberContext,
    Params,
    Selection,
    UserError,
)
from fedbench.plugins.defenses.losses import targets


def refuse_tokens(x: Tensor, defense: str) -> None:
    """Raise ``UserError`` for inputs that cannot be mixed."""
    if not x.is_floating_point():
        raise UserError(f"{defense}: inputs of integers (tokens) cannot be mixed")


class Mixup(Defense):
    """Mix each batch with a permutation of itself: x' = l x + (1-l) x[pi], targets likewise, l ~
    Beta(alpha, alpha).

    Cross-entropy is linear in the target, so the mixed target gives l CE(y) + (1-l) CE(y[pi]).
    Source: Zhang et al. (ICLR 2018), equation 1; one l and one pi per batch as in their algorithm.
    ``inputs: unmixed`` reproduces FedMIA's code, which mixes the labels alone: at a small alpha
    about half of its batches train on randomly permuted labels.
    """

    private = ("transform",)  # an example acts in its partner's gradient too

    class Params(Params):
        alpha: float = Field(
            0.01,
            gt=0,
            description="Beta(alpha, alpha): below 1 mostly one of the pair, above 1 both",
        )
        inputs: Literal["mixed", "unmixed"] = Field(
            "mixed", description="whether inputs are mixed like labels"
        )

    def transform(self, batch: Batch, ctx: MemberContext) -> Batch:
        alpha = self.params.alpha
        x = batch.x
        keep = float(ctx.rng.beta(alpha, alpha))
        partner = ctx.randperm(len(batch.y))
        target = targets(batch, ctx.federation.n_classes, ctx.params.dtype)
        soft = keep * target + (1 - keep) * target[partner]
        if self.params.inputs == "unmixed":
            return replace(batch, soft=soft)
        refuse_tokens(x, "mixup")
        return replace(batch, x=keep * x + (1 - keep) * x[partner], soft=soft)


class InstaHide(Defense):
    """Replace each sample by m * (l_1 x_1 + ... + l_k x_k) with k of the member's samples and a
    sign mask m.

    x_1 is the sample itself, the others are distinct ones of the member's training data, every one
    used equally often. The weights l are uniform on the simplex with no weight above ``bound``,
    labels are mixed with them, and m is uniform in {-1, +1} for every input value. The whole client
    is encoded anew in every local epoch. Test and audit samples reach the model as they are, which
    costs accuracy: the model has learnt on masked inputs. Source: Huang et al. (ICML 2020), section
    3 and algorithm 1, inside-dataset; FedMIA's code has k = 3, bound .65. The encoding is no
    encryption: Carlini et al. (IEEE S&P 2021) recover images from it.
    """

    private = ("transform",)  # an example acts in the gradients of its mixtures

    class Params(Params):
        k: int = Field(
            3,
            ge=1,
            le=8,
            description="samples in a mixture, the encoded one included; 1: the mask alone",
        )
        bound: float = Field(
            0.65, gt=0, le=1, description="largest weight of one sample in a mixture (k above 1)"
        )

        @model_validator(mode="after")
        def _feasible(self):
            if self.k > 1 and self.bound * self.k <= 1:
                raise ValueError(
                    f"{self.k} weights of at most {self.bound:g} cannot sum to 1: raise bound "
                    "above 1/k"
                )
            return self

    def transform(self, batch: Batch, ctx: MemberContext) -> Batch:
        refuse_tokens(batch.x, "instahide")
        partners, weights = self._plan(ctx)
        x, soft = self._sources(batch, partners[batch.index], ctx)
        w = weights[batch.index].to(x).T.contiguous()  # [k, B]
        mixed = (w.view(*w.shape, *[1] * (x.ndim - 2)) * x).sum(0)
        mask = 2 * torch.randint(0, 2, mixed.shape, generator=ctx.generator, dtype=torch.int8) - 1
        return replace(batch, x=mixed * mask.to(x), soft=(w[..., None] * soft).sum(0))

    def _sources(self, batch: Batch, partners: Tensor, ctx: MemberContext) -> tuple[Tensor, Tensor]:
        """Inputs [k, B, ...] and targets [k, B, C] that are mixed.

        The first are the batch as earlier transformations left it, then come its ``partners``.
        """
        classes = ctx.federation.n_classes
        dtype = ctx.params.dtype
        soft_of_client = targets(ctx.data, classes, dtype)
        inputs = [batch.x]
        soft = [targets(batch, classes, dtype)]
        for index in partners.T:
            inputs.append(ctx.normalise(ctx.data.x[index]))
            soft.append(soft_of_client[index])
        return torch.stack(inputs), torch.stack(soft)

    def _plan(self, ctx: MemberContext) -> tuple[Tensor, Tensor]:
        """Partners and weights of all samples in this local epoch."""
        epoch, plan = ctx.memory.get("plan", (None, None))
        if epoch == ctx.epoch:
            return plan
        p = self.params
        y = ctx.data.y
        usable = ctx.data.trainable.cpu().numpy()
        if len(usable) < p.k:
            raise UserError(
                f"instahide: client {ctx.client} has {len(usable)} samples and cannot mix {p.k}; "
                "lower k"
            )
        partners = draw_partners(len(y), usable, p.k, ctx.rng)
        weights = draw_weights(len(y), p.k, p.bound, ctx.rng)
        plan = torch.from_numpy(partners).to(y.device), torch.from_numpy(weights).to(y.device)
        ctx.memory["plan"] = ctx.epoch, plan
        return plan


def draw_partners(n: int, usable: ndarray, k: int, rng: Generator) -> ndarray:
    """Draw k - 1 partners [n, k - 1] among ``usable`` [m] for each of them.

    Distinct partners, never the sample itself, each sample being partner k - 1 times: distinct
    shifts of a ring.
    """
    ring = rng.permutation(usable)
    place = np.zeros(n, np.int64)
    place[ring] = np.arange(len(ring))
    shifts = np.zeros(0, np.int64)
    if k > 1:
        shifts = 1 + rng.choice(len(ring) - 1, k - 1, replace=False)
    return ring[(place[:, None] + shifts) % len(ring)]


def draw_weights(n: int, k: int, bound: float, rng: Generator) -> ndarray:
    """Draw weights [n, k] float32, each row uniform on the simplex, no entry above ``bound``.

    By rejection, from the smaller of two simplices that hold that set: all weights, or bound minus
    those of a simplex of side k * bound - 1 (entries at most ``bound``, some perhaps negative).
    """
    if k == 1:
        return np.ones((n, 1), np.float32)
    side = k * bound - 1

    def draw(rows: int) -> ndarray:
        even = rng.dirichlet(np.ones(k), rows)
        return bound - side * even if side < 1 else even

    weights = draw(n)
    while len(bad := np.flatnonzero(((weights > bound) | (weights < 0)).any(1))):
        weights[bad] = draw(len(bad))
    return weights.astype(np.float32)


class DataSampling(Defense):
    """Stop every local epoch after floor(p * batches) of its shuffled batches, at least one.

    ``at_zero: all`` is that code's counter, which never reaches 0 batches: a fraction too small for
    one batch trains on everything. Source: Zhu et al. (FedMIA, CVPR 2025), A.2.2 "data sampling", p
    from .1 to 1.
    """

    tasks = EVERY_TASK
    private = ()  # the number of batches follows from that of samples

    class Params(Params):
        fraction: float = Field(
            0.5, gt=0, le=1, description="p, share of an epoch's batches trained on, 0 to 1"
        )
        at_zero: Literal["one", "all"] = Field(
            "one",
            description="batches trained on where the share yields none; `all`: FedMIA's released "
            "code",
        )

    def select(self, ctx: MemberContext) -> Selection | None:
        usable = ctx.data.trainable
        p = self.params
        batches = math.ceil(len(usable) / ctx.federation.batch_size)
        keep = int(p.fraction * batches + 1e-9)  # 0.29 * 100 is 28.999... in floating point
        if keep == 0:
            keep = batches if p.at_zero == "all" else 1
        return None if keep >= batches else Selection(usable, batches=keep)


class DataAugmentation(Defense):
    """Crop after padding, mirror, rotate, jitter brightness and contrast, in this order, anew each
    time that an image is trained on.

    Defined on normalised images: what comes from outside the image is black, and black is the
    darkest value of that image's channel. Brightness scales the distance from it, contrast the
    distance from the channel's mean, by a factor uniform in 1 -+ the parameter. So every operation
    commutes with a normalisation (x - mean) / std by channel, and equals the usual one on pixels
    where an image holds a black pixel, except that nothing is cut off at 0 and 1, contrast leaves
    each channel its own mean, and brightness always comes before contrast. A sample's draws do not
    depend on which operations are on. Attacks measure on images as they are. Source: FedMIA's
    defaults (Zhu et al., CVPR 2025, A.2.2; the released code's operations and strengths, for 32x32
    images); Shorten & Khoshgoftaar (Journal of Big Data, 2019).
    """

    private = ()  # each image by itself

    class Params(Params):
        crop: int = Field(
            4, ge=0, description="pixels of padding before the image is cropped to its size; 0: off"
        )
        hflip: bool = Field(
            True, description="whether images are mirrored left to right with probability 1/2"
        )
        vflip: bool = Field(
            True, description="whether images are mirrored upside down with probability 1/2"
        )
        rotation: float = Field(
            45.0, ge=0, le=180, description="largest angle, either way, in degrees; 0: off"
        )
        brightness: float = Field(
            0.25, ge=0, le=1, description="largest relative change of brightness; 0: off"
        )
        contrast: float = Field(
            0.8, ge=0, le=1, description="largest relative change of contrast; 0: off"
        )

    def transform(self, batch: Batch, ctx: MemberContext) -> Batch:
        x = batch.x
        if x.ndim != 4 or not x.is_floating_point():
            dtype = str(x.dtype).removeprefix("torch.")
            raise UserError(
                "data-augmentation: needs images [channels, height, width] of floating-point "
                f"values, not {list(x.shape[1:])} of {dtype}"
            )
        # a row of uniform draws for each random quantity of an image, whichever operations are on
        u = torch.rand(7, len(x), generator=ctx.generator).to(x.device)
        return replace(batch, x=self._augmented(x, u))

    def _augmented(self, x: Tensor, u: Tensor) -> Tensor:
        """Augment images [B, C, H, W], given uniform draws [7, B]."""
        p = self.params
        black = x.amin((2, 3), keepdim=True)
        shift = (u[:2] * (2 * p.crop + 1)).long() - p.crop
        x = shift_and_flip(x, shift, (u[2] < 0.5) & p.hflip, (u[3] < 0.5) & p.vflip, black)
        angle, brightness, contrast = 2 * u[4:] - 1
        if p.rotation:
            x = rotate(x, math.radians(p.rotation) * angle, black)
        brightness = 1 + p.brightness * brightness
        contrast = 1 + p.contrast * contrast
        return jitter(x, brightness.to(x), contrast.to(x), black)


def shift_and_flip(
    x: Tensor,
    shift: Tensor,
    hflip: Tensor,
    vflip: Tensor,
    fill: Tensor,
) -> Tensor:
    """Crop [B, C, H, W] at ``shift`` [2, B] (rows, columns) of the padded images, then mirror.

    ``hflip`` and ``vflip``: [B] bool, which images are mirrored; ``fill``: outside of the image.
    """
    rows = _positions(x.shape[2], vflip, shift[0])[:, :, None]
    columns = _positions(x.shape[3], hflip, shift[1])[:, None, :]
    return _pick(x, rows, columns, fill)


def _positions(n: int, flip: Tensor, shift: Tensor) -> Tensor:
    """Source [B, n] of each of ``n`` places along an axis."""
    place = torch.arange(n, device=shift.device)
    return torch.where(flip[:, None], place.flip(0), place) + shift[:, None]


def rotate(x: Tensor, angle: Tensor, fill: Tensor) -> Tensor:
    """Turn [B, C, H, W] counter-clockwise by ``angle`` [B] radians about the centre, to the nearest
    pixel.
    """
    height, width = x.shape[2:]
    middle_row = (height - 1) / 2
    middle_column = (width - 1) / 2
    down = torch.arange(height, device=x.device)[:, None] - middle_row
    right = torch.arange(width, device=x.device) - middle_column
    cos = angle.cos()[:, None, None]
    sin = angle.sin()[:, None, None]
    rows = (cos * down + sin * right + middle_row).round().long()
    columns = (cos * right - sin * down + middle_column).round().long()
    return _pick(x, rows, columns, fill)


def jitter(x: Tensor, brightness: Tensor, contrast: Tensor, black: Tensor) -> Tensor:
    """Scale the distances of [B, C, H, W] from ``black``, then from each channel's mean, by factors
    [B].
    """
    brightness = brightness.view(-1, 1, 1, 1)
    contrast = contrast.view(-1, 1, 1, 1)
    x = torch.where(brightness == 1, x, black + brightness * (x - black))
    mean = x.mean((2, 3), keepdim=True)
    return torch.where(contrast == 1, x, mean + contrast * (x - mean))


def _pick(x: Tensor, rows: Tensor, columns: Tensor, fill: Tensor) -> Tensor:
    """Pick pixel (rows, columns) [B, H, W] of each image, ``fill`` where that is outside."""
    channels, height, width = x.shape[1:]
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    index = rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)
    index = index.flatten(1)[:, None].expand(-1, channels, -1)
    picked = x.flatten(2).gather(2, index).view_as(x)
    return torch.where(inside[:, None], picked, fill)
