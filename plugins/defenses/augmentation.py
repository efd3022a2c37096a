"""Data sampling and data augmentation: which batches a member trains on, and how their images are changed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field

from fedbench.core import Batch, Defense, MemberContext, Params, Selection, UserError


class DataSampling(Defense):
    """Stop every local epoch after floor(p * batches) of its shuffled batches, at least one.

    ``at_zero: all`` is that code's counter, which never reaches 0 batches: a fraction too small for one batch trains on
    everything.
    Source: Zhu et al. (FedMIA, CVPR 2025), A.2.2 "data sampling", p from .1 to 1.
    """

    class Params(Params):
        fraction: float = Field(0.5, gt=0, le=1, description="p, share of an epoch's batches trained on, 0 to 1")
        at_zero: Literal["one", "all"] = Field(
            "one", description="batches trained on where the share yields none; `all`: FedMIA's released code"
        )

    def select(self, ctx: MemberContext) -> Selection | None:
        usable, p = ctx.data.trainable, self.params
        batches = math.ceil(len(usable) / ctx.federation.batch_size)
        keep = int(p.fraction * batches + 1e-9)  # 0.29 * 100 is 28.999... in floating point
        if keep == 0:
            keep = batches if p.at_zero == "all" else min(1, batches)
        return None if keep == batches else Selection(usable, batches=keep)


class DataAugmentation(Defense):
    """Crop after padding, mirror, rotate, jitter brightness and contrast, in this order, anew for every image shown.

    Defined on normalised images: what comes from outside the image is black, and black is the darkest value of that
    image's channel. Brightness scales the distance from it, contrast the distance from the channel's mean, by a factor
    uniform in 1 -+ the parameter. So every operation commutes with a normalisation (x - mean) / std by channel, and
    equals the usual one on pixels where an image holds a black pixel, except that nothing is cut off at 0 and 1,
    contrast leaves each channel its own mean, and brightness always comes before contrast. A sample's draws do not
    depend on which operations are on. Attacks measure on images as they are.
    Source: FedMIA's defaults (Zhu et al., CVPR 2025, A.2.2; the released code's operations and strengths, for 32x32
    images); Shorten & Khoshgoftaar (Journal of Big Data, 2019).
    """

    class Params(Params):
        crop: int = Field(4, ge=0, description="pixels of padding before the image is cropped to its size; 0: off")
        hflip: bool = Field(True, description="whether images are mirrored left to right with probability 1/2")
        vflip: bool = Field(True, description="whether images are mirrored upside down with probability 1/2")
        rotation: float = Field(45.0, ge=0, le=180, description="largest angle, either way, in degrees; 0: off")
        brightness: float = Field(0.25, ge=0, le=1, description="largest relative change of brightness; 0: off")
        contrast: float = Field(0.8, ge=0, le=1, description="largest relative change of contrast; 0: off")

    def transform(self, batch: Batch, ctx: MemberContext) -> Batch:
        x, p = batch.x, self.params
        if x.ndim != 4 or not x.is_floating_point():
            raise UserError(
                "data-augmentation: needs images [channels, height, width] of floating-point values, not "
                f"{list(x.shape[1:])} of {str(x.dtype).removeprefix('torch.')}"
            )
        # One row of uniform draws for each random quantity of an image, whichever operations are on.
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
    x: torch.Tensor, shift: torch.Tensor, hflip: torch.Tensor, vflip: torch.Tensor, fill: torch.Tensor
) -> torch.Tensor:
    """[B, C, H, W] cropped at ``shift`` [2, B] (rows, columns) of the padded image, then mirrored where [B] bools say so."""
    rows, columns = (torch.arange(n, device=x.device).expand(len(x), n) for n in x.shape[2:])
    rows = torch.where(vflip[:, None], rows.flip(1), rows) + shift[0, :, None]
    columns = torch.where(hflip[:, None], columns.flip(1), columns) + shift[1, :, None]
    rows, columns = torch.broadcast_tensors(rows[:, :, None], columns[:, None, :])
    return _pick(x, rows, columns, fill)


def rotate(x: torch.Tensor, angle: torch.Tensor, fill: torch.Tensor) -> torch.Tensor:
    """[B, C, H, W] turned counter-clockwise by ``angle`` [B] radians about the centre; the nearest pixel is taken."""
    down, right = (torch.arange(n, device=x.device) - (n - 1) / 2 for n in x.shape[2:])
    down, right = down[None, :, None], right[None, None, :]
    cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
    rows = (cos * down + sin * right + (x.shape[2] - 1) / 2).round().long()
    columns = (cos * right - sin * down + (x.shape[3] - 1) / 2).round().long()
    return _pick(x, rows, columns, fill)


def jitter(x: torch.Tensor, brightness: torch.Tensor, contrast: torch.Tensor, black: torch.Tensor) -> torch.Tensor:
    """[B, C, H, W] with distances from ``black``, then from each channel's mean, scaled by factors [B]."""
    brightness, contrast = brightness.view(-1, 1, 1, 1), contrast.view(-1, 1, 1, 1)
    x = torch.where(brightness == 1, x, black + brightness * (x - black))
    mean = x.mean((2, 3), keepdim=True)
    return torch.where(contrast == 1, x, mean + contrast * (x - mean))


def _pick(x: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, fill: torch.Tensor) -> torch.Tensor:
    """[B, C, H, W]: pixel (rows, columns) [B, H, W] of each image, ``fill`` [B, C, 1, 1] where that is outside."""
    batch, channels, height, width = x.shape
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    at = (rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)).view(batch, 1, -1)
    picked = x.reshape(batch, channels, -1).gather(2, at.expand(-1, channels, -1)).view_as(x)
    return torch.where(inside[:, None], picked, fill)
