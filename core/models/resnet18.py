"""ResNet18 for small images, with GroupNorm."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import nn

from fedbench.core.contract.model import Model
from fedbench.core.contract.params import Params as Base
from fedbench.core.models.images import GlobalMean, Residual, require_images

_WIDTHS = (64, 128, 256, 512)
_BLOCKS = 2  # a stage


class ResNet18(Model):
    """3x3 stem without pooling, four stages of two basic blocks (64, 128, 256, 512 channels), mean, Linear.

    He et al., CVPR 2016, in the shape FedMIA trains (docs/methods/federation.md#models): each stage but the first halves the
    image; GroupNorm wherever the original has BatchNorm, the 1x1 shortcut included; convolutions without bias; torch's
    default initialisation. 11,220,132 parameters for 3 channels and 100 classes. The norm adds two parameters a
    channel whatever the number of groups. Raises ``UserError`` for anything but images of at least 8 x 8.
    """

    class Params(Base):
        groups: Literal[1, 2, 4, 8, 16, 32, 64] = Field(32, description="groups of every GroupNorm")

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        require_images("resnet18", input_shape, 8)
        layers = [*self._conv(input_shape[0], _WIDTHS[0], 3, 1), nn.ReLU(inplace=True)]
        width = _WIDTHS[0]
        for stage, wider in enumerate(_WIDTHS):
            for block in range(_BLOCKS):
                stride = 2 if stage > 0 and block == 0 else 1
                layers += [self._block(width, wider, stride), nn.ReLU(inplace=True)]
                width = wider
        return nn.Sequential(*layers, GlobalMean(), nn.Linear(width, n_classes))

    def _block(self, width: int, wider: int, stride: int) -> Residual:
        body = [*self._conv(width, wider, 3, stride), nn.ReLU(inplace=True), *self._conv(wider, wider, 3, 1)]
        same = stride == 1 and width == wider
        return Residual(nn.Sequential(*body), nn.Sequential(*([] if same else self._conv(width, wider, 1, stride))))

    def _conv(self, width: int, wider: int, kernel: int, stride: int) -> list[nn.Module]:
        conv = nn.Conv2d(width, wider, kernel, stride, padding=kernel // 2, bias=False)
        return [conv, nn.GroupNorm(self.params.groups, wider)]
