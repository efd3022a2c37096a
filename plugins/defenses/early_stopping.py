"""Early stopping on a member's validation part, and MemberShield, which adds soft labels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedbench.core import (
    Defense,
    FactValue,
    Federation,
    MemberContext,
    MemberData,
    Params,
    ReportContext,
    UserError,
)
from fedbench.plugins.defenses.losses import smoothed, targets

FEWEST = 10  # validation samples: the loss of fewer says more about them than about the model
Keep = Literal["best", "last"]
ValidationShare = Annotated[
    float,
    Field(
        gt=0,
        lt=1,
        description="share of a member's samples held out, where the setting gives it no "
        "validation part",
    ),
]
PatienceEpochs = Annotated[
    int,
    Field(
        ge=1,
        description="epochs in a row without a lower validation loss after which training stops",
    ),
]


class Patience:
    """Stop when ``patience`` epochs in a row have not gone below the lowest loss so far.

    ``best``: the lowest loss so far, at first the bar that an epoch has to get under (infinity:
    none). A loss that is not a number is no improvement. Source: MemberShield, algorithm 1, lines
    12 to 20; its prose compares with the epoch before.
    """

    def __init__(self, patience: int, bar: float = math.inf) -> None:
        self._patience = patience
        self._worse = 0
        self.best = bar
        self.improved = False

    def improves(self, loss: float) -> bool:
        """Take the next epoch's ``loss``; return whether it is the lowest so far."""
        if loss < self.best:
            self.best = loss
            self.improved = True
            self._worse = 0
            return True
        self._worse += 1
        return False

    @property
    def spent(self) -> bool:
        """Whether to stop."""
        return self._worse >= self._patience


def hold_out(data: MemberData, count: int, rng: np.random.Generator) -> MemberData:
    """Hold ``count`` samples out, in each class its share of them to within one.

    The largest remainders have one more.
    """
    y = data.y.cpu().numpy()
    labels, sizes = np.unique(y, return_counts=True)
    share = count * sizes / max(1, len(y))
    quota = np.floor(share).astype(int)
    ties = rng.permutation(len(labels))
    quota[np.lexsort((ties, quota - share))[: count - quota.sum()]] += 1
    mask = np.zeros(len(y), bool)
    for label, n in zip(labels, quota, strict=True):
        mask[rng.choice(np.flatnonzero(y == label), n, replace=False)] = True
    return replace(data, held_out=torch.from_numpy(mask).to(data.y.device))


def with_validation_part(
    data: MemberData, ctx: MemberContext, share: float, defense: str
) -> MemberData:
    """Hold out ``share`` of the samples, stratified, where ``data`` has no validation part yet.

    A class of few samples may have none in it: its loss is then judged by the other classes alone.

    Raises:
        UserError: the part has fewer than 10 samples.
    """
    n = len(data.y)
    remedy = "raise federation.validation"
    if data.held_out is None:
        data = hold_out(data, round(share * n), ctx.rng)
        remedy = f"raise {defense}'s `validation` (now {share:g}) or federation.validation"
    assert data.held_out is not None
    count = int(data.held_out.sum())
    if count < FEWEST:
        raise UserError(
            f"{defense}: client {ctx.client} has {count} validation samples of its {n}, at least "
            f"{FEWEST} are needed to judge by: {remedy}, or give clients more samples (fewer "
            "clients, a larger data set, a milder partition)"
        )
    return data


def validation_loss(ctx: MemberContext, target: Tensor) -> float:
    """Mean cross-entropy of the live model on the member's validation part.

    ``target``: [n] labels or [n, C] probabilities.
    """
    part = ctx.data.held_out
    return ctx.losses(ctx.data.x[part], target[part]).double().mean().item()


def train_with_patience(
    ctx: MemberContext, target: Tensor, patience: int, guarded: bool, keep: Keep
) -> None:
    """Train for a round, stopped by the validation loss against ``target``.

    ``target``: [n] labels or [n, C] probabilities. ``guarded``: the received model's loss is the
    first bar. ``best``: what is left is the best-validated model, with its batch statistics; where
    no epoch gets under the bar, the received one.
    """
    bar = validation_loss(ctx, target) if guarded else math.inf
    rule = Patience(patience, bar)
    best = ctx.snapshot()
    epochs = 0
    for epoch in ctx.epochs():
        epochs = epoch + 1
        if rule.improves(validation_loss(ctx, target)):
            best = ctx.snapshot()
        if rule.spent:
            break
    if keep == "best" and (guarded or rule.improved):
        ctx.restore(best)
    ctx.memory.setdefault("stopping", Counter()).update(
        rounds=1,
        epochs=epochs,
        stopped=epochs < ctx.federation.local_epochs,
        received=guarded and keep == "best" and not rule.improved,
    )


def stopping_facts(ctx: ReportContext) -> dict[str, FactValue]:
    """Average over all rounds of all members how long they trained and what they uploaded."""
    total: Counter[str] = Counter()
    for memory in ctx.of_member.values():
        total.update(memory.get("stopping", {}))
    if not total:
        return {}
    rounds = total["rounds"]
    return {
        "mean epochs trained a round": total["epochs"] / rounds,
        "share of rounds stopped early": total["stopped"] / rounds,
        "share of rounds that kept the global model": total["received"] / rounds,
    }


