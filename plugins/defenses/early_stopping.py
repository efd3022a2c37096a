"""Early stopping on a member's validation part, and MemberShield, which adds soft labels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

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

FEWEST = 10  # validation samples: the loss of fewer says more about them than about the model
Keep = Literal["best", "last"]


class Patience:
    """Stop when ``patience`` epochs in a row have not gone below the lowest loss so far.

    ``best``: the lowest loss so far, at first the bar that an epoch has to get under (infinity:
    none). A loss that is not a number is no improvement. Source: MemberShield, algorithm 1, lines
    12 to 20; its prose compares with the epoch before.
    """

    def __init__(self, patience: int, bar: float = math.inf) -> None:
        self._patience, self.best, self._worse = patience, bar, 0

    def improves(self, loss: float) -> bool:
        """Take the next epoch's ``loss``; whether it is the lowest so far."""
        better = loss < self.best
        self.best, self._worse = (loss, 0) if better else (self.best, self._worse + 1)
        return better

    @property
    def spent(self) -> bool:
        """Whether to stop."""
        return self._worse >= self._patience


def hold_out(y: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """[n] bool: ``count`` samples, in each class its share of them to within one (largest
    remainders).
    """
    labels, sizes = np.unique(y, return_counts=True)
    share = count * sizes / max(1, len(y))
    quota = np.floor(share).astype(int)
    ties = rng.permutation(len(labels))
    for i in np.lexsort((ties, quota - share))[: count - quota.sum()]:
        quota[i] += 1
    held = np.zeros(len(y), bool)
    for label, q in zip(labels, quota, strict=True):
        held[rng.choice(np.flatnonzero(y == label), q, replace=False)] = True
    return held


def with_validation_part(
    data: MemberData, ctx: MemberContext, share: float, who: str
) -> MemberData:
    """``data`` with a validation part: the one it comes with or, where it has none, ``share`` of
    its samples, stratified.

    A class of few samples may have none in it: its loss is then judged by the other classes alone.
    Raises ``UserError`` for a part of fewer than 10 samples.
    """
    n, given = len(data.y), data.held_out is not None
    if not given:
        held = hold_out(data.y.cpu().numpy(), round(share * n), ctx.rng)
        data = replace(data, held_out=torch.from_numpy(held).to(data.y.device))
    assert data.held_out is not None
    if (count := int(data.held_out.sum())) < FEWEST:
        wider = (
            "raise federation.validation"
            if given
            else f"raise {who}'s `validation` (now {share:g}) or federation.validation"
        )
        raise UserError(
            f"{who}: client {ctx.client} has {count} validation samples of its {n}, at least "
            f"{FEWEST} are needed to judge by: "
            f"{wider}, or give clients more samples (fewer clients, a larger data set, a milder "
            "partition)"
        )
    return data


def validation_loss(ctx: MemberContext, target: Tensor) -> float:
    """Mean cross-entropy of the model at hand on the member's validation part; ``target``: [n]
    labels or [n, C] probabilities.
    """
    held = ctx.data.held_out
    return ctx.losses(ctx.data.x[held], target[held]).double().mean().item()


def train_with_patience(
    ctx: MemberContext, target: Tensor, patience: int, guarded: bool, keep: Keep
) -> None:
    """The round's local training, stopped by the validation loss against ``target`` ([n] labels or
    [n, C] probabilities).

    ``guarded``: the received model's loss is the first bar. ``best``: what is left is the
    best-validated model, with its batch statistics; where no epoch gets under the bar, the received
    one.
    """

    def loss() -> float:
        return validation_loss(ctx, target)

    rule = Patience(patience, loss() if guarded else math.inf)
    kept, beaten, epochs = ctx.snapshot() if keep == "best" else None, False, 0
    for e in ctx.epochs():
        epochs = e + 1
        if rule.improves(loss()):
            beaten = True
            kept = ctx.snapshot() if keep == "best" else None
        if rule.spent:
            break
    if kept is not None and (guarded or beaten):
        ctx.restore(kept)
    ctx.memory.setdefault("stopping", Counter()).update(
        rounds=1,
        epochs=epochs,
        stopped=epochs < ctx.federation.local_epochs,
        received=guarded and keep == "best" and not beaten,
    )


def stopping_facts(ctx: ReportContext) -> dict[str, FactValue]:
    """Means over all rounds of all members: epochs trained, share stopped early, share that
    uploaded the received model.
    """
    total: Counter[str] = sum(
        (m["stopping"] for m in ctx.of_member.values() if "stopping" in m), Counter()
    )
    names = {
        "mean epochs trained a round": "epochs",
        "share of rounds stopped early": "stopped",
        "share of rounds that kept the global model": "received",
    }
    return {fact: total[name] / total["rounds"] for fact, name in names.items()} if total else {}


def never_stops(patience: int, federation: Federation, keep: Keep = "best") -> Sequence[str]:
    """The remark on a patience that no round has the epochs for."""
    epochs = federation.local_epochs
    if patience < epochs:
        return ()
    left = f"the {keep} epoch is {'still kept' if keep == 'best' else 'uploaded'}"
    rounds = f"{epochs} local epoch{'' if epochs == 1 else 's'} of a round"
    return [
        f"patience {patience} is not below the {rounds}: training never stops early ({left}); "
        "lower patience to stop"
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
        patience: int = Field(
            10,
            ge=1,
            description="epochs in a row without a lower validation loss after which training "
            "stops",
        )
        validation: float = Field(
            0.1,
            gt=0,
            lt=1,
            description="share of a member's samples held out, where the setting gives it no "
            "validation part",
        )
        patience_rounds: int | None = Field(
            None,
            ge=1,
            description="rounds in a row without a lower validation loss of the received model "
            "after which the "
            "member trains no more; null: it trains in every round",
        )

    def remarks(self, federation: Federation) -> Sequence[str]:
        """Whether the patience can ever stop a round."""
        return (
            never_stops(self.params.patience, federation)
            if self.params.patience_rounds is None
            else ()
        )

    def prepare(self, data: MemberData, ctx: MemberContext) -> MemberData:
        return with_validation_part(data, ctx, self.params.validation, "early-stopping")

    def local_train(self, ctx: MemberContext) -> None:
        if self.params.patience_rounds is not None and self._ended(
            ctx, self.params.patience_rounds
        ):
            return
        train_with_patience(ctx, ctx.data.y, self.params.patience, guarded=False, keep="best")

    def report(self, ctx: ReportContext) -> dict[str, FactValue]:
        """How long members trained."""
        facts = {name: value for name, value in stopping_facts(ctx).items() if "global" not in name}
        if self.params.patience_rounds is not None:
            facts["last round trained of each member"] = [
                ctx.of_member[k].get("last round", 0) for k in ctx.members
            ]
        return facts

    def _ended(self, ctx: MemberContext, patience: int) -> bool:
        """Whether the member has stopped for good. The received model is the others' work too: it
        can get better again, and the member stays away all the same, as a training that was stopped
        does.
        """
        rule: Patience = ctx.memory.setdefault("rounds", Patience(patience))
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
        patience: int = Field(
            10,
            ge=1,
            description="epochs in a row without a lower validation loss after which training "
            "stops",
        )
        validation: float = Field(
            0.1,
            gt=0,
            lt=1,
            description="share of a member's samples held out, where the setting gives it no "
            "validation part",
        )
        keep: Literal["best", "last"] = Field(
            "best", description="model that is uploaded: best-validated, or the last epoch's"
        )
        guard: Literal["global", "none"] = Field(
            "global",
            description="first bar of the validation loss: the global model's, or none (released "
            "code)",
        )

    def remarks(self, federation: Federation) -> Sequence[str]:
        """Whether the patience can ever stop a round."""
        return never_stops(self.params.patience, federation, self.params.keep)

    def prepare(self, data: MemberData, ctx: MemberContext) -> MemberData:
        data = with_validation_part(data, ctx, self.params.validation, "membershield")
        return replace(
            data,
            soft=soft_labels(data, ctx.federation.n_classes, self.params.theta, ctx.params.dtype),
        )

    def local_train(self, ctx: MemberContext) -> None:
        p = self.params
        assert ctx.data.soft is not None
        train_with_patience(
            ctx, ctx.data.soft, p.patience, guarded=p.guard == "global", keep=p.keep
        )

    def report(self, ctx: ReportContext) -> dict[str, FactValue]:
        """How long members trained, and how often nothing beat the global model."""
        return stopping_facts(ctx)


def soft_labels(
    data: MemberData, classes: int, theta: float, dtype: torch.dtype = torch.float32
) -> Tensor:
    """[n, C]: (1 - theta) y + theta / C, y the one-hot labels, or the targets that a defense before
    this one made (Eq. 2).
    """
    hard = torch.nn.functional.one_hot(data.y, classes).to(dtype)
    return (1 - theta) * (hard if data.soft is None else data.soft) + theta / classes
