"""Classification architectures of torchvision, by name."""

from __future__ import annotations

from math import gcd
from typing import Any, Literal

from pydantic import Field, field_validator
from torch import nn
from torchvision import models

from fedbench.core.contract.components import Model
from fedbench.core.contract.components import Params as Base
from fedbench.core.contract.errors import UserError
from fedbench.core.models.sequential import require_images
from fedbench.core.words import by_nearness

ARCHITECTURES = models.list_models(module=models)


class TorchvisionModel(Model):
    """Any classification architecture of torchvision, with its initial weights, untrained.

    A first convolution that is replaced (``small_images``, or images that are not in colour) has
    torch's default initialisation. Auxiliary heads are left out; dropout and stochastic depth stay.
    BatchNorm ties a batch's samples together in training: per-sample gradients need ``norm:
    group``. Vision transformers are made for the size of the data set's images.

    Raises ``UserError`` for anything but images of at least 8 x 8, and where the architecture does
    not fit them.
    """

    class Params(Base):
        architecture: str = Field(
            "resnet18",
            description="torchvision's name, such as resnet18, densenet121, mobilenet_v3_small",
        )
        norm: Literal["batch", "group"] = Field(
            "batch", description="batch: as published; group: GroupNorm in place of BatchNorm"
        )
        groups: int = Field(
            32,
            ge=1,
            description="groups of a GroupNorm: the largest divisor of this number and of the "
            "channels; norm: batch has none",
        )
        small_images: bool = Field(
            False,
            description="for images of about 32 x 32: the first convolution is 3x3 without stride, "
            "and a max-pool right after it is left out",
        )

        @field_validator("architecture")
        @classmethod
        def _is_available(cls, name: str) -> str:
            if name not in ARCHITECTURES:
                raise ValueError(
                    f"torchvision has no classification architecture '{name}'; it has "
                    f"{', '.join(by_nearness(name, ARCHITECTURES))}"
                )
            return name

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        p = self.params
        require_images("torchvision", input_shape, 8)
        try:
            options = _options(p.architecture, input_shape)
            module = models.get_model(p.architecture, num_classes=n_classes, **options)
        except (AssertionError, ValueError) as error:
            raise UserError(
                f"torchvision's {p.architecture} does not fit images {list(input_shape)}: {error}; "
                "resize them, or use another architecture"
            ) from error
        self._change_stem(module, input_shape[0])
        if p.norm == "group":
            _use_groupnorm(module, p.groups)
        return module

    def _change_stem(self, module: nn.Module, channels: int) -> None:
        """Replace the first convolution, and drop a max-pool right after it, where necessary."""
        kinds = nn.Conv2d | nn.MaxPool2d
        layers: list[Any] = [pair for pair in module.named_modules() if isinstance(pair[1], kinds)]
        (path, stem), *following = layers
        window = stem.kernel_size, stem.stride, stem.padding
        if self.params.small_images and stem.stride != (1, 1):
            if stem.kernel_size == stem.stride:
                raise UserError(
                    f"torchvision's {self.params.architecture} cuts images into patches of "
                    f"{stem.stride[0]} x {stem.stride[1]} pixels: leave out small_images"
                )
            window = 3, 1, 1
            if following and isinstance(following[0][1], nn.MaxPool2d):
                module.set_submodule(following[0][0], nn.Identity())
        elif channels == stem.in_channels:
            return
        bias = stem.bias is not None
        module.set_submodule(path, nn.Conv2d(channels, stem.out_channels, *window, bias=bias))


def _use_groupnorm(module: nn.Module, groups: int) -> None:
    for path, layer in list(module.named_modules()):
        if isinstance(layer, nn.BatchNorm2d):
            channels = layer.num_features
            norm = nn.GroupNorm(gcd(groups, channels), channels, eps=layer.eps)
            module.set_submodule(path, norm)


def _options(architecture: str, input_shape: tuple[int, ...]) -> dict[str, Any]:
    """Return what the constructor of an architecture needs beside the number of classes."""
    if architecture.startswith("vit_"):
        return {"image_size": input_shape[1]}
    if architecture in ("googlenet", "inception_v3"):
        return {"aux_logits": False, "init_weights": True}
    return {}
