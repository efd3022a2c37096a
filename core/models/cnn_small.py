"""A small convolutional network."""

from __future__ import annotations

from pydantic import Field
from torch import nn

from fedbench.core.contract.model import Model
from fedbench.core.contract.params import Params as Base
from fedbench.core.models.images import require_images


class SmallCNN(Model):
    """conv3x3 - GroupNorm - ReLU - maxpool2, twice with doubled channels, then Linear - ReLU - Linear.

    GroupNorm, not BatchNorm: batch statistics would tie samples together and leak across them.
    """

    class Params(Base):
        channels: int = Field(
            16, ge=4, multiple_of=4, description="channels of the first convolution; twice as many in the second"
        )
        hidden: int = Field(64, ge=1, description="width of the hidden layer, in units")

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        require_images("cnn-small", input_shape, 4)
        depth, height, width = input_shape
        c = self.params.channels
        return nn.Sequential(
            nn.Conv2d(depth, c, 3, padding=1), nn.GroupNorm(4, c), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(c, 2 * c, 3, padding=1), nn.GroupNorm(4, 2 * c), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(2 * c * (height // 4) * (width // 4), self.params.hidden), nn.ReLU(),
            nn.Linear(self.params.hidden, n_classes),
        )  # fmt: skip
