"""MemGuard: whoever asks the model is answered with noise that leaves a membership classifier guessing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field

from fedbench.core import AnswerContext, CoalitionContext, Defense, FactValue, MemberContext, MemberData, Params, ReportContext
from fedbench.plugins.defenses.memguard_net import Classifier, trained
from fedbench.plugins.defenses.memguard_noise import crafted, used


class MemGuard(Defense):
    """Noise on each answer that brings a defense classifier g to 1/2 and changes no predicted label.

    g tells the members' training samples from their references by the confidence vector alone. A member has references
    where the setting gives it a validation part; elsewhere it keeps a share of its data out of training in ``prepare``.
    In ``after_round`` each member asks the new global model about as many training samples as references and keeps the
    answers: the model that everybody will ask is the aggregate, and the last one, which outsiders get, is sent to no member
    in any later round. g is made when somebody asks, so that rounds in which nobody looks cost nothing: full-batch steps of
    Adam on the mean of the members' losses, which is what federated averaging of one gradient each a step gives, without
    anybody's confidence vectors leaving it. In each loss training samples and references weigh the same.
    The server's view is what it would be without it: training is plain, but for what a member holds out itself.
    Source: Jia, Salem, Backes, Zhang & Gong, CCS 2019, section 4, algorithm 1; sizes of g as in their setting.
    They defend one model with one owner: the members' parts in g, its optimiser and epochs, and the key of the coin are ours.
    """

    class Params(Params):
        budget: float = Field(
            1.0, ge=0, le=2, description="largest expected L1 distance of an answer from the softmax; 1: the largest in the paper"
        )
        hidden: tuple[Annotated[int, Field(ge=1, le=4096)], ...] = Field(
            (256, 128, 64), min_length=1, description="widths of g's hidden layers of ReLUs"
        )
        order: Literal["sorted", "plain"] = Field("sorted", description="g reads the confidences largest first, or by class")
        epochs: int = Field(100, ge=1, le=100_000, description="steps of g's training, each on all that the members know")
        steps: int = Field(300, ge=1, le=10_000, description="most steps of phase I for each weight of the distance")
        validation: float = Field(
            0.1, gt=0, lt=1, description="share of its samples that a member holds out where the setting gives it none"
        )

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self._latest: tuple[int, Classifier | None] | None = None  # of the model that was asked last, by its key

    def begin(self, ctx: CoalitionContext) -> None:
        self._latest = None

    def prepare(self, data: MemberData, ctx: MemberContext) -> MemberData:
        n = len(data.y)
        if data.held_out is not None or n < 2:
            return data
        held = torch.zeros(n, dtype=torch.bool, device=data.y.device)
        held[ctx.randperm(n)[: min(max(1, round(self.params.validation * n)), n - 1)]] = True
        return replace(data, held_out=held)

    def after_round(self, ctx: MemberContext) -> None:
        held = ctx.data.held_out
        references = ctx.data.y.new_zeros(0) if held is None else torch.nonzero(held).reshape(-1)
        own = ctx.data.trainable
        n = min(len(own), len(references))
        if n == 0 or ctx.ask_global is None:
            return
        asked = torch.cat([part[ctx.randperm(len(part))[:n]] for part in (own, references)])
        ctx.memory["lessons"] = ctx.ask_global(ctx.data.x[asked]).double()  # the first half was trained on
        ctx.memory["round"] = ctx.round

    def answer(self, logits: torch.Tensor, ctx: AnswerContext) -> torch.Tensor:
        g = self._classifier(ctx)
        if g is None:  # nobody whose model it is has learnt anything yet
            return logits
        noisy = crafted(logits, g, self.params.steps)
        return used(logits, noisy, g, self.params.budget, ctx.key)

    def report(self, ctx: ReportContext) -> Mapping[str, FactValue]:
        known = [len(ctx.of_member[k].get("lessons", ())) // 2 for k in ctx.members]
        return {"protects": ["client", "external"], "distortion budget": self.params.budget, "references": sum(known)}

    def _classifier(self, ctx: AnswerContext) -> Classifier | None:
        if self._latest is None or self._latest[0] != ctx.key:
            self._latest = ctx.key, trained(lessons_of(ctx), self.params, ctx.key)
        return self._latest[1]


def lessons_of(ctx: AnswerContext) -> list[torch.Tensor]:
    """[2m, C] logits of each member that the model serves and that asked it last: its own samples, then its references."""
    known = {k: ctx.of_member[k] for k in ctx.served if "lessons" in ctx.of_member[k]}
    newest = max((memory["round"] for memory in known.values()), default=0)
    return [memory["lessons"] for memory in known.values() if memory["round"] == newest]
