"""Inputs and results of a training, and the contexts that its parties are handed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedbench.core.contract.attack import LEVELS, ActiveAttack, Knowledge, KnowledgeLevel
from fedbench.core.contract.contexts import (
    AnswerContext,
    CoalitionContext,
    Federation,
    MemberContext,
    ReportContext,
    ServerContext,
)
from fedbench.core.contract.defense import Defense, acting
from fedbench.core.contract.samples import MemberData
from fedbench.core.federation.compose import Coalitions
from fedbench.core.numerics.flat import FlatModel, ModelState
from fedbench.core.numerics.gradients import clipped_gradient
from fedbench.core.numerics.per_sample import per_sample_gradients
from fedbench.core.numerics.rng import key_for
from fedbench.core.numerics.wrappers import as_floats
from fedbench.core.spec.federation import FederationSpec

if TYPE_CHECKING:
    from fedbench.core.federation.bench import Bench


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
        local_batches=config.local_batches,
    )


@dataclass(frozen=True, kw_only=True)
class Insider:
    """An adversary inside the federation: it controls its last clients."""

    attack: ActiveAttack
    malicious: int
    """how many clients it controls"""
    knowledge: KnowledgeLevel
    """what the setting grants it"""
    start_round: int
    x: Tensor
    """samples of its attack set"""
    y: Tensor
    mask_x: Tensor
    """samples of its mask set"""
    mask_y: Tensor


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Inputs of a training."""

    config: FederationSpec
    """the suite's ``federation``"""
    seed: int
    flat: FlatModel
    clients: list[MemberData]
    """each client's own data"""
    n_classes: int
    defense: Defense
    members: tuple[int, ...]
    """ids of the clients that defend, ascending"""
    initial: Tensor
    """[s, P] starting parameters of the s global models"""
    insider: Insider | None = None
    """the adversary among the clients"""
    root: MemberData | None = None
    """the server's own samples, if its rule wants some"""
    thresholds: tuple[float, ...] | None = None
    """each client's tolerance, if it has one"""
    keep_unprotected: bool = False
    """also hand out the updates as they were before ``protect`` and ``coordinate``"""
    expected_malicious: int = 0
    """number of malicious clients that the server's rule assumes"""

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
        """Number [K] of training samples of each client, with those that a defense holds out."""
        return tuple(len(d.trainable) for d in self.clients)

    @property
    def weighing(self) -> tuple[float, ...]:
        """Weights [K] of the clients' updates at the server, to be divided by their sum over the
        present clients.
        """
        if self.config.weights == "equal":
            return (1.0,) * len(self.sizes)
        return tuple(map(float, self.sizes))

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
        if self.insider is None:
            return ()
        n = len(self.clients)
        return tuple(range(n - self.insider.malicious, n))


@dataclass(kw_only=True)
class Uploads:
    """The uploads of a round, before aggregation."""

    round: int
    participants: tuple[int, ...]
    """ids in row order"""
    updates: Tensor
    """[n, P] as uploaded"""
    buffers: Tensor
    """[n, B] floating-point buffers as uploaded"""
    counts: Tensor
    """[n, I] the other buffers as uploaded"""
    model_of: list[int]
    """[n] index of the global model that each one contributes to"""
    start_of: list[int]
    """[n] index, among ``starts``, of the model that each one started from"""
    starts: ModelState
    """first the current global models, then the older ones that delayed clients still had"""
    unprotected: Tensor | None = None
    """[n, P] updates before any protection, if requested"""
    weights: tuple[float, ...] | None = None
    """[K] weights of the clients, 0 for an absent one, where they are those of this round alone"""

    def rows_of(self, clients: Collection[int]) -> list[int]:
        """Rows of those of the ``clients`` that are present."""
        return [r for r, k in enumerate(self.participants) if k in clients]

    def rows_of_model(self, j: int) -> list[int]:
        """Rows that contribute to global model ``j``."""
        return [r for r, model in enumerate(self.model_of) if model == j]

    def keep(self, rows: list[int]) -> None:
        """Leave only these rows."""
        self.participants = tuple(self.participants[r] for r in rows)
        self.model_of = [self.model_of[r] for r in rows]
        self.start_of = [self.start_of[r] for r in rows]
        for name in ("updates", "buffers", "counts", "unprotected"):
            if (values := getattr(self, name)) is not None:
                setattr(self, name, values[rows])


@dataclass(kw_only=True)
class RoundResult:
    """A finished round."""

    uploads: Uploads
    state: ModelState
    """the new global models"""
    steps: Tensor
    """[s, P] from the old global parameters to the new ones"""
    rejected: tuple[int, ...] = ()
    """malicious clients with rows that are not finite, which the server dropped"""
    assignment: tuple[int, ...] = ()
    """[K] the global model of every client"""

    @property
    def models(self) -> Tensor:
        """Parameters [s, P] of the new global models."""
        return self.state.params


