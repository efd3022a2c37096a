"""VGG for small images."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from fedbench.core.contract.model import Model
from fedbench.core.contract.params import Params as Base
from fedbench.core.models.images import require_images
from fedbench.core.models.initial import INITIAL, Initial, initialise

_WIDTHS = (64, 128, 256, 512, 512)  # of the five stages; each ends with a 2x2 max-pool
_HIDDEN = 4096


class _VGG(Model):
    """3x3 convolutions with ReLU in five stages, each halved by a max-pool, then Linear 4096, 4096 with ReLU, Linear."""

    name: ClassVar[str]
    depths: ClassVar[tuple[int, ...]]

    class Params(Base):
        init: Initial = Field(
            "default", description=f"{INITIAL}He et al.'s normal, biases zero, since torch's is too small for so deep a network"
        )
        divide: Literal[1, 2, 4, 8, 16] = Field(1, description="divides every width, for a look on a CPU; 1: as published")

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        require_images(self.name, input_shape, 2 ** len(_WIDTHS))
        channels, height, width = input_shape
        layers: list[nn.Module] = []
        for wider, depth in zip(_WIDTHS, self.depths, strict=True):
            for _ in range(depth):
                layers += [nn.Conv2d(channels, wider // self.params.divide, 3, padding=1), nn.ReLU()]
                channels = wider // self.params.divide
            layers.append(nn.MaxPool2d(2))
        hidden, left = _HIDDEN // self.params.divide, (height // 2 ** len(_WIDTHS)) * (width // 2 ** len(_WIDTHS))
        layers += [nn.Flatten(), nn.Linear(channels * left, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()]
        module = nn.Sequential(*layers, nn.Linear(hidden, n_classes))
        module.apply(_initialise)
        return initialise(module, self.params.init)


class VGG16(_VGG):
    """13 convolutions (2, 2, 3, 3, 3 a stage) and two hidden layers of 4096; no norm, no dropout.

    Simonyan and Zisserman, ICLR 2015, configuration D, on images of 32x32; what MemberShield's code builds under the name
    of VGG19 (docs/methods/federation.md#models). 33,638,218 parameters for 3 channels and 10 classes, 14,714,688 of them in the
    convolutions. Raises ``UserError`` for anything but images of at least 32 x 32.
    """

    name = "vgg16"
    depths = (2, 2, 3, 3, 3)


class VGG19(_VGG):
    """16 convolutions (2, 2, 4, 4, 4 a stage) and two hidden layers of 4096; no norm, no dropout.

    Simonyan and Zisserman, ICLR 2015, configuration E, on images of 32x32; MemberShield's word for its network.
    38,947,914 parameters for 3 channels and 10 classes, 20,024,384 of them in the convolutions. Raises ``UserError`` for
    anything but images of at least 32 x 32.
    """

    name = "vgg19"
    depths = (2, 2, 4, 4, 4)


def _initialise(layer: nn.Module) -> None:
    """He et al., ICCV 2015, equation 10: each layer keeps the scale of what goes through it, with ReLU between."""
    if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(layer.bias)
