"""The declared layout of images in memory while clients train: as they are, or with the channels last."""

from __future__ import annotations

import torch
from torch import nn


class ChannelsLastTraining(nn.Module):
    """``module`` that takes images [B, C, H, W] with the channels last in memory in training mode: other kernels, faster on a
    GPU with tensor cores, and other last digits. Parameters, evaluation and signals are as ever; so is any other input."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and x.dim() == 4:
            x = x.to(memory_format=torch.channels_last)
        out: torch.Tensor = self.module(x)
        return out


def in_memory_format(module: nn.Module, memory_format: str) -> nn.Module:
    """``module`` as it trains in ``memory_format``."""
    return ChannelsLastTraining(module) if memory_format == "channels_last" else module
