"""Changes of the training samples: mixtures, augmentation, and fewer batches."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.functional import one_hot

from fedbench.core import Batch, Defense, MemberContext, Params, Selection, UserError


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
        keep = float(ctx.rng.beta(self.params.alpha, self.params.alpha))
        partner = ctx.randperm(len(batch.y))
        target = batch.soft
        if target is None:
            target = one_hot(batch.y, ctx.federation.n_classes).to(ctx.params.dtype)
        soft = keep * target + (1 - keep) * target[partner]
        if self.params.inputs == "unmixed":
            return replace(batch, soft=soft)
        if not batch.x.is_floating_point():
            raise UserError("mixup: inputs of integers (tokens) cannot be mixed")
        return replace(batch, x=keep * batch.x + (1 - keep) * batch.x[partner], soft=soft)


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
        if not batch.x.is_floating_point():
            raise UserError("instahide: inputs of integers (tokens) cannot be mixed")
        partners, weights = (a[batch.index] for a in self._plan(ctx))
        weights = weights.to(batch.x)
        data, classes = ctx.data, ctx.federation.n_classes
        # as earlier transformations left it
        each = [(batch.x, _target(batch.y, batch.soft, classes))]
        for o in partners.T:
            soft = None if data.soft is None else data.soft[o]
            each.append((ctx.normalise(data.x[o]), _target(data.y[o], soft, classes)))
        x = torch.stack(
            [_rows(weights[:, j], part) * part for j, (part, _) in enumerate(each)]
        ).sum(0)
        target = torch.stack([weights[:, j, None] * part for j, (_, part) in enumerate(each)]).sum(
            0
        )
        mask = 2 * torch.randint(0, 2, batch.x.shape, generator=ctx.generator, dtype=torch.int8) - 1
        return replace(batch, x=x * mask.to(batch.x), soft=target)

    def _plan(self, ctx: MemberContext) -> tuple[Tensor, Tensor]:
        """Which samples are mixed, and how much of each, in this local epoch."""
        epoch, plan = ctx.memory.get("plan", (None, None))
        if epoch != ctx.epoch:
            usable = ctx.data.trainable.cpu().numpy()
            if len(usable) < self.params.k:
                raise UserError(
                    f"instahide: client {ctx.client} has {len(usable)} samples and cannot mix "
                    f"{self.params.k}; lower k"
                )
            drawn = draw_plan(len(ctx.data.y), usable, self.params.k, self.params.bound, ctx.rng)
            plan = tuple(torch.from_numpy(a).to(ctx.data.y.device) for a in drawn)
            ctx.memory["plan"] = ctx.epoch, plan
        return plan


def draw_plan(
    n: int, usable: np.ndarray, k: int, bound: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """[n, k - 1] partners and [n, k] weights of every sample of ``usable`` [m].

    Distinct partners, never the sample itself, each sample being partner k - 1 times: distinct
    shifts of a ring.
    """
    ring = rng.permutation(usable)
    place = np.zeros(n, np.int64)
    place[ring] = np.arange(len(ring))
    shifts = 1 + rng.choice(len(ring) - 1, k - 1, replace=False) if k > 1 else np.zeros(0, np.int64)
    weights = np.ones((n, 1)) if k == 1 else bounded_weights(n, k, bound, rng)
    return ring[(place[:, None] + shifts) % len(ring)], weights.astype(np.float32)


def bounded_weights(n: int, k: int, bound: float, rng: np.random.Generator) -> np.ndarray:
    """[n, k] float64, each row uniform on the simplex with no entry above ``bound`` (> 1/k).

    By rejection, from the smaller of two simplices that hold that set: all weights, or bound minus
    those of a simplex of side k * bound - 1 (entries at most ``bound``, some perhaps negative).
    """
    side = k * bound - 1

    def draw(rows: int) -> np.ndarray:
        even = rng.dirichlet(np.ones(k), rows)
        return bound - side * even if side < 1 else even

    weights = draw(n)
    while len(bad := np.flatnonzero(((weights > bound) | (weights < 0)).any(1))):
        weights[bad] = draw(len(bad))
    return weights


def _target(y: Tensor, soft: Tensor | None, classes: int) -> Tensor:
    """[B, C] target probabilities."""
    return one_hot(y, classes).float() if soft is None else soft


def _rows(weights: Tensor, like: Tensor) -> Tensor:
    """[B] as a column that scales the samples of ``like`` [B, ...]."""
    return weights.view(-1, *[1] * (like.ndim - 1))


class DataSampling(Defense):
    """Stop every local epoch after floor(p * batches) of its shuffled batches, at least one.

    ``at_zero: all`` is that code's counter, which never reaches 0 batches: a fraction too small for
    one batch trains on everything. Source: Zhu et al. (FedMIA, CVPR 2025), A.2.2 "data sampling", p
    from .1 to 1.
    """

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
        usable, p = ctx.data.trainable, self.params
        batches = math.ceil(len(usable) / ctx.federation.batch_size)
        keep = int(p.fraction * batches + 1e-9)  # 0.29 * 100 is 28.999... in floating point
        if keep == 0:
            keep = batches if p.at_zero == "all" else min(1, batches)
        return None if keep == batches else Selection(usable, batches=keep)


class DataAugmentation(Defense):
    """Crop after padding, mirror, rotate, jitter brightness and contrast, in this order, anew for
    every image shown.

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
        x, p = batch.x, self.params
        if x.ndim != 4 or not x.is_floating_point():
            raise UserError(
                "data-augmentation: needs images [channels, height, width] of floating-point "
                "values, not "
                f"{list(x.shape[1:])} of {str(x.dtype).removeprefix('torch.')}"
            )
        # One row of uniform draws for each random quantity of an image, whichever operations are
        # on.
        u = torch.rand(7, len(x), generator=ctx.generator).to(x.device)
        black = x.amin((2, 3), keepdim=True)
        shift = (u[:2] * (2 * p.crop + 1)).long() - p.crop
        x = shift_and_flip(x, shift, (u[2] < 0.5) & p.hflip, (u[3] < 0.5) & p.vflip, black)
        if p.rotation:
            x = rotate(x, math.radians(p.rotation) * (2 * u[4] - 1), black)
        brightness = 1 + p.brightness * (2 * u[5] - 1)
        contrast = 1 + p.contrast * (2 * u[6] - 1)
        return replace(batch, x=jitter(x, brightness.to(x), contrast.to(x), black))


