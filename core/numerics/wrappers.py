"""Modules around a model: normalisation of images, arithmetic and memory format of training."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Generator, Tensor
from torch.nn import Module

from fedbench.core.contract.components import Data
from fedbench.core.contract.task import Purpose, Task


class Normalised(Module):
    """``module`` behind (x / 255 - mean) / std for integer images; floating-point input is already
    normalised.

    Batches for a defense's phases (mixup, augmentation, per-sample gradients) arrive as floats, all
    others as bytes; ``module`` gets the same numbers. mean, std: one value a channel.
    """

    def __init__(
        self,
        module: Module,
        mean: tuple[float, ...],
        std: tuple[float, ...],
    ) -> None:
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
    if data.mean is None or data.std is None:
        return module
    return Normalised(module, data.mean, data.std)


def as_floats(module: Module, x: Tensor) -> Tensor:
    """``x`` as normalised floats, as a defense's phases get it."""
    return module.normalise(x) if isinstance(module, Normalised) else x


def task_rows(
    module: Module,
    task: Task,
    x: Tensor,
    y: Tensor,
    purpose: Purpose,
    generator: Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Inputs of ``module`` and their target: samples as they are, or the task's rows of floats."""
    if type(task).rows is Task.rows:
        return x, y
    return task.rows(as_floats(module, x), y, purpose, generator)


# --- in training ----------------------------------------------------------------------------------


class TrainingForm(Module):
    """``module`` as it computes in training mode only. ``bf16``: its forward pass is autocast to
    bfloat16, and returns float32; ``channels_last``: it takes images [B, C, H, W] with the channels
    last in memory, by other kernels with other last digits; ``compiled``: it runs as torch.compile
    makes it, with other last digits. Parameters, evaluation and signals are as ever.
    """

    def __init__(
        self, module: Module, bf16: bool, channels_last: bool, compiled: bool = False
    ) -> None:
        super().__init__()
        self.module = module
        self._bf16 = bf16
        self._channels_last = channels_last
        self._compiled = compiled

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self._channels_last and x.dim() == 4:
            x = x.to(memory_format=torch.channels_last)
        if not self.training:
            return self.module(x)
        call = _compiled() if self._compiled else _call
        if not self._bf16:
            return call(self.module, x)
        with torch.autocast(x.device.type, torch.bfloat16):
            out = call(self.module, x)
        return out.float()


COMPILER = "inductor"
"""backend of torch.compile"""


def _call(module: Module, x: Tensor) -> Tensor:
    return module(x)


@cache
def _compiled() -> Callable[[Module, Tensor], Tensor]:
    # torch takes several seconds to import its compiler, and would start processes for it
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    compiled: Callable[[Module, Tensor], Tensor] = torch.compile(_call, backend=COMPILER)
    return compiled


def in_training_form(
    module: Module, precision: str, memory_format: str, compiled: bool = False
) -> Module:
    """``module`` as it trains in ``precision`` and ``memory_format``, ``compiled`` or not."""
    bf16 = precision == "bf16"
    channels_last = memory_format == "channels_last"
    if not (bf16 or channels_last or compiled):
        return module
    return TrainingForm(module, bf16, channels_last, compiled)


@contextmanager
def matmuls(precision: str) -> Iterator[None]:
    """TF32 matrix products and convolutions inside, while clients train or a round is audited."""
    cuda = torch.backends.cuda.matmul
    cudnn = torch.backends.cudnn
    before = cuda.allow_tf32, cudnn.allow_tf32
    cuda.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        cuda.allow_tf32, cudnn.allow_tf32 = before
