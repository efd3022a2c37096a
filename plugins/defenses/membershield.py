"""MemberShield: soft labels, and early stopping that starts from the global model's validation loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field

from fedbench.core import Defense, FactValue, Federation, MemberContext, MemberData, Params, ReportContext
from fedbench.plugins.defenses.stopping import never_stops, stopping_facts, train_with_patience, with_validation_part


class MemberShield(Defense):
    """Train on soft labels, stop when the validation loss no longer falls, keep the global model if no epoch beats it.

    Labels, of the validation part too, become y' = (1 - theta) y + theta / C once, before round 1 (Eq. 2, algorithm 2). Each
    round the bar is the received model's cross-entropy against them on the member's validation part, then the lowest of the
    epochs so far; after ``patience`` epochs in a row that are not below it training stops (algorithms 1 and 3). Uploaded is
    the best-validated model; ``keep: last``, algorithm 1's line 22, uploads the last one. ``guard: none`` is the released
    code, whose bar is reset before it is used, so that an epoch is always kept. A validation part without samples of some
    class judges by the others.
    Source: Ahmed et al., MemberShield (Neural Networks 2025), section 5. The paper's theta: .8 (CIFAR-10 with its own network,
    Purchase100), .7 (VGG, CH-MNIST); patience 10 (3 for Purchase100).
    """

    class Params(Params):
        theta: float = Field(0.8, ge=0, lt=1, description="weight of the uniform distribution in the soft labels")
        patience: int = Field(10, ge=1, description="epochs in a row without a lower validation loss after which training stops")
        validation: float = Field(
            0.1, gt=0, lt=1, description="share of a member's samples held out, where the setting gives it no validation part"
        )
        keep: Literal["best", "last"] = Field("best", description="model that is uploaded: best-validated, or the last epoch's")
        guard: Literal["global", "none"] = Field(
            "global", description="first bar of the validation loss: the global model's, or none (released code)"
        )

    def remarks(self, federation: Federation) -> Sequence[str]:
        """Whether the patience can ever stop a round."""
        return never_stops(self.params.patience, federation, self.params.keep)

    def prepare(self, data: MemberData, ctx: MemberContext) -> MemberData:
        data = with_validation_part(data, ctx, self.params.validation, "membershield")
        return replace(data, soft=soft_labels(data, ctx.federation.n_classes, self.params.theta, ctx.params.dtype))

    def local_train(self, ctx: MemberContext) -> None:
        p = self.params
        assert ctx.data.soft is not None
        train_with_patience(ctx, ctx.data.soft, p.patience, guarded=p.guard == "global", keep=p.keep)

    def report(self, ctx: ReportContext) -> dict[str, FactValue]:
        """How long members trained, and how often nothing beat the global model."""
        return stopping_facts(ctx)


def soft_labels(data: MemberData, classes: int, theta: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """[n, C]: (1 - theta) y + theta / C, y the one-hot labels, or the targets that a defense before this one made (Eq. 2)."""
    hard = torch.nn.functional.one_hot(data.y, classes).to(dtype)
    return (1 - theta) * (hard if data.soft is None else data.soft) + theta / classes
