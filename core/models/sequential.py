"""Architectures without skips: fully connected and convolutional networks."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, PositiveInt
from torch import nn

from fedbench.core.contract.components import Model
from fedbench.core.contract.components import Params as Base
from fedbench.core.contract.errors import UserError


def require_images(model: str, input_shape: tuple[int, ...], least: int) -> None:
    """Raise ``UserError`` unless ``input_shape`` is [channels, height, width] with both sides at
    least ``least``.
    """
    if len(input_shape) == 3 and min(input_shape[1:]) >= least:
        return
    smaller = "'mlp' (any shape)"
    if model != "cnn-small":
        smaller = f"'cnn-small' (from 4 x 4 pixels) or {smaller}"
    raise UserError(
        f"{model} needs images [channels, height >= {least}, width >= {least}], not "
        f"{list(input_shape)}; use the model {smaller}, or resize the images"
    )


class GlobalMax(nn.Module):
    """[B, C, H, W] -> [B, C]. Not ``AdaptiveMaxPool2d``: its CUDA backward pass is not
    deterministic.

    Equal maxima share the gradient, where a pooling layer gives it all to the first; after a ReLU
    such ties are zeros, which pass no gradient on, so the two agree there.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.amax((2, 3))


# --- layers ---------------------------------------------------------------------------------------


def dense(*widths: int, activation: type[nn.Module] = nn.ReLU) -> list[nn.Module]:
    """Return linear layers from each width to the next, with the activation between them."""
    layers = []
    for width, wider in pairwise(widths):
        layers += [nn.Linear(width, wider), activation()]
    return layers[:-1]


def convolution(*args: Any, pool: bool = True, **kwargs: Any) -> list[nn.Module]:
    """Return a convolution, ReLU and, unless ``pool`` is False, a 2x2 max-pool."""
    layers = [nn.Conv2d(*args, **kwargs), nn.ReLU()]
    if pool:
        layers.append(nn.MaxPool2d(2))
    return layers


Initial = Literal["default", "normal-0.01", "glorot"]
INITIAL = (
    "initial weights. normal-0.01: all of them N(0, 0.01^2); glorot: Glorot and Bengio's uniform, "
    "biases zero; default: "
)


