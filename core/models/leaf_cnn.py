"""The convolutional network of LEAF's FEMNIST task."""

from __future__ import annotations

from torch import nn

from fedbench.core.contract.model import Model
from fedbench.core.models.images import require_images


class LeafCNN(Model):
    """conv5x5 (32) - ReLU - maxpool2, conv5x5 (64) - ReLU - maxpool2, Linear to 2048, ReLU, Linear to the classes.

    LEAF (Caldas et al., arXiv:1812.01097) and so IFCA on FEMNIST (docs/methods/federation.md#models); padding keeps the size,
    weights are torch's default. 6,603,710 parameters for 28x28 grey images and 62 classes, most in the first Linear.
    """

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        require_images("leaf-cnn", input_shape, 4)
        channels, height, width = input_shape
        return nn.Sequential(
            nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(64 * (height // 4) * (width // 4), 2048), nn.ReLU(), nn.Linear(2048, n_classes),
        )  # fmt: skip
