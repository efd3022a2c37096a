"""ResNet-20, the CIFAR one of the original paper."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import nn
from torch.nn.functional import pad

from fedbench.core.contract.model import Model
from fedbench.core.contract.params import Params as Base
from fedbench.core.models.images import GlobalMean, Residual, require_images

_WIDTHS = (16, 32, 64)
_BLOCKS = 3  # a stage: depth 20 = 6 n + 2 with n = 3


class ResNet20(Model):
    """3x3 stem (16), three stages of three basic blocks (16, 32, 64 channels), mean, Linear.

    He et al., CVPR 2016, section 4.2, as FedPoisonMIA trains it (docs/methods/federation.md#models): the second and third stage
    halve the image, convolutions have no bias. The mean is over the whole final map: what an average pool of 8 does for 32x32
    pixels, of 12 for 48x48, of 24 for 96x96 (FedPoisonMIA's code pools 8 and 16 there, which leaves out the map's right and
    lower edge). Torch's default initialisation.

    Shortcuts where the shape changes: ``conv`` is a strided 1x1 convolution and its norm (the paper's option B, and
    FedPoisonMIA's code), ``identity`` takes every second pixel and adds channels of zeros (option A, the published
    0.27 M). For 3 channels and 10 classes: identity 269,722 parameters; conv 272,474, which is 16*32 + 32*64 weights and
    2*(32 + 64) of norm more. GroupNorm has as many as BatchNorm.

    BatchNorm is the papers' and ties a batch's samples together in training; the models that are judged are in eval mode,
    on running statistics that are averaged with the clients' updates. FedPoisonMIA's code never leaves training mode.
    Raises ``UserError`` for anything but images of at least 8 x 8.
    """

    class Params(Base):
        norm: Literal["batch", "group"] = Field("batch", description="batch: BatchNorm, the papers'; group: GroupNorm")
        groups: Literal[1, 2, 4, 8, 16] = Field(16, description="groups of every GroupNorm; norm: batch has none")
        shortcut: Literal["conv", "identity"] = Field(
            "conv", description="where the shape changes: a strided 1x1 convolution, or every second pixel and zero channels"
        )

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        require_images("resnet20", input_shape, 8)
        layers = [*self._conv(input_shape[0], _WIDTHS[0], 3, 1), nn.ReLU(inplace=True)]
        width = _WIDTHS[0]
        for wider in _WIDTHS:
            for _ in range(_BLOCKS):
                layers += [self._block(width, wider), nn.ReLU(inplace=True)]
                width = wider
        return nn.Sequential(*layers, GlobalMean(), nn.Linear(width, n_classes))

    def _block(self, width: int, wider: int) -> Residual:
        stride = 1 if width == wider else 2
        body = [*self._conv(width, wider, 3, stride), nn.ReLU(inplace=True), *self._conv(wider, wider, 3, 1)]
        return Residual(nn.Sequential(*body), nn.Sequential(*self._shortcut(width, wider)))

    def _shortcut(self, width: int, wider: int) -> list[nn.Module]:
        if width == wider:
            return []
        return [_Subsample(wider - width)] if self.params.shortcut == "identity" else self._conv(width, wider, 1, 2)

    def _conv(self, width: int, wider: int, kernel: int, stride: int) -> list[nn.Module]:
        conv = nn.Conv2d(width, wider, kernel, stride, padding=kernel // 2, bias=False)
        norm = nn.BatchNorm2d(wider) if self.params.norm == "batch" else nn.GroupNorm(self.params.groups, wider)
        return [conv, norm]


class _Subsample(nn.Module):
    """[B, C, H, W] -> [B, C + extra, ceil(H/2), ceil(W/2)]: every second pixel, then channels of zeros."""

    def __init__(self, extra: int) -> None:
        super().__init__()
        self.extra = extra

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.extra))
