"""Modules around a model: normalisation of images, the arithmetic of training, and the memory
format of images.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import Module

from fedbench.core.contract.components import Data
from fedbench.core.contract.errors import UserError


class Normalised(Module):
    """``module`` behind (x / 255 - mean) / std for integer images; floating-point input is already
    normalised.

    Batches for a defense's phases (mixup, augmentation, per-sample gradients) arrive as floats, all
    others as bytes; ``module`` gets the same numbers. mean, std: one value a channel.
    """

    def __init__(self, module: Module, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.module = module
        # Not floating-point buffers: those travel with a client's upload and are averaged.
        self._mean = torch.tensor(mean).view(-1, 1, 1)
        self._std = torch.tensor(std).view(-1, 1, 1)

    def normalise(self, x: Tensor) -> Tensor:
        """[n, C, H, W] float32; floats pass unchanged."""
        if x.is_floating_point():
            return x
        if self._mean.device != x.device:
            self._mean = self._mean.to(x.device)
            self._std = self._std.to(x.device)
        return (x.float() / 255 - self._mean) / self._std

    def forward(self, x: Tensor) -> Tensor:
        return self.module(self.normalise(x))


def wrap(module: Module, data: Data) -> Module:
    """``module`` with the data's normalisation in front, if there is one."""
    return (
        module if data.mean is None or data.std is None else Normalised(module, data.mean, data.std)
    )


def as_floats(module: Module, x: Tensor) -> Tensor:
    """``x`` as normalised floats, as a defense's phases get it."""
    return module.normalise(x) if isinstance(module, Normalised) else x


# --- arithmetic -----------------------------------------------------------------------------------


class Bfloat16Training(Module):
    """``module`` with its forward pass autocast to bfloat16, in training mode only; it returns
    float32 in any mode.
    """

    def __init__(self, module: Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return self.module(x)
        with torch.autocast(x.device.type, torch.bfloat16):
            out = self.module(x)
        return out.float()


def in_precision(module: Module, precision: str) -> Module:
    """``module`` as it trains in ``precision``."""
    return Bfloat16Training(module) if precision == "bf16" else module


def check_precision(precision: str, device: str) -> bool:
    """Raise ``UserError`` where the device does not have this arithmetic."""
    if precision == "tf32" and not device.startswith("cuda"):
        raise UserError(
            "precision tf32 is arithmetic of NVIDIA GPUs; on this device choose fp32 or bf16"
        )
    return True


@contextmanager
def matmuls(precision: str) -> Iterator[None]:
    """TF32 matrix products and convolutions while clients train, and only then."""
    cuda = torch.backends.cuda.matmul
    cudnn = torch.backends.cudnn
    before = cuda.allow_tf32, cudnn.allow_tf32
    cuda.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        cuda.allow_tf32, cudnn.allow_tf32 = before


# --- memory format --------------------------------------------------------------------------------


class ChannelsLastTraining(Module):
    """``module`` that takes images [B, C, H, W] with the channels last in memory in training mode:
    other kernels, faster on a GPU with tensor cores, and other last digits. Parameters, evaluation
    and signals are as ever; so is any other input.
    """

    def __init__(self, module: Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.dim() == 4:
            x = x.to(memory_format=torch.channels_last)
        out: Tensor = self.module(x)
        return out


def in_memory_format(module: Module, memory_format: str) -> Module:
    """``module`` as it trains in ``memory_format``."""
    return ChannelsLastTraining(module) if memory_format == "channels_last" else module
