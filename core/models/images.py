"""What the image architectures share: the check of the input, global pooling, the residual sum."""

from __future__ import annotations

import torch
from torch import nn

from fedbench.core.contract.errors import UserError


def require_images(model: str, input_shape: tuple[int, ...], least: int) -> None:
    """Raise ``UserError`` unless ``input_shape`` is [channels, height, width] with both sides at least ``least``."""
    if len(input_shape) == 3 and min(input_shape[1:]) >= least:
        return
    smaller = "'cnn-small' (from 4 x 4 pixels) or 'mlp' (any shape)" if model != "cnn-small" else "'mlp' (any shape)"
    raise UserError(
        f"{model} needs images [channels, height >= {least}, width >= {least}], not {list(input_shape)}; "
        f"use the model {smaller}, or resize the images"
    )


class GlobalMean(nn.Module):
    """[B, C, H, W] -> [B, C]. Not ``AdaptiveAvgPool2d``, whose CUDA backward pass is not deterministic."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))


class GlobalMax(nn.Module):
    """[B, C, H, W] -> [B, C]. Not ``AdaptiveMaxPool2d``, whose CUDA backward pass is not deterministic.

    Equal maxima share the gradient, where a pooling layer gives it all to the first; after a ReLU such ties are zeros,
    which pass no gradient on, so the two agree there.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.amax((2, 3))


class Residual(nn.Module):
    """``body(x) + skip(x)``."""

    def __init__(self, body: nn.Module, skip: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.skip = skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) + self.skip(x)
