"""Adam for the small nets of attacks, on torch's parameters."""

from __future__ import annotations

import torch
from torch import nn


class Adam:
    """Adam with weight decay in the gradient; as ``torch.optim.Adam``, whose first use costs seconds of imports.

    Source: Kingma & Ba, ICLR 2015, algorithm 1.
    """

    def __init__(self, params: list[nn.Parameter], weight_decay: float) -> None:
        self._params, self._weight_decay, self._steps = params, weight_decay, 0
        self._moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in params]

    def step(self, loss: torch.Tensor, rate: float, beta1: float = 0.9, beta2: float = 0.999) -> None:
        """One step down the gradient of ``loss``."""
        self._steps += 1
        scale1, scale2 = 1 - beta1**self._steps, 1 - beta2**self._steps
        grads = torch.autograd.grad(loss, self._params)
        with torch.no_grad():
            for p, g, (m, v) in zip(self._params, grads, self._moments, strict=True):
                g = g + self._weight_decay * p
                m.lerp_(g, 1 - beta1)
                v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
                p.addcdiv_(m, (v / scale2).sqrt_().add_(1e-8), value=-rate / scale1)
