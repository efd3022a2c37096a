"""The clients' optimisers on flat vectors, and the learning rate over the rounds."""

from __future__ import annotations

import math

import torch

from fedbench.core.numerics.flat import FlatModel
from fedbench.core.spec.federation import FederationSpec, Optimizer


def lr_at(federation: FederationSpec, round: int) -> float:
    """Learning rate of a round counted from 1.

    Exponential: times the factor every round; milestones: times the factor after each of the rounds named. Cosine as
    FedMIA's released code has it: the rate is renewed AFTER each round e = 0, 1, ... to lr (1 + cos(pi e / T)) / 2, so that
    rounds 1 and 2 share the first value (docs/methods/federation.md#schedules).
    """
    optimizer, schedule = federation.optimizer, federation.optimizer.schedule
    factor = schedule.factor or 1.0
    if schedule.name == "exponential":
        return optimizer.lr * factor ** (round - 1)
    if schedule.name == "cosine":
        return optimizer.lr * (1 + math.cos(math.pi * max(round - 2, 0) / federation.rounds)) / 2
    if schedule.name == "milestones":
        return optimizer.lr * factor ** sum(round > m for m in schedule.rounds or ())
    return optimizer.lr


_IN_CACHE = 2**17  # elements: 512 KiB in float32


class FlatSGD:
    """Momentum SGD with weight decay: v <- m v + (g + wd p); p <- p - lr v.

    ``reset`` empties the momentum in place: every client starts a round with a fresh optimiser
    (docs/methods/federation.md#optimisers).
    """

    def __init__(self, flat: FlatModel, *, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        self._flat = flat
        self._momentum = momentum
        self._weight_decay = weight_decay
        self._velocity = torch.zeros_like(flat.params)

    def reset(self, client: int | None = None) -> None:
        """Forget the momentum."""
        self.restart()

    def restart(self) -> None:
        """As ``reset`` left it."""
        if self._momentum:
            self._velocity.zero_()

    def step(self, lr: float) -> None:
        """One step on ``flat.grad`` (which it may overwrite)."""
        p, g = self._flat.params, self._flat.grad
        if self._weight_decay:
            g.add_(p, alpha=self._weight_decay)
        if self._momentum:
            g = self._velocity.mul_(self._momentum).add_(g)
        p.sub_(g, alpha=lr)

    def first_steps(self, gradients: torch.Tensor, lr: float) -> torch.Tensor:
        """-lr (g + wd p): the momentum starts at the first gradient."""
        if self._weight_decay:
            gradients.add_(self._flat.params, alpha=self._weight_decay)
        return gradients.mul_(-lr)


class FlatAdam:
    """Adam (Kingma & Ba, ICLR 2015, algorithm 1; L2 weight decay added to the gradient, eps 1e-8).

    ``keep``: a client's moments and step count live on from round to round, though its parameters are replaced, as in
    FedPoisonMIA's released code (docs/methods/federation.md#optimisers); otherwise every round starts afresh.
    """

    BETAS = (0.9, 0.999)
    EPS = 1e-8

    def __init__(
        self, flat: FlatModel, *, betas: tuple[float, ...] = BETAS, weight_decay: float = 0.0, keep: bool = False
    ) -> None:
        self._flat, self._betas, self._weight_decay, self._keep = flat, betas, weight_decay, keep
        self._states: dict[int, tuple[torch.Tensor, list[int]]] = {}
        self._fresh = torch.zeros(2, flat.params.numel(), device=flat.params.device), [0]
        self._moments, self._steps = self._fresh
        self._began: tuple[torch.Tensor, int] | None = None

    def reset(self, client: int | None = None) -> None:
        """Fresh moments, or the client's own from its last round."""
        if self._keep and client is not None:
            if client not in self._states:
                self._states[client] = torch.zeros_like(self._fresh[0]), [0]
            self._moments, self._steps = self._states[client]
            self._began = self._moments.clone(), self._steps[0]
            return
        self._moments, self._steps = self._fresh
        self._began = None
        self.restart()

    def restart(self) -> None:
        """As ``reset`` left it: fresh, or what the client came with."""
        if self._began is not None:
            self._moments.copy_(self._began[0])
            self._steps[0] = self._began[1]
            return
        self._moments.zero_()
        self._steps[0] = 0

    def step(self, lr: float) -> None:
        """One step on ``flat.grad`` (which it may overwrite)."""
        p, g = self._flat.params, self._flat.grad
        if self._weight_decay:
            g.add_(p, alpha=self._weight_decay)
        self._steps[0] += 1
        (first, second), (b1, b2), t = self._moments, self._betas, self._steps[0]
        first.lerp_(g, 1 - b1)
        second.mul_(b2).addcmul_(g, g, value=1 - b2)
        torch.sqrt(second, out=g)
        g.mul_((1 - b2**t) ** -0.5).add_(self.EPS)
        p.addcdiv_(first, g, value=-lr / (1 - b1**t))

    def first_steps(self, gradients: torch.Tensor, lr: float) -> torch.Tensor:
        """-lr g / (|g| + eps): both moments' corrections cancel their weights."""
        if self._weight_decay:
            gradients.add_(self._flat.params, alpha=self._weight_decay)
        for rows in gradients.split(max(1, _IN_CACHE // max(gradients.shape[1], 1))):  # fresh pages cost more than the division
            rows.div_(rows.abs().add_(self.EPS)).mul_(-lr)
        return gradients


def make_optimizer(flat: FlatModel, optimizer: Optimizer) -> FlatSGD | FlatAdam:
    """The one that the suite gives the federation's clients."""
    if optimizer.name == "adam":
        betas = tuple(optimizer.betas) if optimizer.betas else FlatAdam.BETAS
        return FlatAdam(flat, betas=betas, weight_decay=optimizer.weight_decay, keep=optimizer.keep_state)
    return FlatSGD(flat, momentum=optimizer.momentum, weight_decay=optimizer.weight_decay)
