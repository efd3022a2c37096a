"""What each party knows when a phase is called: contexts made for it, and the memories it keeps."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import torch

from fedbench.core.contract.contexts import AnswerContext, CoalitionContext, MemberContext, ReportContext
from fedbench.core.contract.samples import MemberData
from fedbench.core.federation.setup import Setup
from fedbench.core.numerics.clipped import clipped_gradient
from fedbench.core.numerics.normalise import as_floats
from fedbench.core.numerics.per_sample import per_sample_gradients
from fedbench.core.numerics.rng import key_for


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
        """A party's own, from its first phase to its last."""
        return self._memories.setdefault(who, {})

    def key(self, phase: str, round: int, client: int = 0) -> int:
        """Of a defense's random draws in one phase."""
        return key_for(self._setup.seed, f"defense:{phase}", round, client)

    def member(self, phase: str, round: int, k: int, data: MemberData, start: torch.Tensor) -> MemberContext:
        """Client ``k``, which received ``start`` [P]; the model is the live one."""
        setup, flat = self._setup, self._setup.flat
        return MemberContext(
            key=self.key(phase, round, k), device=setup.device, federation=setup.facts, client=k, round=round,
            epoch=max(round - 1, 0) * setup.config.local_epochs, data=data, model=flat.module, params=flat.params,
            start=start, memory=self.memory(k), tools=MemberTools(),
            privacy_threshold=setup.thresholds[k] if setup.thresholds else None,
        )  # fmt: skip

    def coalition(self, phase: str, round: int, members: tuple[int, ...], present: tuple[int, ...]) -> CoalitionContext:
        """The coordinator of the coalition of these ``members`` with those of them that are ``present``.

        Its draws are named by the coalition's first member: of several coalitions each draws as it would alone.
        """
        setup = self._setup
        return CoalitionContext(
            key=self.key(phase, round, members[0]), device=setup.device, federation=setup.facts, members=members, present=present,
            sizes=tuple(setup.sizes[k] for k in members), weights=tuple(self.shares[k] for k in members),
            round=round, memory=self.memory(_coordinator(members)),
        )  # fmt: skip

    def asked(self, round: int, j: int, served: tuple[int, ...]) -> AnswerContext:
        """Whoever answers for global model ``j``, which came of ``round`` and is that of the members ``served``.

        A model has one answer: of several coalitions, the first one with a member whose model it is gives it.
        """
        setup = self._setup
        members = next((group for group in setup.coalitions if set(group) & set(served)), setup.coalitions[0])
        return AnswerContext(
            key=self.key("answer", round, j), device=setup.device, federation=setup.facts, members=members,
            served=tuple(k for k in served if k in members), round=round, model_index=j,
            coalition=MappingProxyType(self.memory(_coordinator(members))),
            of_member={k: MappingProxyType(self.memory(k)) for k in members},
        )  # fmt: skip

    def reports(self, models: int) -> list[ReportContext]:
        """After the last round, with ``models`` global models: one for each coalition, one where nobody defends. The server is
        everybody's: each of them has its memories."""
        of_server = {j: self.memory(("server", j)) for j in range(models)}
        return [
            ReportContext(
                federation=self._setup.facts, members=members, coalition=self.memory(_coordinator(members)),
                of_member={k: self.memory(k) for k in members}, of_server=of_server,
            ) for members in self._setup.coalitions or ((),)
        ]  # fmt: skip


def _coordinator(members: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """The party that a coalition's coordinator is."""
    return "coordinator", members