# --- contexts and memories ------------------------------------------------------------------------


class MemberTools:
    """Computations of the numerics for a member (``contract.contexts.Tools``)."""

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

    def memory(self, party: Any) -> dict[str, Any]:
        """The memory of a party, which lasts for the run."""
        return self._memories.setdefault(party, {})

    def key(
        self,
        phase: str,
        round: int,
        client: int = 0,
    ) -> int:
        """Key of a defense's random draws in one phase."""
        return key_for(self._setup.seed, f"defense:{phase}", round, client)

    def member(
        self,
        phase: str,
        round: int,
        k: int,
        data: MemberData,
        start: Tensor,
    ) -> MemberContext:
        """Client ``k``, which received ``start`` [P]; the model is the live one."""
        setup = self._setup
        flat = self._setup.flat
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
            task=flat.task,
            privacy_threshold=setup.thresholds[k] if setup.thresholds else None,
        )

    def coalition(
        self,
        phase: str,
        round: int,
        members: tuple[int, ...],
        present: tuple[int, ...],
    ) -> CoalitionContext:
        """The coordinator of the coalition of these ``members`` with those of them that are
        ``present``.

        Random draws are keyed by the coalition's first member, so that each coalition draws as it
        would alone.
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
            memory=self.memory(("coordinator", members)),
        )

    def knowledge(
        self,
        insider: Insider,
        uploads: Uploads,
        rows: list[int],
        bench: Bench,
        rule: Callable[[Tensor], Tensor],
    ) -> Knowledge:
        """The adversary's context; ``rows``: of its clients; ``bench``: its own training, from the
        model that they received; ``rule``: the server's step of rows of its choice.
        """
        setup = self._setup
        knowledge = Knowledge(
            key=key_for(setup.seed, "adversary", uploads.round),
            device=setup.device,
            federation=setup.facts,
            round=uploads.round,
            clients=tuple(uploads.participants[r] for r in rows),
            start=bench.start.params.clone(),  # a copy: the adversary may write to it
            model=setup.flat.module,
            x=insider.x,
            y=insider.y,
            mask_x=insider.mask_x,
            mask_y=insider.mask_y,
            memory=self.memory("adversary"),
            step=bench.step,
            train=bench.train,
            sample_steps=bench.sample_steps,
            logits=bench.logits,
        )
        granted = LEVELS[: LEVELS.index(insider.knowledge) + 1]
        if "own" in granted:
            knowledge = replace(knowledge, own=uploads.updates[rows])
        if "honest" in granted:
            honest = [r for r in range(len(uploads.participants)) if r not in rows]
            knowledge = replace(knowledge, honest=uploads.updates[honest])
        if "rule" in granted:
            knowledge = replace(knowledge, rule=rule)
        return knowledge

    def server(
        self,
        uploads: Uploads,
        j: int,
        purpose: str,
        memory: dict[str, Any],
        rejected: int,
        model: ModelState,
    ) -> ServerContext:
        """The server's context for a step of global model ``j``, but for its own training;
        ``rejected``: number of malicious rows that it dropped; ``model``: with its buffers.
        """
        setup = self._setup
        flat = setup.flat
        participants = tuple(uploads.participants[r] for r in uploads.rows_of_model(j))
        return ServerContext(
            key=self.key(f"{purpose}{j}", uploads.round),
            device=setup.device,
            federation=setup.facts,
            round=uploads.round,
            params=uploads.starts.params[j],
            participants=participants,
            sizes=tuple(setup.sizes[k] for k in participants),
            memory=memory,
            model_index=j,
            assumed_malicious=max(0, setup.facts.assumed_malicious - rejected),
            layers=flat.layers,
            input_shape=setup.clients[0].x.shape[1:],
            root=setup.root,
            logits=lambda params, x: flat.logits(replace(model, params=params), x),
        )

    def answer_context(
        self,
        round: int,
        j: int,
        served: tuple[int, ...],
    ) -> AnswerContext:
        """The context for answers of global model ``j`` after ``round``, which serves the members
        ``served``.

        A model has one answer: of several coalitions, the first with a member that the model serves
        gives it.
        """
        setup = self._setup
        groups = [group for group in setup.coalitions if set(group) & set(served)]
        members = (*groups, *setup.coalitions)[0]
        return AnswerContext(
            key=self.key("answer", round, j),
            device=setup.device,
            federation=setup.facts,
            members=members,
            served=tuple(k for k in served if k in members),
            round=round,
            model_index=j,
            coalition=MappingProxyType(self.memory(("coordinator", members))),
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
                coalition=self.memory(("coordinator", members)),
                of_member={k: self.memory(k) for k in members},
                of_server=of_server,
            )
            for members in self._setup.coalitions or ((),)
        ]
