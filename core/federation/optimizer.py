"""The clients' optimisers on rows of parameters, and the learning rate over the rounds."""

from __future__ import annotations

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
    optimizer = federation.optimizer
    schedule = optimizer.schedule
    factor = schedule.factor or 1.0
    if schedule.name == "exponential":
        return optimizer.lr * factor ** (round - 1)
    if schedule.name == "cosine":
        angle = math.pi * max(round - 2, 0) / federation.rounds
        return optimizer.lr * (1 + math.cos(angle)) / 2
    if schedule.name == "milestones":
        n_passed = sum(round > m for m in schedule.rounds or ())
        return optimizer.lr * factor**n_passed
    return optimizer.lr


class State(NamedTuple):
    """Adam's state for one client."""

    first: Tensor
    """[P] first moment"""
    second: Tensor
    """[P] second moment"""
    steps: Tensor
    """number of steps, a float32 scalar"""


class Rule:
    """Base of the optimisers. ``rate``: where it is set, a float32 scalar on the device that holds
    the learning rate, so that a recorded step reads the present one.
    """

    rate: Tensor | None = None
    _lr = math.nan

    def at(self, lr: float | Tensor) -> float | Tensor:
        """``lr`` as a step's kernel takes it: a number is put in ``rate``."""
        if self.rate is None or isinstance(lr, Tensor):
            return lr
        if lr != self._lr:
            self.rate.fill_(lr)
            self._lr = lr
        return self.rate


class SGD(Rule):
    """Momentum SGD with weight decay on rows of ``params`` [G, P]: v <- m v + (g + wd p); p <- p -
    lr v.

    ``grads``: [G, P], only read. Every client starts a round with a fresh optimiser
    (docs/methods/federation.md#optimisers).
    """

    def __init__(
        self,
        params: Tensor,
        grads: Tensor,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        self._params = params
        self._grads = grads
        self._momentum = momentum
        self._weight_decay = weight_decay
        self._velocity = torch.zeros_like(params) if momentum else params.new_zeros(0)

    @property
    def state(self) -> list[Tensor] | None:
        """Its state; None where it does not lie in the same tensors in all rounds."""
        return [self._velocity]

    def reset(self, clients: Sequence[int] = (), again: bool = False) -> None:
        """Forget the momentum. ``clients``: ids of those that the first rows belong to; () for one
        that is no client. ``again``: whether :meth:`restart` may follow.
        """
        self._velocity.zero_()

    def restart(self) -> None:
        """Return to the state that ``reset`` left."""
        self._velocity.zero_()

    def step(self, lr: float | Tensor, rows: Sequence[int] = (0,)) -> None:
        """Step these rows."""
        torch._fused_sgd_(  # what torch.optim.SGD(fused=True) calls: one pass over the memory
            [self._params[i] for i in rows],
            [self._grads[i] for i in rows],
            [self._velocity[i] for i in rows] if self._momentum else [],
            lr=self.at(lr),
            momentum=self._momentum,
            weight_decay=self._weight_decay,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )

    def first_steps(self, gradients: Tensor, lr: float) -> Tensor:
        """Steps [n, P] from row 0 by each of ``gradients`` [n, P], which are overwritten: -lr (g +
        wd p).
        """
        if self._weight_decay:
            gradients.add_(self._params[0], alpha=self._weight_decay)
        return gradients.mul_(-lr)


class Adam(Rule):
    """Adam (Kingma & Ba, ICLR 2015, algorithm 1; L2 weight decay added to the gradient, eps 1e-8)
    on rows of ``params`` [G, P]; ``grads``: [G, P], only read.

    ``moments``: a client's state lives on from round to round in it, though its parameters are
    replaced, as in FedPoisonMIA's released code (docs/methods/federation.md#optimisers); without it
    every round starts afresh.
    """

    BETAS = (0.9, 0.999)
    EPS = 1e-8
    IN_CACHE = 2**17  # elements: 512 KiB in float32

    def __init__(
        self,
        params: Tensor,
        grads: Tensor,
        betas: Sequence[float] = BETAS,
        weight_decay: float = 0.0,
        moments: dict[int, State] | None = None,
    ) -> None:
        self._params = params
        self._grads = grads
        self._moments = moments
        self._betas = betas
        self._weight_decay = weight_decay
        self._states = list[State]()
        self._began = list[State]()

    @property
    def state(self) -> list[Tensor] | None:
        """See ``SGD``."""
        if self._moments is not None:
            return None
        return [t for state in self._states for t in state]

    def reset(self, clients: Sequence[int] = (), again: bool = False) -> None:
        """Take fresh moments, or the clients' own, as their last round left them. ``clients``,
        ``again``: as for ``SGD``.
        """
        if self._moments is None or not clients:
            self._states = self._states or [self._fresh() for _ in self._params]
            self.restart()
            return
        for k in clients:
            if k not in self._moments:
                self._moments[k] = self._fresh()
        self._states = [self._moments[k] for k in clients]
        self._began = [State(*(t.clone() for t in state)) for state in self._states if again]

    def restart(self) -> None:
        """Return to the state that ``reset`` left."""
        began: list[State | None] = [*self._began] or [None] * len(self._states)
        for state, before in zip(self._states, began, strict=True):
            for i, t in enumerate(state):
                t.zero_() if before is None else t.copy_(before[i])

    def _fresh(self) -> State:
        row = self._params[0]
        return State(
            torch.zeros_like(row),
            torch.zeros_like(row),
            torch.zeros((), dtype=torch.float32, device=row.device),
        )

    def step(self, lr: float | Tensor, rows: Sequence[int] = (0,)) -> None:
        """Step these rows."""
        states = [self._states[i] for i in rows]
        steps = [state.steps for state in states]
        torch._foreach_add_(steps, 1)
        torch._fused_adam_(  # what torch.optim.Adam(fused=True) calls: one pass over the memory
            [self._params[i] for i in rows],
            [self._grads[i] for i in rows],
            [state.first for state in states],
            [state.second for state in states],
            [],
            steps,
            lr=self.at(lr),
            beta1=self._betas[0],
            beta2=self._betas[1],
            weight_decay=self._weight_decay,
            eps=self.EPS,
            amsgrad=False,
            maximize=False,
        )

    def first_steps(self, gradients: Tensor, lr: float) -> Tensor:
        """Steps as ``SGD``'s: -lr g / (|g| + eps), since both moments' corrections cancel their
        weights.
        """
        if self._weight_decay:
            gradients.add_(self._params[0], alpha=self._weight_decay)
        step = max(1, self.IN_CACHE // max(gradients.shape[1], 1))
        for rows in gradients.split(step):  # fresh pages cost more than the division
            size = rows.abs().add_(self.EPS)
            rows.div_(size).mul_(-lr)
        return gradients


def make_optimizer(
    optimizer: Optimizer,
    params: Tensor,
    grads: Tensor,
    moments: dict[int, State] | None = None,
) -> SGD | Adam:
    """The optimiser that the suite gives the federation's clients, for rows of ``params`` and
    ``grads`` [G, P]. ``moments``: of clients, where the suite lets them live on.
    """
    if optimizer.name == "sgd":
        return SGD(params, grads, optimizer.momentum, optimizer.weight_decay)
    betas = optimizer.betas or Adam.BETAS
    decay = optimizer.weight_decay
    return Adam(params, grads, betas, decay, moments if optimizer.keep_state else None)
