"""SGD on flat vectors; the same arithmetic as torch.optim.SGD, four kernels a step."""

from __future__ import annotations

import torch

from fedbench.core.federation.flat import FlatModel


class FlatSGD:
    """Momentum SGD with weight decay: v <- m v + (g + wd p); p <- p - lr v.

    ``reset`` empties the momentum in place: every client starts a round with a fresh optimiser (algorithms.md 2.1).
    """

    def __init__(self, flat: FlatModel, momentum: float, weight_decay: float) -> None:
        self._flat = flat
        self._momentum = momentum
        self._weight_decay = weight_decay
        self._velocity = torch.zeros_like(flat.params)

    def reset(self) -> None:
        """Forget the momentum."""
        self._velocity.zero_()

    def step(self, lr: float) -> None:
        """One step on ``flat.grad`` (which it may overwrite)."""
        p, g = self._flat.params, self._flat.grad
        if self._weight_decay:
            g.add_(p, alpha=self._weight_decay)
        if self._momentum:
            g = self._velocity.mul_(self._momentum).add_(g)
        p.sub_(g, alpha=lr)
