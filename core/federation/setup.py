"""What a training needs to know, and what it reports."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch

from fedbench.core.contract.attack import ActiveAttack
from fedbench.core.contract.contexts import Federation
from fedbench.core.contract.defense import Defense, acting
from fedbench.core.contract.samples import MemberData
from fedbench.core.contract.threat import KnowledgeLevel
from fedbench.core.federation.coalitions import Coalitions
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.spec.federation import FederationSpec


def public_facts(
    config: FederationSpec, *, defense: Defense, clients: int, n_classes: int, n_params: int, expected_malicious: int,
    thresholds: bool,
) -> Federation:  # fmt: skip
    """What everybody knows before round 1."""
    rules = acting(defense, "aggregate")
    return Federation(
        clients=clients, rounds=config.rounds, local_epochs=config.local_epochs, batch_size=config.batch_size,
        participation=config.participation, n_classes=n_classes, n_params=n_params, assumed_malicious=expected_malicious,
        thresholds=thresholds, aggregation=type(rules[0]).__name__ if rules else "mean",
        weights="shuffled" if config.weight_order == "shuffled" else config.weights,
    )  # fmt: skip


def still_held_out(data: MemberData, before: MemberData) -> MemberData:
    """``data``, which a defense made of ``before``, with what was held out of training then held out as ever."""
    if before.held_out is None:
        return data
    return replace(data, held_out=before.held_out if data.held_out is None else before.held_out | data.held_out)


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One training. ``config``: the suite's own words on the federation; ``expected_malicious``: how many malicious clients
    the server's rule is told to expect. ``clients``: each client's own data; ``members``: the ids that defend, ascending.

    ``initial``: [s, P] the starting parameters of the s global models. ``insider``: the adversary among the clients.
    ``root``: the server's own samples, if its rule wants some. ``thresholds``: each client's tolerance, if it has one.
    ``keep_unprotected``: also hand out the updates as they were before ``protect`` and ``coordinate``.
    """

    config: FederationSpec
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
    expected_malicious: int = 0

    def __post_init__(self) -> None:
        if sorted(k for group in self.coalitions for k in group) != list(self.members):
            raise ValueError(f"the members {self.members} are not those of the coalitions {self.coalitions}")

    @cached_property
    def coalitions(self) -> tuple[tuple[int, ...], ...]:
        """The members of each coalition: one of all that defend, unless there are several; none where nobody does."""
        if isinstance(self.defense, Coalitions):
            return self.defense.groups
        return (self.members,) if self.members else ()

    @property
    def device(self) -> torch.device:
        """Where everything lives."""
        return self.flat.params.device

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """[K] how many samples each client trains on; what a defense holds out on top counts, as clients do not tell."""
        return tuple(len(d.trainable) for d in self.clients)

    @property
    def weighing(self) -> tuple[float, ...]:
        """[K] what the server weighs each client's update by, to be divided by the sum over those who are present."""
        return tuple(1.0 if self.config.weights == "equal" else float(n) for n in self.sizes)

    @property
    def facts(self) -> Federation:
        """The public facts."""
        return public_facts(
            self.config, defense=self.defense, clients=len(self.clients), n_classes=self.n_classes,
            n_params=self.flat.params.numel(), expected_malicious=self.expected_malicious,
            thresholds=self.thresholds is not None,
        )  # fmt: skip

    @property
    def malicious(self) -> tuple[int, ...]:
        """Ids of the clients the adversary controls: the last ones."""
        n = len(self.clients)
        return tuple(range(n - self.insider.malicious, n)) if self.insider else ()


@dataclass(kw_only=True)
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


@dataclass(kw_only=True)
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
