"""The three networks of MemberShield that are its own."""

from __future__ import annotations

from math import prod

from pydantic import Field
from torch import nn

from fedbench.core.contract.model import Model
from fedbench.core.contract.params import Params as Base
from fedbench.core.models.images import require_images
from fedbench.core.models.initial import INITIAL, Initial, initialise

_TABULAR = (1024, 512, 256, 128)


class _MemberShield(Model):
    """Section 6.2 of Ahmed et al., Neural Networks 2025 (docs/methods/federation.md#models): layers, and how they start."""

    class Params(Base):
        init: Initial = Field(
            "default",
            description=f"{INITIAL}torch's. MemberShield writes the first of all but membershield-cnn2, its code uses the second",
        )


class MemberShieldCNN2(_MemberShield):
    """conv5x5 (20) - ReLU - maxpool2, conv5x5 (50) - ReLU - maxpool2, Linear to 500, ReLU, Linear to the classes.

    Convolutions without padding, as in the code. 657,080 parameters for 32x32 in three channels and 10 classes. Raises
    ``UserError`` for anything but images of at least 16 x 16.
    """

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        require_images("membershield-cnn2", input_shape, 16)
        channels, height, width = input_shape
        left = [((side - 4) // 2 - 4) // 2 for side in (height, width)]
        return initialise(nn.Sequential(
            nn.Conv2d(channels, 20, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(50 * prod(left), 500), nn.ReLU(), nn.Linear(500, n_classes),
        ), self.params.init)  # fmt: skip


class MemberShieldCNN3(_MemberShield):
    """conv5x5 (128), conv3x3 (64), conv3x3 (64), each - ReLU - maxpool2; Linear 256, 64, 32 with ReLU, Linear to the classes.

    The paper leaves the padding open; every convolution keeps the size, as in the code. 1,181,672 parameters for 64x64 grey
    images and 8 classes. Raises ``UserError`` for anything but images of at least 8 x 8.
    """

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        require_images("membershield-cnn3", input_shape, 8)
        channels, height, width = input_shape
        return initialise(nn.Sequential(
            nn.Conv2d(channels, 128, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(128, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(64 * (height // 8) * (width // 8), 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(),
            nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, n_classes),
        ), self.params.init)  # fmt: skip


class MemberShieldMLP4(_MemberShield):
    """Flatten, then Linear to 1024, 512, 256, 128, each with tanh, then Linear to the classes.

    Nasr, Shokri and Houmansadr's network (CCS 2018). 1,317,348 parameters for 600 features and 100 classes.
    """

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        width = prod(input_shape)
        for wider in _TABULAR:
            layers += [nn.Linear(width, wider), nn.Tanh()]
            width = wider
        return initialise(nn.Sequential(*layers, nn.Linear(width, n_classes)), self.params.init)
