"""Wide ResNet 16-4 as it is trained with differential privacy."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import nn

from fedbench.core.contract.model import Model
from fedbench.core.contract.params import Params as Base
from fedbench.core.models.images import GlobalMean, Residual, require_images

_STEM = 16
_WIDTHS = (64, 128, 256)  # (16, 32, 64) four times as wide
_BLOCKS = 2  # a stage: depth 16 = 4 + 3 stages x 2 blocks x 2 convolutions
_KEPT_STD = 0.8796256610342398  # standard deviation of a standard normal cut at +-2


class WideResNet16x4(Model):
    """3x3 stem (16), three stages of two pre-activation blocks (64, 128, 256 channels), ReLU, norm, mean, Linear.

    Zagoruyko and Komodakis, BMVC 2016, with the changes of De et al., arXiv 2204.13650, 2022, that Aerni et al.,
    CCS 2024, and CoFedMID take over (docs/methods/federation.md#models). A block is ReLU - norm - conv3x3 - ReLU - norm -
    conv3x3; the second convolution strides. Where the shape changes (the first block of each stage) the skip is ReLU - norm -
    conv1x1. Norm is GroupNorm with min(groups, channels) groups; convolutions have a bias. 2,751,562 parameters for
    3 channels and 10 classes. Raises ``UserError`` for anything but images of at least 4 x 4.
    """

    class Params(Base):
        groups: Literal[1, 2, 4, 8, 16, 32, 64] = Field(
            16, description="groups of every GroupNorm, at most one a channel (the first block has 16 channels)"
        )

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        require_images("wrn-16-4", input_shape, 4)
        layers: list[nn.Module] = [nn.Conv2d(input_shape[0], _STEM, 3, padding=1)]
        width = _STEM
        for stage, wider in enumerate(_WIDTHS):
            for block in range(_BLOCKS):
                layers.append(self._block(width, wider, stride=2 if stage > 0 and block == 0 else 1))
                width = wider
        model = nn.Sequential(*layers, *self._before(width), GlobalMean(), nn.Linear(width, n_classes))
        model.apply(_initialise)
        return model

    def _block(self, width: int, wider: int, stride: int) -> Residual:
        body = [*self._before(width), nn.Conv2d(width, wider, 3, padding=1)]
        body += [*self._before(wider), nn.Conv2d(wider, wider, 3, stride, padding=1)]
        same = width == wider
        skip = [] if same else [*self._before(width), nn.Conv2d(width, wider, 1, stride)]
        return Residual(nn.Sequential(*body), nn.Sequential(*skip))

    def _before(self, width: int) -> list[nn.Module]:
        """The order of the private variant: ReLU before norm. Not in place, since the skip reads the same input."""
        return [nn.ReLU(), nn.GroupNorm(min(self.params.groups, width), width)]


def _initialise(layer: nn.Module) -> None:
    """Weights from a normal cut at two standard deviations, with variance 1/fan_in after the cut; biases zero.

    Aerni et al. cut at the absolute value 2, ten standard deviations or more away: same variance, longer tails.
    """
    if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
        std = layer.weight[0].numel() ** -0.5 / _KEPT_STD
        nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
        nn.init.zeros_(layer.bias)