def initialise(module: nn.Module, initial: Initial) -> nn.Module:
    """Draw the weights and biases of convolutions and linear layers anew, or leave them (default).

    Returns:
        the module itself.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
            if initial == "normal-0.01":
                nn.init.normal_(layer.weight, std=0.01)
                nn.init.normal_(layer.bias, std=0.01)
            elif initial == "glorot":
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
    return module


# --- fully connected ------------------------------------------------------------------------------


class MLP(Model):
    """Flatten, then Linear + ReLU per hidden width, then Linear to the classes."""

    class Params(Base):
        hidden: tuple[PositiveInt, ...] = Field(
            (256, 128), description="widths of the hidden layers, in units"
        )

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), *dense(prod(input_shape), *self.params.hidden, n_classes)
        )


class MLP512x128(Model):
    """Flatten, Linear to 512, ReLU, Linear to 128, ReLU, Linear to the classes; torch's default
    initialisation.

    Trained by FedPoisonMIA's released code on Texas100, Purchase100 and Location30
    (docs/methods/federation.md#models); its text says "fully connected models" (Appendix E).
    3,237,604 parameters for Texas100.
    """

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        return MLP(hidden=(512, 128)).build(input_shape, n_classes)


# --- convolutional --------------------------------------------------------------------------------


class SmallCNN(Model):
    """conv3x3 - GroupNorm - ReLU - maxpool2, twice with doubled channels, then Linear - ReLU -
    Linear.

    GroupNorm, not BatchNorm: batch statistics would tie samples together and leak across them.
    """

    class Params(Base):
        channels: int = Field(
            16,
            ge=4,
            multiple_of=4,
            description="channels of the first convolution; twice as many in the second",
        )
        hidden: int = Field(64, ge=1, description="width of the hidden layer, in units")

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        require_images("cnn-small", input_shape, 4)
        channels, height, width = input_shape
        layers = []
        for wider in (self.params.channels, 2 * self.params.channels):
            conv = nn.Conv2d(channels, wider, 3, padding=1)
            layers += [conv, nn.GroupNorm(4, wider), nn.ReLU(), nn.MaxPool2d(2)]
            channels = wider
        features = channels * (height // 4) * (width // 4)
        return nn.Sequential(*layers, nn.Flatten(), *dense(features, self.params.hidden, n_classes))


class LeafCNN(Model):
    """conv5x5 (32) - ReLU - maxpool2, conv5x5 (64) - ReLU - maxpool2, Linear to 2048, ReLU, Linear
    to the classes.

    LEAF (Caldas et al., arXiv:1812.01097) and so IFCA on FEMNIST
    (docs/methods/federation.md#models); padding keeps the size, weights are torch's default.
    6,603,710 parameters for 28x28 grey images and 62 classes, most in the first Linear.
    """

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        require_images("leaf-cnn", input_shape, 4)
        channels, height, width = input_shape
        return nn.Sequential(
            *convolution(channels, 32, 5, padding=2),
            *convolution(32, 64, 5, padding=2),
            nn.Flatten(),
            *dense(64 * (height // 4) * (width // 4), 2048, n_classes),
        )


class AlexNet(Model):
    """Five convolutions with ReLU, two 2x2 max-pools, global max, Linear; no norm, no dropout.

    Krizhevsky et al., NeurIPS 2012, cut to the shape FedMIA trains
    (docs/methods/federation.md#models): an 11x11 stem of stride 4, then 5x5 and three 3x3
    convolutions (192, 384, 256, 256 channels); torch's default initialisation. 2,495,396 parameters
    for 3 channels and 100 classes. Raises ``UserError`` for anything but images of at least 13 x
    13: a smaller one is gone after the second pool.
    """

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        require_images("alexnet", input_shape, 13)
        return nn.Sequential(
            *convolution(input_shape[0], 64, 11, stride=4, padding=5),
            *convolution(64, 192, 5, padding=2),
            *convolution(192, 384, 3, padding=1, pool=False),
            *convolution(384, 256, 3, padding=1, pool=False),
            *convolution(256, 256, 3, padding=1, pool=False),
            GlobalMax(),
            nn.Linear(256, n_classes),
        )


class _MemberShield(Model):
    """Networks of section 6.2 of Ahmed et al., Neural Networks 2025
    (docs/methods/federation.md#models).
    """

    class Params(Base):
        init: Initial = Field(
            "default",
            description=f"{INITIAL}torch's. MemberShield writes the first of all but "
            "membershield-cnn2, its code uses the second",
        )


class MemberShieldCNN2(_MemberShield):
    """conv5x5 (20) - ReLU - maxpool2, conv5x5 (50) - ReLU - maxpool2, Linear to 500, ReLU, Linear
    to the classes.

    Convolutions without padding, as in the code. 657,080 parameters for 32x32 in three channels and
    10 classes. Raises ``UserError`` for anything but images of at least 16 x 16.
    """

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        require_images("membershield-cnn2", input_shape, 16)
        channels, *sides = input_shape
        positions = prod(((side - 4) // 2 - 4) // 2 for side in sides)
        module = nn.Sequential(
            *convolution(channels, 20, 5),
            *convolution(20, 50, 5),
            nn.Flatten(),
            *dense(50 * positions, 500, n_classes),
        )
        return initialise(module, self.params.init)


class MemberShieldCNN3(_MemberShield):
    """conv5x5 (128), conv3x3 (64), conv3x3 (64), each - ReLU - maxpool2; Linear 256, 64, 32 with
    ReLU, Linear to the classes.

    The paper leaves the padding open; every convolution keeps the size, as in the code. 1,181,672
    parameters for 64x64 grey images and 8 classes. Raises ``UserError`` for anything but images of
    at least 8 x 8.
    """

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        require_images("membershield-cnn3", input_shape, 8)
        channels, height, width = input_shape
        module = nn.Sequential(
            *convolution(channels, 128, 5, padding=2),
            *convolution(128, 64, 3, padding=1),
            *convolution(64, 64, 3, padding=1),
            nn.Flatten(),
            *dense(64 * (height // 8) * (width // 8), 256, 64, 32, n_classes),
        )
        return initialise(module, self.params.init)


class MemberShieldMLP4(_MemberShield):
    """Flatten, then Linear to 1024, 512, 256, 128, each with tanh, then Linear to the classes.

    Nasr, Shokri and Houmansadr's network (CCS 2018). 1,317,348 parameters for 600 features and 100
    classes.
    """

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        layers = dense(prod(input_shape), 1024, 512, 256, 128, n_classes, activation=nn.Tanh)
        return initialise(nn.Sequential(nn.Flatten(), *layers), self.params.init)


_VGG_WIDTHS = (64, 128, 256, 512, 512)  # of the five stages; each ends with a 2x2 max-pool
_VGG_HIDDEN = 4096


class _VGG(Model):
    """3x3 convolutions with ReLU in five stages, each halved by a max-pool, then Linear 4096, 4096
    with ReLU, Linear.
    """

    name: ClassVar[str]
    depths: ClassVar[tuple[int, ...]]

    class Params(Base):
        init: Initial = Field(
            "default",
            description=f"{INITIAL}He et al.'s normal, biases zero, since torch's is too small for "
            "so deep a network",
        )
        divide: Literal[1, 2, 4, 8, 16] = Field(
            1, description="divides every width, for a look on a CPU; 1: as published"
        )

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        divide = self.params.divide
        shrinks = 2 ** len(_VGG_WIDTHS)
        require_images(self.name, input_shape, shrinks)
        channels, height, width = input_shape
        layers = []
        for wider, depth in zip(_VGG_WIDTHS, self.depths, strict=True):
            for remaining in reversed(range(depth)):
                layers += convolution(channels, wider // divide, 3, padding=1, pool=remaining == 0)
                channels = wider // divide
        features = channels * (height // shrinks) * (width // shrinks)
        hidden = _VGG_HIDDEN // divide
        module = nn.Sequential(*layers, nn.Flatten(), *dense(features, hidden, hidden, n_classes))
        module.apply(_initialise)
        return initialise(module, self.params.init)


class VGG16(_VGG):
    """13 convolutions (2, 2, 3, 3, 3 a stage) and two hidden layers of 4096; no norm, no dropout.

    Simonyan and Zisserman, ICLR 2015, configuration D, on images of 32x32; what MemberShield's code
    builds under the name of VGG19 (docs/methods/federation.md#models). 33,638,218 parameters for 3
    channels and 10 classes, 14,714,688 of them in the convolutions. Raises ``UserError`` for
    anything but images of at least 32 x 32.
    """

    name = "vgg16"
    depths = (2, 2, 3, 3, 3)


class VGG19(_VGG):
    """16 convolutions (2, 2, 4, 4, 4 a stage) and two hidden layers of 4096; no norm, no dropout.

    Simonyan and Zisserman, ICLR 2015, configuration E, on images of 32x32; MemberShield's word for
    its network. 38,947,914 parameters for 3 channels and 10 classes, 20,024,384 of them in the
    convolutions. Raises ``UserError`` for anything but images of at least 32 x 32.
    """

    name = "vgg19"
    depths = (2, 2, 4, 4, 4)


def _initialise(layer: nn.Module) -> None:
    """Draw weights by He et al., ICCV 2015, equation 10: each layer keeps the scale of its input,
    with ReLU between.
    """
    if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(layer.bias)
