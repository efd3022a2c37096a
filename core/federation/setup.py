"""What a training needs to know, and what it reports."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from fedbench.core.contract.attack import ActiveAttack, KnowledgeLevel
from fedbench.core.contract.contexts import Federation, MemberData
from fedbench.core.contract.defense import Defense
from fedbench.core.numerics.flat import FlatModel


@dataclass(frozen=True)
class TrainConfig:
    """The federation's hyperparameters. ``schedule``: constant, exponential, cosine or milestones, with its ``factor``
    and ``milestones`` (rounds after which the factor applies). ``weight_order``: "clients", or "shuffled" to give each
    update the weight |D_j| of another random participant, as FedMIA's released code does (docs/methods/quirks.md#f6).
    ``local_batches``: only so many of each local epoch's shuffled batches (None: all).
    ``max_delay``: a client trains on the global model of up to so many rounds ago, uniformly (0: synchronous).
    ``precision``: of the training's arithmetic, fp32, tf32 or bf16; parameters, updates and signals are float32.
    ``assumed_malicious``: how many malicious clients the server is told to expect."""

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
    max_delay: int = 0
    precision: str = "fp32"
    optimizer: str = "sgd"
    betas: tuple[float, float] = (0.9, 0.999)
    keep_state: bool = False
    assumed_malicious: int = 0
    local_batches: int | None = None

    def lr_at(self, round: int) -> float:
        """Learning rate of a round counted from 1.

        Cosine as FedMIA's released code has it: the rate is renewed AFTER each round e = 0, 1, ... to
        lr (1 + cos(pi e / T)) / 2, so that rounds 1 and 2 share the first value (docs/methods/federation.md#schedules).
        """
        if self.schedule == "exponential":
            return self.lr * self.factor ** (round - 1)
        if self.schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * max(round - 2, 0) / self.rounds)) / 2
        if self.schedule == "milestones":
            return self.lr * self.factor ** sum(round > m for m in self.milestones)
        return self.lr


@dataclass(frozen=True)
class Insider:
    """An adversary inside the federation: it controls the last ``malicious`` clients from ``start_round`` on.

    ``knowledge``: what the setting grants it. ``x``, ``y``: its attack set; ``mask_x``, ``mask_y``: its mask set.
    """

    attack: ActiveAttack
    malicious: int
    knowledge: KnowledgeLevel
    start_round: int
    x: torch.Tensor
    y: torch.Tensor
    mask_x: torch.Tensor
    mask_y: torch.Tensor


@dataclass(frozen=True)
class Setup:
    """One training. ``clients``: each client's own data; ``members``: the ids that defend, ascending.

    ``initial``: [s, P] the starting parameters of the s global models. ``insider``: the adversary among the clients.
    ``root``: the server's own samples, if its rule wants some. ``thresholds``: each client's tolerance, if it has one.
    ``keep_unprotected``: also hand out the updates as they were before ``protect`` and ``coordinate``.
    """

    config: TrainConfig
    seed: int
    flat: FlatModel
    clients: list[MemberData]
    n_classes: int
    defense: Defense
    members: tuple[int, ...]
    initial: torch.Tensor
    insider: Insider | None = None
    root: MemberData | None = None
    thresholds: tuple[float, ...] | None = None
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
            self.flat.params.numel(), c.assumed_malicious, self.thresholds is not None,
        )  # fmt: skip

    @property
    def malicious(self) -> tuple[int, ...]:
        """Ids of the clients the adversary controls: the last ones."""
        n = len(self.clients)
        return tuple(range(n - self.insider.malicious, n)) if self.insider else ()


@dataclass
class Uploads:
    """What the server holds after a round, before it aggregates.

    ``participants``: ids in row order; ``updates``: [n, P] as uploaded; ``buffers``: [n, B] client buffers as uploaded;
    ``model_of``: [n] index of the global model each one contributes to; ``start_of``: [n] index of the model it started
    from among ``starts`` [S, P] (``start_buffers`` [S, B]): first the current global models, then the older ones that
    delayed clients still had. ``unprotected``: [n, P] the updates before any protection, if asked for.
    """

    round: int
    participants: tuple[int, ...]
    updates: torch.Tensor
    buffers: torch.Tensor
    model_of: list[int]
    start_of: list[int]
    starts: torch.Tensor
    start_buffers: torch.Tensor
    unprotected: torch.Tensor | None = None

    def keep(self, rows: list[int]) -> None:
        """Leave only these rows."""
        self.participants = tuple(self.participants[r] for r in rows)
        self.updates, self.buffers = self.updates[rows], self.buffers[rows]
        self.model_of, self.start_of = [self.model_of[r] for r in rows], [self.start_of[r] for r in rows]
        self.unprotected = None if self.unprotected is None else self.unprotected[rows]


@dataclass
class RoundResult:
    """A finished round: the uploads, and the global models [s, P], buffers [s, B] and steps [s, P] that came of them.

    ``rejected``: malicious clients whose rows were not finite; the server dropped them, the uploads are without them.
    ``assignment``: [K] the global model of every client.
    """

    uploads: Uploads
    models: torch.Tensor
    buffers: torch.Tensor
    steps: torch.Tensor
    rejected: tuple[int, ...] = ()
    assignment: tuple[int, ...] = ()
