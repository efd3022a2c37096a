"""AlexNet for small images."""

from __future__ import annotations

from torch import nn

from fedbench.core.contract.model import Model
from fedbench.core.models.images import GlobalMax, require_images


class AlexNet(Model):
    """Five convolutions with ReLU, two 2x2 max-pools, global max, Linear; no norm, no dropout.

    Krizhevsky et al., NeurIPS 2012, cut to the shape FedMIA trains (docs/methods/federation.md#models): an 11x11 stem of stride
    4, then 5x5 and three 3x3 convolutions (192, 384, 256, 256 channels); torch's default initialisation. 2,495,396 parameters
    for 3 channels and 100 classes. Raises ``UserError`` for anything but images of at least 13 x 13: a smaller one is
    gone after the second pool.
    """

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        require_images("alexnet", input_shape, 13)
        return nn.Sequential(
            nn.Conv2d(input_shape[0], 64, 11, stride=4, padding=5), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(inplace=True),
            GlobalMax(), nn.Linear(256, n_classes),
        )  # fmt: skip