def never_stops(patience: int, federation: Federation, keep: Keep = "best") -> Sequence[str]:
    """Remark on a patience that no round has the epochs for."""
    epochs = federation.local_epochs
    if patience < epochs:
        return ()
    upload = "still kept" if keep == "best" else "uploaded"
    plural = "" if epochs == 1 else "s"
    return [
        f"patience {patience} is not below the {epochs} local epoch{plural} of a round: training "
        f"never stops early (the {keep} epoch is {upload}); lower patience to stop"
    ]


class EarlyStopping(Defense):
    """Stop a round's training when the validation loss no longer falls; upload the epoch where it
    was lowest.

    The loss is the mean cross-entropy of hard labels on the member's validation part. The first
    epoch is always an improvement: the received model is no bar, so that every member uploads
    something that it trained. A validation part without samples of some class judges by the others.

    ``patience_rounds`` carries the same rule over the federation, where a round is too short to
    overfit in: the received model is validated each round, and once its loss has not fallen for so
    many rounds in a row the member trains no more; from then on it uploads the received model, like
    a free-rider. fedbench's own: the sources stop within one training. Source: Prechelt, "Early
    stopping - but when?" (1998), as the baseline of MemberShield (section 7.6, patience 10, and 3
    for Purchase100); its code selects by loss where the text says accuracy.
    """

    # labels decide who is held out, the held-out loss when to stop
    private = ("prepare", "local_train")

    class Params(Params):
        patience: PatienceEpochs = 10
        validation: ValidationShare = 0.1
        patience_rounds: int | None = Field(
            None,
            ge=1,
            description="rounds in a row without a lower validation loss of the received model "
            "after which the member trains no more; null: it trains in every round",
        )

    def remarks(self, federation: Federation) -> Sequence[str]:
        """Say where no round can be stopped."""
        if self.params.patience_rounds is not None:
            return ()
        return never_stops(self.params.patience, federation)

    def prepare(self, data: MemberData, ctx: MemberContext) -> MemberData:
        return with_validation_part(data, ctx, self.params.validation, "early-stopping")

    def local_train(self, ctx: MemberContext) -> None:
        if self.params.patience_rounds is None or not self._ended(ctx):
            train_with_patience(ctx, ctx.data.y, self.params.patience, guarded=False, keep="best")

    def report(self, ctx: ReportContext) -> dict[str, FactValue]:
        """Report how long members trained."""
        facts = stopping_facts(ctx)
        facts.pop("share of rounds that kept the global model", None)
        if self.params.patience_rounds is not None:
            rounds = [ctx.of_member[k].get("last round", 0) for k in ctx.members]
            facts["last round trained of each member"] = rounds
        return facts

    def _ended(self, ctx: MemberContext) -> bool:
        """Tell whether the member has stopped for good.

        The received model is the others' work too: it can get better again, and the member stays
        away all the same, as a training that was stopped does.
        """
        rule = ctx.memory.setdefault("rounds", Patience(self.params.patience_rounds))
        if not rule.spent:
            rule.improves(validation_loss(ctx, ctx.data.y))
        if not rule.spent:
            ctx.memory["last round"] = ctx.round
        return rule.spent


class MemberShield(Defense):
    """Train on soft labels, stop when the validation loss no longer falls, keep the global model if
    no epoch beats it.

    Labels, of the validation part too, become y' = (1 - theta) y + theta / C once, before round 1
    (Eq. 2, algorithm 2). Each round the bar is the received model's cross-entropy against them on
    the member's validation part, then the lowest of the epochs so far; after ``patience`` epochs in
    a row that are not below it training stops (algorithms 1 and 3). Uploaded is the best-validated
    model; ``keep: last``, algorithm 1's line 22, uploads the last one. ``guard: none`` is the
    released code, where the bar is reset before it is used, so that an epoch is always kept. A
    validation part without samples of some class judges by the others. Source: Ahmed et al.,
    MemberShield (Neural Networks 2025), section 5. The paper's theta: .8 (CIFAR-10 with its own
    network, Purchase100), .7 (VGG, CH-MNIST); patience 10 (3 for Purchase100).
    """

    private = ("prepare", "local_train")  # as in early stopping

    class Params(Params):
        theta: float = Field(
            0.8, ge=0, lt=1, description="weight of the uniform distribution in the soft labels"
        )
        patience: PatienceEpochs = 10
        validation: ValidationShare = 0.1
        keep: Literal["best", "last"] = Field(
            "best", description="model that is uploaded: best-validated, or the last epoch's"
        )
        guard: Literal["global", "none"] = Field(
            "global",
            description="first bar of the validation loss: the global model's, or none (released "
            "code)",
        )

    def remarks(self, federation: Federation) -> Sequence[str]:
        """Say where no round can be stopped."""
        return never_stops(self.params.patience, federation, self.params.keep)

    def prepare(self, data: MemberData, ctx: MemberContext) -> MemberData:
        data = with_validation_part(data, ctx, self.params.validation, "membershield")
        before = targets(data, ctx.federation.n_classes, ctx.params.dtype)
        return replace(data, soft=smoothed(before, self.params.theta))  # Eq. 2

    def local_train(self, ctx: MemberContext) -> None:
        p = self.params
        guarded = self.params.guard == "global"
        assert ctx.data.soft is not None
        train_with_patience(ctx, ctx.data.soft, p.patience, guarded, p.keep)

    def report(self, ctx: ReportContext) -> dict[str, FactValue]:
        """Report how long members trained, and how often nothing beat the global model."""
        return stopping_facts(ctx)
