"""Residual networks for small images: ResNet18, ResNet-20 and Wide ResNet 16-4."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from fedbench.core.contract.components import Model
from fedbench.core.contract.components import Params as Base
from fedbench.core.models.sequential import require_images


class GlobalMean(nn.Module):
    """[B, C, H, W] -> [B, C]. Not ``AdaptiveAvgPool2d``: its CUDA backward pass is not
    deterministic.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))


class Residual(nn.Module):
    """``body(x) + skip(x)``."""

    def __init__(self, body: nn.Module, skip: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.skip = skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) + self.skip(x)


# --- ResNet ---------------------------------------------------------------------------------------


class _ResNet(Model):
    """3x3 stem, stages of basic blocks, mean, Linear; a stage that has another width than the one
    before halves the image.
    """

    name: ClassVar[str]
    widths: ClassVar[tuple[int, ...]]  # of the stages; the stem has the first
    blocks: ClassVar[int]  # a stage

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        require_images(self.name, input_shape, 8)
        width = self.widths[0]
        layers = [*self._conv(input_shape[0], width, 3, 1), nn.ReLU(inplace=True)]
        for wider in self.widths:
            for _ in range(self.blocks):
                layers += [self._block(width, wider), nn.ReLU(inplace=True)]
                width = wider
        return nn.Sequential(*layers, GlobalMean(), nn.Linear(width, n_classes))

    def _block(self, width: int, wider: int) -> Residual:
        stride = 1 if width == wider else 2
        body = [
            *self._conv(width, wider, 3, stride),
            nn.ReLU(inplace=True),
            *self._conv(wider, wider, 3, 1),
        ]
        skip = [] if width == wider else self._conv(width, wider, 1, 2)
        return Residual(nn.Sequential(*body), nn.Sequential(*skip))

    def _conv(self, width: int, wider: int, kernel: int, stride: int) -> list[nn.Module]:
        return [
            nn.Conv2d(width, wider, kernel, stride, padding=kernel // 2, bias=False),
            self._norm(wider),
        ]

    def _norm(self, channels: int) -> nn.Module:
        return nn.GroupNorm(self.params.groups, channels)


class ResNet18(_ResNet):
    """3x3 stem without pooling, four stages of two basic blocks (64, 128, 256, 512 channels), mean,
    Linear.

    He et al., CVPR 2016, in the shape FedMIA trains (docs/methods/federation.md#models): each stage
    but the first halves the image; GroupNorm wherever the original has BatchNorm, the 1x1 shortcut
    included; convolutions without bias; torch's default initialisation. 11,220,132 parameters for 3
    channels and 100 classes. The norm adds two parameters a channel whatever the number of groups.
    Raises ``UserError`` for anything but images of at least 8 x 8.
    """

    name = "resnet18"
    widths = (64, 128, 256, 512)
    blocks = 2

    class Params(Base):
        groups: Literal[1, 2, 4, 8, 16, 32, 64] = Field(32, description="groups of every GroupNorm")


class ResNet20(_ResNet):
    """3x3 stem (16), three stages of three basic blocks (16, 32, 64 channels), mean, Linear.

    He et al., CVPR 2016, section 4.2, as FedPoisonMIA trains it
    (docs/methods/federation.md#models): the second and third stage halve the image, convolutions
    have no bias. The mean is over the whole final map: what an average pool of 8 does for 32x32
    pixels, of 12 for 48x48, of 24 for 96x96 (FedPoisonMIA's code pools 8 and 16 there, which leaves
    out the map's right and lower edge). Torch's default initialisation. Where the shape changes,
    the shortcut is a strided 1x1 convolution and its norm (the paper's option B, and FedPoisonMIA's
    code). 272,474 parameters for 3 channels and 10 classes, with BatchNorm or GroupNorm.

    BatchNorm is the papers' and ties a batch's samples together in training; the models that are
    judged are in eval mode, on running statistics that are averaged with the clients' updates.
    FedPoisonMIA's code never leaves training mode. Raises ``UserError`` for anything but images of
    at least 8 x 8.
    """

    name, widths, blocks = "resnet20", (16, 32, 64), 3  # depth 20 = 6 n + 2 with n = 3

    class Params(Base):
        norm: Literal["batch", "group"] = Field(
            "batch", description="batch: BatchNorm, the papers'; group: GroupNorm"
        )
        groups: Literal[1, 2, 4, 8, 16] = Field(
            16, description="groups of every GroupNorm; norm: batch has none"
        )

    def _norm(self, channels: int) -> nn.Module:
        return nn.BatchNorm2d(channels) if self.params.norm == "batch" else super()._norm(channels)


# --- Wide ResNet ----------------------------------------------------------------------------------


_STEM = 16
# (16, 32, 64) four times as wide; depth 16 = 4 + 3 stages x 2 blocks x 2 convolutions
_WIDE = (64, 128, 256)
_KEPT_STD = 0.8796256610342398  # standard deviation of a standard normal cut at +-2


class WideResNet16x4(Model):
    """3x3 stem (16), three stages of two pre-activation blocks (64, 128, 256 channels), ReLU, norm,
    mean, Linear.

    Zagoruyko and Komodakis, BMVC 2016, with the changes of De et al., arXiv 2204.13650, 2022, that
    Aerni et al., CCS 2024, and CoFedMID take over (docs/methods/federation.md#models). A block is
    ReLU - norm - conv3x3 - ReLU - norm - conv3x3; the second convolution strides. Where the shape
    changes (the first block of each stage) the skip is ReLU - norm - conv1x1. Norm is GroupNorm
    with min(groups, channels) groups; convolutions have a bias. 2,751,562 parameters for 3 channels
    and 10 classes. Raises ``UserError`` for anything but images of at least 4 x 4.
    """

    class Params(Base):
        groups: Literal[1, 2, 4, 8, 16, 32, 64] = Field(
            16,
            description="groups of every GroupNorm, at most one a channel (the first block has 16 "
            "channels)",
        )

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        require_images("wrn-16-4", input_shape, 4)
        layers: list[nn.Module] = [nn.Conv2d(input_shape[0], _STEM, 3, padding=1)]
        width, strides = _STEM, (1, 2, 2)  # of the first block of each stage
        for wider, stride in zip(_WIDE, strides, strict=True):
            layers += [self._block(width, wider, stride), self._block(wider, wider, 1)]
            width = wider
        model = nn.Sequential(
            *layers, *self._before(width), GlobalMean(), nn.Linear(width, n_classes)
        )
        model.apply(_initialise)
        return model

    def _block(self, width: int, wider: int, stride: int) -> Residual:
        body = [*self._before(width), nn.Conv2d(width, wider, 3, padding=1)]
        body += [*self._before(wider), nn.Conv2d(wider, wider, 3, stride, padding=1)]
        skip = []
        if width != wider:
            skip = [*self._before(width), nn.Conv2d(width, wider, 1, stride)]
        return Residual(nn.Sequential(*body), nn.Sequential(*skip))

    def _before(self, width: int) -> list[nn.Module]:
        """Return ReLU before norm, the order of the private variant. Not in place, since the skip
        reads the same input.
        """
        return [nn.ReLU(), nn.GroupNorm(min(self.params.groups, width), width)]


def _initialise(layer: nn.Module) -> None:
    """Draw weights from a normal cut at two standard deviations, with variance 1/fan_in after the
    cut; biases are zero.

    Aerni et al. cut at the absolute value 2, ten standard deviations or more away: same variance,
    longer tails.
    """
    if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
        std = layer.weight[0].numel() ** -0.5 / _KEPT_STD
        nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
        nn.init.zeros_(layer.bias)
