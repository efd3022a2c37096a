"""Images stay uint8 on the device and are normalised there, in front of the model."""

from __future__ import annotations

import torch
from torch import nn

from fedbench.core.contract.dataset import Data


class Normalised(nn.Module):
    """``module`` behind (x / 255 - mean) / std for integer images; floating-point input is already normalised.

    A batch that a defense wants to change (mixup, augmentation, per-sample gradients) arrives as floats, everything
    else as bytes: both reach ``module`` as the same numbers. mean, std: one value a channel.
    """

    def __init__(self, module: nn.Module, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.module = module
        # Not floating-point buffers: those travel with a client's upload and are averaged.
        self._mean = torch.tensor(mean).view(-1, 1, 1)
        self._std = torch.tensor(std).view(-1, 1, 1)

    def normalise(self, x: torch.Tensor) -> torch.Tensor:
        """[n, C, H, W] float32; floats pass unchanged."""
        if x.is_floating_point():
            return x
        if self._mean.device != x.device:
            self._mean, self._std = self._mean.to(x.device), self._std.to(x.device)
        return (x.float() / 255 - self._mean) / self._std

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(self.normalise(x))


def wrap(module: nn.Module, data: Data) -> nn.Module:
    """``module`` as the engine uses it: behind the data's normalisation, if it has one."""
    return module if data.mean is None or data.std is None else Normalised(module, data.mean, data.std)


def as_floats(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """What a defense's phases see of a batch: normalised floats."""
    return module.normalise(x) if isinstance(module, Normalised) else x
