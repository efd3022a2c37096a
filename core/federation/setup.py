"""What a training needs to know, and what it reports."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from fedbench.core.contract.attack import ActiveAttack
from fedbench.core.contract.contexts import Federation, MemberData
from fedbench.core.contract.defense import Defense
from fedbench.core.federation.flat import FlatModel


@dataclass(frozen=True)
class TrainConfig:
    """The federation's hyperparameters. ``schedule``: constant, exponential, cosine or milestones, with its ``factor``
    and ``milestones`` (rounds after which the factor applies). ``weight_order``: "clients", or "shuffled" to give each
    update the weight |D_j| of another random participant, as FedMIA's released code does (algorithms.md 13, F6)."""

    rounds: int
    local_epochs: int
    batch_size: int
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    participation: float = 1.0
    schedule: str = "constant"
    factor: float = 1.0
    milestones: tuple[int, ...] = ()
    weight_order: str = "clients"

    def lr_at(self, round: int) -> float:
        """Learning rate of a round counted from 1.

        Cosine as FedMIA's released code has it: the rate is renewed AFTER each round e = 0, 1, ... to
        lr (1 + cos(pi e / T)) / 2, so that rounds 1 and 2 share the first value (algorithms.md 2.1).
        """
        if self.schedule == "exponential":
            return self.lr * self.factor ** (round - 1)
        if self.schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * max(round - 2, 0) / self.rounds)) / 2
        if self.schedule == "milestones":
            return self.lr * self.factor ** sum(round > m for m in self.milestones)
        return self.lr


@dataclass(frozen=True)
class Setup:
    """One training. ``clients``: each client's own data; ``members``: the ids that defend, ascending.

    ``initial``: [s, P] the starting parameters of the s global models. ``candidates``: what an active adversary wants
    to know about (x, y), None without one. ``keep_unprotected``: also hand out the updates as they were before
    ``protect`` and ``coordinate``.
    """

    config: TrainConfig
    seed: int
    flat: FlatModel
    clients: list[MemberData]
    n_classes: int
    defense: Defense
    members: tuple[int, ...]
    initial: torch.Tensor
    adversary: ActiveAttack | None = None
    candidates: tuple[torch.Tensor, torch.Tensor] | None = None
    keep_unprotected: bool = False

    @property
    def device(self) -> torch.device:
        """Where everything lives."""
        return self.flat.params.device

    @property
    def facts(self) -> Federation:
        """The public facts."""
        c = self.config
        return Federation(
            len(self.clients), c.rounds, c.local_epochs, c.batch_size, c.participation, self.n_classes,
            self.flat.params.numel(),
        )  # fmt: skip

    @property
    def malicious(self) -> tuple[int, ...]:
        """Ids of the clients the adversary controls: the last ones."""
        n = len(self.clients)
        return tuple(range(n - self.adversary.malicious, n)) if self.adversary else ()


@dataclass
class Uploads:
    """What the server holds after a round, before it aggregates.

    ``participants``: ids in row order; ``updates``: [n, P] as uploaded; ``buffers``: [n, B] client buffers as uploaded;
    ``model_of``: [n] index of the global model each one started from; ``starts``: [s, P] those models, and
    ``start_buffers`` [s, B] their buffers. ``unprotected``: [n, P] the updates before any protection, if asked for.
    """

    round: int
    participants: tuple[int, ...]
    updates: torch.Tensor
    buffers: torch.Tensor
    model_of: list[int]
    starts: torch.Tensor
    start_buffers: torch.Tensor
    unprotected: torch.Tensor | None = None


@dataclass
class RoundResult:
    """A finished round: the uploads, and the global models [s, P], buffers [s, B] and steps [s, P] that came of them."""

    uploads: Uploads
    models: torch.Tensor
    buffers: torch.Tensor
    steps: torch.Tensor
