"""Early stopping, as every framework has it: the baseline of MemberShield."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from fedbench.core import Defense, FactValue, Federation, MemberContext, MemberData, Params, ReportContext
from fedbench.plugins.defenses.stopping import (
    Patience,
    never_stops,
    stopping_facts,
    train_with_patience,
    validation_loss,
    with_validation_part,
)


class EarlyStopping(Defense):
    """Stop a round's training when the validation loss no longer falls; upload the epoch where it was lowest.

    The loss is the mean cross-entropy of hard labels on the member's validation part. The first epoch is always an
    improvement: the received model is no bar, so that every member uploads something that it trained. A validation part
    without samples of some class judges by the others.

    ``patience_rounds`` carries the same rule over the federation, where a round is too short to overfit in: the received
    model is validated each round, and once its loss has not fallen for so many rounds in a row the member trains no more;
    from then on it uploads the received model, like a free-rider. fedbench's own: the sources stop within one training.
    Source: Prechelt, "Early stopping - but when?" (1998), as the baseline of MemberShield (section 7.6, patience 10, and 3
    for Purchase100), whose code selects by loss where the text says accuracy.
    """

    class Params(Params):
        patience: int = Field(10, ge=1, description="epochs in a row without a lower validation loss after which training stops")
        validation: float = Field(
            0.1, gt=0, lt=1, description="share of a member's samples held out, where the setting gives it no validation part"
        )
        patience_rounds: int | None = Field(
            None, ge=1, description="rounds in a row without a lower validation loss of the received model after which the "
            "member trains no more; null: it trains in every round",
        )  # fmt: skip

    def remarks(self, federation: Federation) -> Sequence[str]:
        """Whether the patience can ever stop a round."""
        return never_stops(self.params.patience, federation) if self.params.patience_rounds is None else ()

    def prepare(self, data: MemberData, ctx: MemberContext) -> MemberData:
        return with_validation_part(data, ctx, self.params.validation, "early-stopping")

    def local_train(self, ctx: MemberContext) -> None:
        if self.params.patience_rounds is not None and self._ended(ctx, self.params.patience_rounds):
            return
        train_with_patience(ctx, ctx.data.y, self.params.patience, guarded=False, keep="best")

    def report(self, ctx: ReportContext) -> dict[str, FactValue]:
        """How long members trained."""
        facts = {name: value for name, value in stopping_facts(ctx).items() if "global" not in name}
        if self.params.patience_rounds is not None:
            facts["last round trained of each member"] = [ctx.of_member[k].get("last round", 0) for k in ctx.members]
        return facts

    def _ended(self, ctx: MemberContext, patience: int) -> bool:
        """Whether the member has stopped for good. The received model is the others' work too: it can get better again, and
        the member stays away all the same, as a training that was stopped does."""
        rule: Patience = ctx.memory.setdefault("rounds", Patience(patience))
        if not rule.spent:
            rule.improves(validation_loss(ctx, ctx.data.y))
        if not rule.spent:
            ctx.memory["last round"] = ctx.round
        return rule.spent
