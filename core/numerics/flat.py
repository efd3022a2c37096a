"""A module whose parameters are views of one vector, so that a client is a row and a step is four vector operations."""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import nn

from fedbench.core.contract.contexts import Layer

EVALUATION_CHUNK = 512  # samples; of a ResNet18: 1 GB of activations


class FlatModel:
    """Wraps ``module``: ``params`` [P], ``grad`` [P] and ``buffers`` [B] are live flat vectors its tensors view.
    ``layers``: where each of the ``trainable`` tensors lies in them; ``gradients``: views of ``grad`` in their shapes.

    Order: ``module.parameters()`` with ``requires_grad``. Floating-point buffers (running statistics) travel with a
    client's update but are not part of P, so noise and gradient features act on trainable parameters only.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.module = module.to(device)
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.trainable = [p for _, p in named]
        ends = list(accumulate(p.numel() for p in self.trainable))
        self.layers = tuple(
            Layer(name, end - p.numel(), end, tuple(p.shape)) for (name, p), end in zip(named, ends, strict=True)
        )
        self._floating = [b for b in module.buffers() if b.is_floating_point()]
        with torch.no_grad():
            self.params = torch.cat([p.reshape(-1) for p in self.trainable])
            self.buffers = torch.cat([b.reshape(-1) for b in self._floating] or [self.params.new_zeros(0)])
        self.grad = torch.zeros_like(self.params)
        for flat, tensors in ((self.params, self.trainable), (self.buffers, self._floating)):
            for t, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
                t.data = part.view_as(t)
        parts = self.grad.split([p.numel() for p in self.trainable])
        self.gradients = tuple(part.view_as(p) for p, part in zip(self.trainable, parts, strict=True))
        self.bind_grad()

    @torch.no_grad()
    def logits(self, params: torch.Tensor, buffers: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """[n, C] at these ``params`` [P] and ``buffers`` [B], which it loads, in eval mode, which it leaves on."""
        self.params.copy_(params)
        self.buffers.copy_(buffers)
        self.module.eval()
        return torch.cat([self.module(part) for part in x.split(EVALUATION_CHUNK)])

    def bind_grad(self) -> None:
        """Let every parameter's ``.grad`` be a view of ``grad`` again, should a plugin have dropped it."""
        for p, part in zip(self.trainable, self.gradients, strict=True):
            p.grad = part
