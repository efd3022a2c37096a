"""What a training needs to know, what it reports, and the contexts that its parties are handed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch

from fedbench.core.contract.attack import ActiveAttack, KnowledgeLevel
from fedbench.core.contract.contexts import (
    AnswerContext,
    CoalitionContext,
    Federation,
    MemberContext,
    ReportContext,
)
from fedbench.core.contract.defense import Defense, acting
from fedbench.core.contract.samples import MemberData
from fedbench.core.federation.compose import Coalitions
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.numerics.gradients import clipped_gradient
from fedbench.core.numerics.per_sample import per_sample_gradients
from fedbench.core.numerics.rng import key_for
from fedbench.core.numerics.wrappers import as_floats
from fedbench.core.spec.federation import FederationSpec


def public_facts(
    config: FederationSpec,
    *,
    defense: Defense,
    clients: int,
    n_classes: int,
    n_params: int,
    expected_malicious: int,
    thresholds: bool,
) -> Federation:
    """The public facts, known before round 1."""
    rules = acting(defense, "aggregate")
    return Federation(
        clients=clients,
        rounds=config.rounds,
        local_epochs=config.local_epochs,
        batch_size=config.batch_size,
        participation=config.participation,
        n_classes=n_classes,
        n_params=n_params,
        assumed_malicious=expected_malicious,
        thresholds=thresholds,
        aggregation=type(rules[0]).__name__ if rules else "mean",
        weights="shuffled" if config.weight_order == "shuffled" else config.weights,
    )


@dataclass(frozen=True, kw_only=True)
class Insider:
    """An adversary inside the federation: it controls the last ``malicious`` clients from
    ``start_round`` on.

    ``knowledge``: what the setting grants it. ``x``, ``y``: its attack set; ``mask_x``, ``mask_y``:
    its mask set.
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
    """One training. ``config``: the suite's ``federation``; ``expected_malicious``: number of
    malicious clients that the server's rule assumes. ``clients``: each client's own data;
    ``members``: the ids that defend, ascending.

    ``initial``: [s, P] the starting parameters of the s global models. ``insider``: the adversary
    among the clients. ``root``: the server's own samples, if its rule wants some. ``thresholds``:
    each client's tolerance, if it has one. ``keep_unprotected``: also hand out the updates as they
    were before ``protect`` and ``coordinate``.
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
            raise ValueError(
                f"the members {self.members} are not those of the coalitions {self.coalitions}"
            )

    @cached_property
    def coalitions(self) -> tuple[tuple[int, ...], ...]:
        """The members of each coalition: one with all members, several, or none in a federation
        without members.
        """
        if isinstance(self.defense, Coalitions):
            return self.defense.groups
        return (self.members,) if self.members else ()

    @property
    def device(self) -> torch.device:
        """Where everything lives."""
        return self.flat.params.device

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """[K] number of training samples of each client, including samples that a defense holds
        out.
        """
        return tuple(len(d.trainable) for d in self.clients)

    @property
    def weighing(self) -> tuple[float, ...]:
        """[K] what the server weighs each client's update by, to be divided by the sum over those
        who are present.
        """
        return tuple(1.0 if self.config.weights == "equal" else float(n) for n in self.sizes)

    @cached_property
    def facts(self) -> Federation:
        """The public facts."""
        return public_facts(
            self.config,
            defense=self.defense,
            clients=len(self.clients),
            n_classes=self.n_classes,
            n_params=self.flat.params.numel(),
            expected_malicious=self.expected_malicious,
            thresholds=self.thresholds is not None,
        )

    @property
    def malicious(self) -> tuple[int, ...]:
        """Ids of the clients the adversary controls: the last ones."""
        n = len(self.clients)
        return tuple(range(n - self.insider.malicious, n)) if self.insider else ()


@dataclass(kw_only=True)
class Uploads:
    """The uploads of a round, before aggregation.

    ``participants``: ids in row order; ``updates``: [n, P] as uploaded; ``buffers``: [n, B] client
    buffers as uploaded, ``counts``: [n, I] the integer ones; ``model_of``: [n] index of the global
    model each one contributes to; ``start_of``: [n] index of the model it started from among
    ``starts`` [S, P] (``start_buffers`` [S, B], ``start_counts`` [S, I]): first the current global
    models, then the older ones that delayed clients still had. ``unprotected``: [n, P] the
    updates before any protection, if requested.
    """

    round: int
    participants: tuple[int, ...]
    updates: torch.Tensor
    buffers: torch.Tensor
    counts: torch.Tensor
    model_of: list[int]
    start_of: list[int]
    starts: torch.Tensor
    start_buffers: torch.Tensor
    start_counts: torch.Tensor
    unprotected: torch.Tensor | None = None

    def keep(self, rows: list[int]) -> None:
        """Leave only these rows."""
        self.participants = tuple(self.participants[r] for r in rows)
        self.updates, self.buffers, self.counts = (
            self.updates[rows],
            self.buffers[rows],
            self.counts[rows],
        )
        self.model_of, self.start_of = (
            [self.model_of[r] for r in rows],
            [self.start_of[r] for r in rows],
        )
        self.unprotected = None if self.unprotected is None else self.unprotected[rows]


@dataclass(kw_only=True)
class RoundResult:
    """A finished round: the uploads, and the new global models [s, P], buffers [s, B] with counts
    [s, I], and steps [s, P].

    ``rejected``: malicious clients with non-finite rows, which the server dropped from the uploads.
    ``assignment``: [K] the global model of every client.
    """

    uploads: Uploads
    models: torch.Tensor
    buffers: torch.Tensor
    counts: torch.Tensor
    steps: torch.Tensor
    rejected: tuple[int, ...] = ()
    assignment: tuple[int, ...] = ()


# --- contexts and memories ------------------------------------------------------------------------


class MemberTools:
    """What the numerics compute for a member (``contract.contexts.Tools``)."""

    normalise = staticmethod(as_floats)
    per_sample_gradients = staticmethod(per_sample_gradients)
    clipped_gradient = staticmethod(clipped_gradient)


class Parties:
    """The parties of one training. ``shares``: [K] what each client's update weighs among all."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._memories: dict[Any, dict[str, Any]] = {}
        weighing = torch.tensor(setup.weighing, dtype=torch.float64)
        self.shares = tuple(float(w) for w in weighing / weighing.sum())

    def memory(self, who: Any) -> dict[str, Any]:
        """The memory of a party, which lasts for the run."""
        return self._memories.setdefault(who, {})

    def key(self, phase: str, round: int, client: int = 0) -> int:
        """Key of a defense's random draws in one phase."""
        return key_for(self._setup.seed, f"defense:{phase}", round, client)

    def member(
        self, phase: str, round: int, k: int, data: MemberData, start: torch.Tensor
    ) -> MemberContext:
        """Client ``k``, which received ``start`` [P]; the model is the live one."""
        setup, flat = self._setup, self._setup.flat
        return MemberContext(
            key=self.key(phase, round, k),
            device=setup.device,
            federation=setup.facts,
            client=k,
            round=round,
            epoch=max(round - 1, 0) * setup.config.local_epochs,
            data=data,
            model=flat.module,
            params=flat.params,
            start=start,
            memory=self.memory(k),
            tools=MemberTools(),
            privacy_threshold=setup.thresholds[k] if setup.thresholds else None,
        )

    def coalition(
        self, phase: str, round: int, members: tuple[int, ...], present: tuple[int, ...]
    ) -> CoalitionContext:
        """The coordinator of the coalition of these ``members`` with those of them that are
        ``present``.

        Its random draws are keyed by the coalition's first member, so that each coalition draws as
        it would alone.
        """
        setup = self._setup
        return CoalitionContext(
            key=self.key(phase, round, members[0]),
            device=setup.device,
            federation=setup.facts,
            members=members,
            present=present,
            sizes=tuple(setup.sizes[k] for k in members),
            weights=tuple(self.shares[k] for k in members),
            round=round,
            memory=self.memory(_coordinator(members)),
        )

    def answer_context(self, round: int, j: int, served: tuple[int, ...]) -> AnswerContext:
        """The context for answers of global model ``j`` after ``round``, which serves the members
        ``served``.

        A model has one answer: of several coalitions, the first with a member that the model serves
        gives it.
        """
        setup = self._setup
        members = next(
            (group for group in setup.coalitions if set(group) & set(served)), setup.coalitions[0]
        )
        return AnswerContext(
            key=self.key("answer", round, j),
            device=setup.device,
            federation=setup.facts,
            members=members,
            served=tuple(k for k in served if k in members),
            round=round,
            model_index=j,
            coalition=MappingProxyType(self.memory(_coordinator(members))),
            of_member={k: MappingProxyType(self.memory(k)) for k in members},
        )

    def reports(self, models: int) -> list[ReportContext]:
        """After the last round, with ``models`` global models: one for each coalition, one in a
        federation without members. Each has the server's memories.
        """
        of_server = {j: self.memory(("server", j)) for j in range(models)}
        return [
            ReportContext(
                federation=self._setup.facts,
                members=members,
                coalition=self.memory(_coordinator(members)),
                of_member={k: self.memory(k) for k in members},
                of_server=of_server,
            )
            for members in self._setup.coalitions or ((),)
        ]


def _coordinator(members: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """The party that a coalition's coordinator is."""
    return "coordinator", members
