"""The declared arithmetic of training: fp32, tf32 or bf16. Parameters, updates, evaluation and signals stay float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from fedbench.core.contract.errors import UserError


class Bfloat16Training(nn.Module):
    """``module`` whose forward pass is autocast to bfloat16 in training mode only; its answer is float32 in any mode."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return self.module(x)
        with torch.autocast(x.device.type, torch.bfloat16):
            out = self.module(x)
        return out.float()


def in_precision(module: nn.Module, precision: str) -> nn.Module:
    """``module`` as it trains in ``precision``."""
    return Bfloat16Training(module) if precision == "bf16" else module


def check_precision(precision: str, device: str) -> bool:
    """Raise ``UserError`` where the device does not have this arithmetic."""
    if precision == "tf32" and not device.startswith("cuda"):
        raise UserError("precision tf32 is arithmetic of NVIDIA GPUs; on this device choose fp32 or bf16")
    return True


@contextmanager
def matmuls(precision: str) -> Iterator[None]:
    """TF32 matrix products and convolutions while clients train, and only then."""
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = cuda.allow_tf32, cudnn.allow_tf32
    cuda.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        cuda.allow_tf32, cudnn.allow_tf32 = before
