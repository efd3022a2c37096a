"""Base class of defenses: methods are phases of ``phases.py``, with plain FedAvg as default."""

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
from fedbench.core.contract.phases import PHASES, phase, phases
from fedbench.core.contract.samples import Batch, MemberData, Selection
from fedbench.core.contract.task import CLASSIFICATION, EVERY_TASK, Task, unserved

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from torch import Tensor

FactValue = bool | int | float | str | list[int] | list[float] | list[str]  # what a fact may be
LONGEST_FACT = 1000  # elements or characters
LARGEST_FACT = 2**63
REMARKS = "remarks"  # the fact that is a list of sentences


def is_fact(value: object) -> bool:
    """Whether a record may hold ``value``: a finite number, a short text, or a short list of one of
    these types.
    """
    if isinstance(value, list):
        types = {type(v) for v in value}
        if len(types) > 1 or len(value) > LONGEST_FACT or not types <= {int, float, str}:
            return False
        return all(map(is_fact, value))
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

    n_models: int = 1
    """global models that the server keeps (``assign`` picks among them); 0: one for every client"""
    least_members: int = 1
    """smallest coalition that it accepts"""
    least_share: float = 0.0
    """initial models are redrawn until each is picked by this share of the members"""
    parts: tuple[Defense, ...] = ()
    """of a composite: the defenses that it applies"""
    root_samples: int = 0
    """samples of its own that the server needs in ``aggregate`` (``ctx.root``)"""
    private: Collection[str] | None = None
    """phases that use a member's data beyond each example by itself; None: not declared"""
    covers: Collection[str] = ()
    """phases in which private data may be used, as the noise behind this one's epsilon hides it"""

    @property
    def tasks(self) -> frozenset[str]:
        """Tasks that it serves; every one, if it acts on updates alone."""
        of_updates = *phases(stage=("upload", "rows", "server")), "report"
        if any(overrides(self, name) for name in PHASES if name not in of_updates):
            return CLASSIFICATION
        return EVERY_TASK

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
        """Change a member's own data once (``ctx.round`` is 0): soft labels, a held-out part."""
        return data

    def assign(self, models: Tensor, ctx: MemberContext) -> int:
        """Pick one of the global models [s, P] for this round, when ``n_models`` > 1."""
        return 0

    def select(self, ctx: MemberContext) -> Selection | None:
        """Choose the member's samples of this round; None: all that are not held out."""
        return None

    def transform(self, batch: Batch, ctx: MemberContext) -> Batch:
        """Change a batch before the forward pass."""
        return batch

    def loss(self, logits: Tensor, batch: Batch, ctx: MemberContext) -> Tensor:
        """Scalar training loss of a batch; ``logits``: [B, C]. Default: the task's mean loss (soft
        targets honoured).
        """
        return ctx.task.loss(logits, batch.target)

    def local_step(self, batch: Batch, ctx: MemberContext) -> Tensor | None:
        """Gradient [P] to hand to the optimiser for this (transformed) batch; None: backward
        through ``loss``.
        """
        return None

    def local_train(self, ctx: MemberContext) -> None:
        """Do the member's whole local training: call ``ctx.train()`` for the standard loop, write
        ``ctx.params``.
        """
        ctx.train()

    def protect(self, update: Tensor, ctx: MemberContext) -> Tensor:
        """Change the member's own update [P] (local minus received parameters) before upload."""
        return update

    def coordinate(self, updates: Tensor, ctx: CoalitionContext) -> Tensor:
        """Change the present members' updates [d, P] together (rows in the order of
        ``ctx.present``).
        """
        return updates

    def aggregate(self, updates: Tensor, weights: Tensor, ctx: ServerContext) -> Tensor:
        """Combine updates [n, P] by weights [n] (summing to 1) into the global step [P]. Default:
        FedAvg.
        """
        return weights @ updates

    def after_round(self, ctx: MemberContext) -> None:
        """Learn from the round: ``ctx.model`` is the member's own model as trained, before any
        protection; ``ctx.ask_global(x)`` gives logits of the new global model.
        """

    def answer(self, logits: Tensor, ctx: AnswerContext) -> Tensor:
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

    def privacy_event(self, unit: str, client: int, ctx: ReportContext) -> DpEvent | None:
        """Return the event of dp-accounting of all that the phases in ``private`` make of one
        ``unit`` (``example`` or ``client``) of a client, in the whole run; None: no noise hides it.

        With the events of all parts a composite states the epsilon of them together.
        """
        return None


def overrides(defense: Defense, name: str) -> bool:
    """Whether ``defense`` overrides the phase ``name``, in its class or by an attribute.
    ``LookupError`` for an unknown phase.
    """
    phase(name)
    if defense.parts:
        return any(overrides(part, name) for part in defense.parts)
    return name in vars(defense) or getattr(type(defense), name) is not getattr(Defense, name)


def acting(defense: Defense, name: str) -> list[Defense]:
    """Innermost parts that override the phase ``name``."""
    return [part for part in innermost(defense) if overrides(part, name)]


def innermost(defense: Defense) -> list[Defense]:
    """Innermost parts of a composite, in order; of another defense itself."""
    if not defense.parts:
        return [defense]
    parts = []
    for part in defense.parts:
        parts += innermost(part)
    return parts


def unserved_by(defense: Defense, task: Task) -> str:
    """Reason why a part of ``defense`` does not serve ``task``; empty if all do."""
    reasons = (unserved(task, part.tasks, type(part).__name__) for part in innermost(defense))
    return next(filter(None, reasons), "")


def voids(part: Defense, covered: Collection[str]) -> str:
    """Reason why ``part`` voids an epsilon that another defense reports, with noise that covers the
    phases ``covered``; empty if it does not.

    A class declares its own ``private``, as a subclass may do more than its base; without it
    nothing is known of a defense that overrides a phase with access to a member's data.
    """
    name = type(part).__name__
    declared = part.private if "private" in vars(type(part)) else None
    if declared is None:
        acts = any(overrides(part, phase) for phase in (*phases(party=("member",)), "answer"))
        return f"{name} does not declare where it uses private data" if acts else ""
    uncovered = ", ".join(phase for phase in declared if phase not in covered)
    return f"{name} uses private data outside the noise, in {uncovered}" if uncovered else ""


def needs_coalition(defense: Defense) -> bool:
    """Whether clients act in it. If not (a server rule, or no defense), one run serves every
    coalition.
    """
    names = phases(party=("coalition", "member"))
    return defense.n_models != 1 or any(overrides(defense, name) for name in names)
