"""A defense acts in any of the phases of ``phases.py``; every default is plain FedAvg."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
    """Whether ``value`` may stand in a record: a finite number, a short text, or a short list of one kind of them."""
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

    One instance serves a whole coalition for one run (of several at once, each has its own). Keep what one member learns in
    ``ctx.memory``, what the coalition planned on ``self``.
    """

    n_models: int = 1  # how many global models the server keeps (``assign`` picks among them); 0: one for every client
    least_members: int = 1  # how many clients it takes to defend this way: a coalition of fewer is refused
    least_share: float = 0.0  # initial models are drawn anew until each is picked by this share of the members (good start)
    parts: tuple[Defense, ...] = ()  # the defenses that a composite applies: it acts wherever one of them does
    root_samples: int = 0  # how many samples of its own the server needs in ``aggregate`` (``ctx.root``)

    def check(self, federation: Federation) -> None:
        """Raise ``UserError`` for a federation this defense cannot serve; asked before anything is trained."""

    def remarks(self, federation: Federation) -> Sequence[str]:
        """What a user should know of this defense in this federation before anything is trained, in whole sentences: a patience
        that never stops, noise that drowns the updates. Printed with a plan, kept as notes of the records; a mistake is for
        ``check``."""
        return ()

    def begin(self, ctx: CoalitionContext) -> None:
        """Plan once, before round 1, from public facts only."""

    def prepare(self, data: MemberData, ctx: MemberContext) -> MemberData:
        """One-time change of a member's own data (``ctx.round`` is 0): soft labels, a held-out part."""
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
        """Scalar training loss of a batch; ``logits``: [B, C]. Default: mean cross-entropy (soft targets honoured)."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(logits, batch.y if batch.soft is None else batch.soft)

    def local_step(self, batch: Batch, ctx: MemberContext) -> torch.Tensor | None:
        """Gradient [P] to hand to the optimiser for this (transformed) batch; None: backward through ``loss``."""
        return None

    def local_train(self, ctx: MemberContext) -> None:
        """The member's whole local training; call ``ctx.train()`` for the standard loop, write ``ctx.params``."""
        ctx.train()

    def protect(self, update: torch.Tensor, ctx: MemberContext) -> torch.Tensor:
        """Change the member's own update [P] (local minus received parameters) before upload."""
        return update

    def coordinate(self, updates: torch.Tensor, ctx: CoalitionContext) -> torch.Tensor:
        """Change the present members' updates [d, P] together (rows in the order of ``ctx.present``)."""
        return updates

    def aggregate(self, updates: torch.Tensor, weights: torch.Tensor, ctx: ServerContext) -> torch.Tensor:
        """Server: updates [n, P] and weights [n] (summing to 1) -> the global step [P]. Default: FedAvg."""
        return weights @ updates

    def after_round(self, ctx: MemberContext) -> None:
        """Learn from the round: ``ctx.model`` holds the member's own model as trained, before any protection, and
        ``ctx.ask_global(x)`` answers for the global model that came of it."""

    def answer(self, logits: torch.Tensor, ctx: AnswerContext) -> torch.Tensor:
        """What somebody who only asks a global model is answered: logits [n, C] of a chunk of samples -> [n, C].

        A sample's answer must depend on no other sample of the chunk, and be the same whenever it is asked for. It is what
        the views ``client`` and ``external`` see, and what the test accuracy is counted on. It changes nothing for the
        server, who has the uploads, nor for gradients, which are had from parameters: a client that does not ask but reads
        the parameters it was sent is not held up by it. Called without gradients (``torch.enable_grad`` gives them).
        """
        return logits

    def report(self, ctx: ReportContext) -> Mapping[str, FactValue]:
        """Facts about the finished run, for its records: epsilon, a bandit's choices, bytes sent, assignments missed.

        ``remarks``, a list of whole sentences, is what a reader of the row must know of the run (noise that did not cancel, a
        part of the classes that nobody trained on): a board prints them under its ranking."""
        return {}


def overrides(defense: Defense, name: str) -> bool:
    """Whether ``defense`` acts in the phase ``name``, by its class or by what its constructor set; the engine takes the plain
    fast path where it does not.

    Raises ``LookupError`` for a name that is no phase.
    """
    row = phase(name)
    if defense.parts:
        return any(overrides(part, row.name) for part in defense.parts)
    return row.name in vars(defense) or getattr(type(defense), row.name) is not getattr(Defense, row.name)


def acting(defense: Defense, name: str) -> list[Defense]:
    """Who acts in the phase ``name``: the defense itself or, of one that is made of others, the innermost of its parts."""
    return [part for part in innermost(defense) if overrides(part, name)]


def innermost(defense: Defense) -> list[Defense]:
    """What it is made of, in order; itself, if of nothing else."""
    return [part for own in defense.parts for part in innermost(own)] if defense.parts else [defense]


def needs_coalition(defense: Defense) -> bool:
    """Whether some client does anything: one run of a server's rule, or of no defense, serves every coalition."""
    return defense.n_models != 1 or any(overrides(defense, name) for name in phases(party=("coalition", "member")))