def shift_and_flip(
    x: Tensor,
    shift: Tensor,
    hflip: Tensor,
    vflip: Tensor,
    fill: Tensor,
) -> Tensor:
    """[B, C, H, W] cropped at ``shift`` [2, B] (rows, columns) of the padded image, then mirrored
    where [B] bools say so.
    """
    rows, columns = (torch.arange(n, device=x.device).expand(len(x), n) for n in x.shape[2:])
    rows = torch.where(vflip[:, None], rows.flip(1), rows) + shift[0, :, None]
    columns = torch.where(hflip[:, None], columns.flip(1), columns) + shift[1, :, None]
    rows, columns = torch.broadcast_tensors(rows[:, :, None], columns[:, None, :])
    return _pick(x, rows, columns, fill)


def rotate(x: Tensor, angle: Tensor, fill: Tensor) -> Tensor:
    """[B, C, H, W] turned counter-clockwise by ``angle`` [B] radians about the centre; the nearest
    pixel is taken.
    """
    down, right = (torch.arange(n, device=x.device) - (n - 1) / 2 for n in x.shape[2:])
    down, right = down[None, :, None], right[None, None, :]
    cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
    rows = (cos * down + sin * right + (x.shape[2] - 1) / 2).round().long()
    columns = (cos * right - sin * down + (x.shape[3] - 1) / 2).round().long()
    return _pick(x, rows, columns, fill)


def jitter(x: Tensor, brightness: Tensor, contrast: Tensor, black: Tensor) -> Tensor:
    """[B, C, H, W] with distances from ``black``, then from each channel's mean, scaled by factors
    [B].
    """
    brightness, contrast = brightness.view(-1, 1, 1, 1), contrast.view(-1, 1, 1, 1)
    x = torch.where(brightness == 1, x, black + brightness * (x - black))
    mean = x.mean((2, 3), keepdim=True)
    return torch.where(contrast == 1, x, mean + contrast * (x - mean))


def _pick(x: Tensor, rows: Tensor, columns: Tensor, fill: Tensor) -> Tensor:
    """[B, C, H, W]: pixel (rows, columns) [B, H, W] of each image, ``fill`` [B, C, 1, 1] where that
    is outside.
    """
    batch, channels, height, width = x.shape
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    at = (rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)).view(batch, 1, -1)
    picked = x.reshape(batch, channels, -1).gather(2, at.expand(-1, channels, -1)).view_as(x)
    return torch.where(inside[:, None], picked, fill)
