"""The clients' optimisers on rows of parameters, and the learning rate over the rounds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedbench.core.spec.federation import FederationSpec, Optimizer


def lr_at(federation: FederationSpec, round: int) -> float:
    """Learning rate of a round counted from 1.

    Exponential: times the factor every round; milestones: times the factor after each of the rounds
    named. Cosine as FedMIA's released code has it: the rate is renewed AFTER each round e = 0, 1,
    ... to lr (1 + cos(pi e / T)) / 2, so that rounds 1 and 2 share the first value
    (docs/methods/federation.md#schedules).
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


class State(NamedTuple):
    """Of Adam, for one client: [P] first and second moments, and the number of steps."""

    first: Tensor
    second: Tensor
    steps: Tensor


class SGD:
    """Momentum SGD with weight decay on rows of ``params`` [G, P]: v <- m v + (g + wd p); p <- p -
    lr v.

    ``grads``: [G, P], only read. Every client starts a round with a fresh optimiser
    (docs/methods/federation.md#optimisers).
    """

    def __init__(
        self,
        params: Tensor,
        grads: Tensor,
        *,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        self._rows, self._momentum, self._weight_decay = (params, grads), momentum, weight_decay
        self._velocity = torch.zeros_like(params) if momentum else params.new_zeros(0)

    def reset(self, clients: Sequence[int] = (), again: bool = False) -> None:
        """Forget the momentum. ``clients``: ids of those that the first rows belong to; () for one
        that is no client. ``again``: whether :meth:`restart` may follow.
        """
        self._velocity.zero_()

    def restart(self) -> None:
        """As ``reset`` left it."""
        self._velocity.zero_()

    def step(self, lr: float, rows: Sequence[int] = (0,)) -> None:
        """One step of these rows."""
        params, grads = ([of[i] for i in rows] for of in self._rows)
        velocities = [self._velocity[i] for i in rows] if self._momentum else []
        torch._fused_sgd_(  # what torch.optim.SGD(fused=True) calls: one pass over the memory
            params,
            grads,
            velocities,
            lr=lr,
            momentum=self._momentum,
            weight_decay=self._weight_decay,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )

    def first_steps(self, gradients: Tensor, lr: float) -> Tensor:
        """[n, P] steps from row 0 by each of ``gradients`` [n, P], which are overwritten: -lr (g +
        wd p).
        """
        if self._weight_decay:
            gradients.add_(self._rows[0][0], alpha=self._weight_decay)
        return gradients.mul_(-lr)


class Adam:
    """Adam (Kingma & Ba, ICLR 2015, algorithm 1; L2 weight decay added to the gradient, eps 1e-8)
    on rows of ``params`` [G, P]; ``grads``: [G, P], only read.

    ``states``: a client's moments and step count live on from round to round in it, though its
    parameters are replaced, as in FedPoisonMIA's released code
    (docs/methods/federation.md#optimisers); without it every round starts afresh.
    """

    BETAS = (0.9, 0.999)
    EPS = 1e-8

    def __init__(
        self,
        params: Tensor,
        grads: Tensor,
        *,
        betas: tuple[float, ...] = BETAS,
        weight_decay: float = 0.0,
        states: dict[int, State] | None = None,
    ) -> None:
        self._rows, self._betas, self._weight_decay = (params, grads), betas, weight_decay
        self._kept, self._fresh, self._state, self._began = (
            states,
            list[State](),
            list[State](),
            list[State](),
        )

    def reset(self, clients: Sequence[int] = (), again: bool = False) -> None:
        """Fresh moments, or the clients' own, as their last round left them. ``clients``,
        ``again``: as for ``SGD``.
        """
        if self._kept is None or not clients:
            self._fresh = self._fresh or [self._new() for _ in self._rows[0]]
            self._state = self._fresh
            self.restart()
            return
        for k in clients:
            if k not in self._kept:
                self._kept[k] = self._new()
        self._state = [self._kept[k] for k in clients]
        self._began = [State(*(t.clone() for t in state)) for state in self._state] if again else []

    def restart(self) -> None:
        """As ``reset`` left it."""
        if self._state is self._fresh:
            for t in itertools.chain(*self._fresh):
                t.zero_()
        else:
            for t, was in zip(
                itertools.chain(*self._state), itertools.chain(*self._began), strict=True
            ):
                t.copy_(was)

    def _new(self) -> State:
        row = self._rows[0][0]
        return State(
            torch.zeros_like(row),
            torch.zeros_like(row),
            torch.zeros((), dtype=torch.float32, device=row.device),
        )

    def step(self, lr: float, rows: Sequence[int] = (0,)) -> None:
        """One step of these rows."""
        params, grads = ([of[i] for i in rows] for of in self._rows)
        first, second, steps = (
            list(of) for of in zip(*(self._state[i] for i in rows), strict=True)
        )
        torch._foreach_add_(steps, 1)
        torch._fused_adam_(  # what torch.optim.Adam(fused=True) calls: one pass over the memory
            params,
            grads,
            first,
            second,
            [],
            steps,
            lr=lr,
            beta1=self._betas[0],
            beta2=self._betas[1],
            weight_decay=self._weight_decay,
            eps=self.EPS,
            amsgrad=False,
            maximize=False,
        )

    def first_steps(self, gradients: Tensor, lr: float) -> Tensor:
        """As ``SGD``'s: -lr g / (|g| + eps), since both moments' corrections cancel their weights."""
        if self._weight_decay:
            gradients.add_(self._rows[0][0], alpha=self._weight_decay)
        # fresh pages cost more than the division
        for rows in gradients.split(max(1, _IN_CACHE // max(gradients.shape[1], 1))):
            rows.div_(rows.abs().add_(self.EPS)).mul_(-lr)
        return gradients


def make_optimizer(
    optimizer: Optimizer,
    params: Tensor,
    grads: Tensor,
    states: dict[int, State] | None = None,
) -> SGD | Adam:
    """The one that the suite gives the federation's clients, for rows of ``params`` and ``grads``
    [G, P]. ``states``: what clients keep from round to round, where the suite lets them.
    """
    if optimizer.name == "adam":
        betas = tuple(optimizer.betas) if optimizer.betas else Adam.BETAS
        kept = states if optimizer.keep_state else None
        return Adam(params, grads, betas=betas, weight_decay=optimizer.weight_decay, states=kept)
    return SGD(params, grads, momentum=optimizer.momentum, weight_decay=optimizer.weight_decay)
