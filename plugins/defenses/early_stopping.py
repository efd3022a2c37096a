"""Early stopping, as every framework has it: the baseline of MemberShield."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from fedbench.core import Defense, FactValue, Federation, MemberContext, MemberData, Params, ReportContext
from fedbench.plugins.defenses.stopping import never_stops, stopping_facts, train_with_patience, with_validation_part


class EarlyStopping(Defense):
    """Stop a round's training when the validation loss no longer falls; upload the epoch where it was lowest.

    The loss is the mean cross-entropy of hard labels on the member's validation part. The first epoch is always an
    improvement: the received model is no bar, so that every member uploads something that it trained. A validation part
    without samples of some class judges by the others.
    Source: Prechelt, "Early stopping - but when?" (1998), as the baseline of MemberShield (section 7.6, patience 10, and 3
    for Purchase100), whose code selects by loss where the text says accuracy.
    """

    class Params(Params):
        patience: int = Field(10, ge=1, description="epochs in a row without a lower validation loss after which training stops")
        validation: float = Field(
            0.1, gt=0, lt=1, description="share of a member's samples held out, where the setting gives it no validation part"
        )

    def remarks(self, federation: Federation) -> Sequence[str]:
        """Whether the patience can ever stop a round."""
        return never_stops(self.params.patience, federation)

    def prepare(self, data: MemberData, ctx: MemberContext) -> MemberData:
        return with_validation_part(data, ctx, self.params.validation, "early-stopping")

    def local_train(self, ctx: MemberContext) -> None:
        train_with_patience(ctx, ctx.data.y, self.params.patience, guarded=False, keep="best")

    def report(self, ctx: ReportContext) -> dict[str, FactValue]:
        """How long members trained."""
        facts = stopping_facts(ctx)
        return {name: value for name, value in facts.items() if "global" not in name}
