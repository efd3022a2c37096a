"""Base class of defenses. Each method is a phase of ``phases.py``; the defaults give plain FedAvg."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from fedbench.core.contract.components import Configured
from fedbench.core.contract.contexts import (
    AnswerContext,
    CoalitionContext,
    Federation,
    MemberContext,
    ReportContext,
    ServerContext,
)
from fedbench.core.contract.phases import phase, phases
from fedbench.core.contract.samples import Batch, MemberData, Selection

if TYPE_CHECKING:
    import torch

FactValue = bool | int | float | str | list[int] | list[float] | list[str]  # what a fact may be
LONGEST_FACT = 1000  # elements or characters
LARGEST_FACT = 2**63
REMARKS = "remarks"  # the fact that is a list of sentences


def is_fact(value: object) -> bool:
    """Whether a record may hold ``value``: a finite number, a short text, or a short list of one of
    these types.
    """
    if isinstance(value, list):
        alike = len({type(v) for v in value}) <= 1 and len(value) <= LONGEST_FACT
        return alike and all(type(v) in (int, float, str) and is_fact(v) for v in value)
    if type(value) is str:
        return len(value) <= LONGEST_FACT
    if type(value) is int:
        return abs(value) <= LARGEST_FACT
    return type(value) is bool or (type(value) is float and math.isfinite(value))


class Defense(Configured):
    """Base of a defense plugin: override the phases it acts in.

    One instance serves one coalition in one run. Keep a member's state in ``ctx.memory`` and the
    coalition's plan on ``self``.
    """

    # how many global models the server keeps (``assign`` picks among them); 0: one for every client
    n_models: int = 1
    least_members: int = 1  # smallest coalition that it accepts
    # initial models are redrawn until each is picked by this share of the members
    least_share: float = 0.0
    parts: tuple[Defense, ...] = ()  # of a composite: the defenses that it applies
    # how many samples of its own the server needs in ``aggregate`` (``ctx.root``)
    root_samples: int = 0
    # phases that use a member's data beyond each example by itself; None: not declared
    private: Collection[str] | None = None
    # phases in which private data may be used, as the noise behind this one's epsilon hides it
    covers: Collection[str] = ()

    def check(self, federation: Federation) -> None:
        """Raise ``UserError`` for a federation that this defense does not support. Called before
        training.
        """

    def remarks(self, federation: Federation) -> Sequence[str]:
        """Warnings about this defense in this federation, in whole sentences, e.g. noise that is
        larger than the updates. Printed with the plan and kept as notes of the records. For
        mistakes use ``check``.
        """
        return ()

    def begin(self, ctx: CoalitionContext) -> None:
        """Plan once, before round 1, from public facts only."""

    def prepare(self, data: MemberData, ctx: MemberContext) -> MemberData:
        """One-time change of a member's own data (``ctx.round`` is 0): soft labels, a held-out
        part.
        """
        return data

    def assign(self, models: torch.Tensor, ctx: MemberContext) -> int:
        """Pick one of the global models [s, P] for this round; called only when ``n_models`` > 1."""
        return 0

    def select(self, ctx: MemberContext) -> Selection | None:
        """Which of the member's samples to train on this round; None: all that are not held out."""
        return None

    def transform(self, batch: Batch, ctx: MemberContext) -> Batch:
        """Change a batch before the forward pass."""
        return batch

    def loss(self, logits: torch.Tensor, batch: Batch, ctx: MemberContext) -> torch.Tensor:
        """Scalar training loss of a batch; ``logits``: [B, C]. Default: mean cross-entropy (soft
        targets honoured).
        """
        from torch.nn.functional import cross_entropy

        return cross_entropy(logits, batch.y if batch.soft is None else batch.soft)

    def local_step(self, batch: Batch, ctx: MemberContext) -> torch.Tensor | None:
        """Gradient [P] to hand to the optimiser for this (transformed) batch; None: backward
        through ``loss``.
        """
        return None

    def local_train(self, ctx: MemberContext) -> None:
        """The member's whole local training; call ``ctx.train()`` for the standard loop, write
        ``ctx.params``.
        """
        ctx.train()

    def protect(self, update: torch.Tensor, ctx: MemberContext) -> torch.Tensor:
        """Change the member's own update [P] (local minus received parameters) before upload."""
        return update

    def coordinate(self, updates: torch.Tensor, ctx: CoalitionContext) -> torch.Tensor:
        """Change the present members' updates [d, P] together (rows in the order of
        ``ctx.present``).
        """
        return updates

    def aggregate(
        self, updates: torch.Tensor, weights: torch.Tensor, ctx: ServerContext
    ) -> torch.Tensor:
        """Server: updates [n, P] and weights [n] (summing to 1) -> the global step [P]. Default:
        FedAvg.
        """
        return weights @ updates

    def after_round(self, ctx: MemberContext) -> None:
        """Learn from the round: ``ctx.model`` is the member's own model as trained, before any
        protection; ``ctx.ask_global(x)`` gives logits of the new global model.
        """

    def answer(self, logits: torch.Tensor, ctx: AnswerContext) -> torch.Tensor:
        """Answer to a query of a global model: its logits [n, C] on a chunk of samples -> the
        answered logits [n, C].

        The answer for a sample must not depend on other samples of the chunk and must be the same
        for repeated queries. The views ``client`` and ``external`` and the test accuracy are
        measured on it. It does not protect against the server, which has the uploads, nor against a
        client that reads the parameters it received. Called without gradients
        (``torch.enable_grad`` enables them).
        """
        return logits

    def report(self, ctx: ReportContext) -> Mapping[str, FactValue]:
        """Facts about the finished run, for its records: epsilon, a bandit's choices, bytes sent,
        assignments missed.

        The fact ``remarks`` is a list of whole sentences about the run (noise that did not cancel,
        classes without training samples), printed under the ranking of a board.
        """
        return {}


def overrides(defense: Defense, name: str) -> bool:
    """Whether ``defense`` overrides the phase ``name``, in its class or by an attribute. Raises
    ``LookupError`` for an unknown phase.
    """
    row = phase(name)
    if defense.parts:
        return any(overrides(part, row.name) for part in defense.parts)
    return row.name in vars(defense) or getattr(type(defense), row.name) is not getattr(
        Defense, row.name
    )


def acting(defense: Defense, name: str) -> list[Defense]:
    """The defenses that override the phase ``name``: the defense itself, or the innermost parts of
    a composite.
    """
    return [part for part in innermost(defense) if overrides(part, name)]


def innermost(defense: Defense) -> list[Defense]:
    """The innermost parts of a composite, in order; of another defense itself."""
    return (
        [part for own in defense.parts for part in innermost(own)] if defense.parts else [defense]
    )


def voids(part: Defense, covered: Collection[str]) -> str:
    """Why ``part`` voids an epsilon that another defense reports, with noise that covers the phases
    ``covered``; empty if not.

    A class declares its own ``private``, as a subclass may do more than its base; without it
    nothing is known of a defense that overrides a phase with access to a member's data.
    """
    name, declared = type(part).__name__, vars(type(part)).get("private")
    acts = any(overrides(part, phase) for phase in (*phases(party=("member",)), "answer"))
    if acts and declared is None:
        return f"{name} does not declare where it uses private data"
    where = ", ".join(phase for phase in declared or () if phase not in covered)
    return f"{name} uses private data outside the noise, in {where}" if where else ""


def needs_coalition(defense: Defense) -> bool:
    """Whether clients act in it. If not (a server rule, or no defense), one run serves every
    coalition.
    """
    return defense.n_models != 1 or any(
        overrides(defense, name) for name in phases(party=("coalition", "member"))
    )
