"""Early stopping on a member's own validation part: the rule, and the training around it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch

from fedbench.core import FactValue, Federation, MemberContext, MemberData, ReportContext, UserError
from fedbench.plugins.defenses.cofedmid.partition import hold_out

FEWEST = 10  # validation samples: the loss of fewer says more about them than about the model
Keep = Literal["best", "last"]


class Patience:
    """Stop when ``patience`` epochs in a row have not gone below the lowest loss so far.

    ``best``: the lowest loss so far, at first the bar that an epoch has to get under (infinity: none). A loss that is not a
    number is no improvement. Source: MemberShield, algorithm 1, lines 12 to 20; its prose compares with the epoch before.
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


def with_validation_part(data: MemberData, ctx: MemberContext, share: float, who: str) -> MemberData:
    """``data`` with a validation part: the one it comes with or, where it has none, ``share`` of its samples, stratified.

    A class of few samples may have none in it: its loss is then judged by the other classes alone. Raises ``UserError`` for a
    part of fewer than 10 samples.
    """
    n, given = len(data.y), data.held_out is not None
    if not given:
        held = hold_out(data.y.cpu().numpy(), round(share * n), ctx.rng)
        data = replace(data, held_out=torch.from_numpy(held).to(data.y.device))
    assert data.held_out is not None
    if (count := int(data.held_out.sum())) < FEWEST:
        wider = "raise federation.validation" if given else f"raise {who}'s `validation` (now {share:g}) or federation.validation"
        raise UserError(
            f"{who}: client {ctx.client} has {count} validation samples of its {n}, at least {FEWEST} are needed to judge by: "
            f"{wider}, or give clients more samples (fewer clients, a larger data set, a milder partition)"
        )
    return data


def validation_loss(ctx: MemberContext, target: torch.Tensor) -> float:
    """Mean cross-entropy of the model at hand on the member's validation part; ``target``: [n] labels or [n, C] probabilities."""
    held = ctx.data.held_out
    return ctx.losses(ctx.data.x[held], target[held]).double().mean().item()


def train_with_patience(ctx: MemberContext, target: torch.Tensor, patience: int, guarded: bool, keep: Keep) -> None:
    """The round's local training, stopped by the validation loss against ``target`` ([n] labels or [n, C] probabilities).

    ``guarded``: the received model's loss is the first bar. ``best``: what is left is the best-validated model, with its
    batch statistics; where no epoch gets under the bar, the received one.
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
    _count(ctx, epochs=epochs, stopped=epochs < ctx.federation.local_epochs, received=guarded and keep == "best" and not beaten)


def _count(ctx: MemberContext, *, epochs: int, stopped: bool, received: bool) -> None:
    seen = ctx.memory.setdefault("stopping", {"rounds": 0, "epochs": 0, "stopped": 0, "received": 0})
    for name, more in (("rounds", 1), ("epochs", epochs), ("stopped", stopped), ("received", received)):
        seen[name] += more


def stopping_facts(ctx: ReportContext) -> dict[str, FactValue]:
    """Means over all rounds of all members: epochs trained, share stopped early, share that uploaded the received model."""
    tallies = [m["stopping"] for m in ctx.of_member.values() if "stopping" in m]
    rounds = sum(t["rounds"] for t in tallies)
    if not rounds:
        return {}
    epochs, stopped, received = (sum(t[name] for t in tallies) / rounds for name in ("epochs", "stopped", "received"))
    return {
        "mean epochs trained a round": epochs,
        "share of rounds stopped early": stopped,
        "share of rounds that kept the global model": received,
    }


def never_stops(patience: int, federation: Federation, keep: Keep = "best") -> Sequence[str]:
    """The remark on a patience that no round has the epochs for."""
    epochs = federation.local_epochs
    if patience < epochs:
        return ()
    left = f"the {keep} epoch is {'still kept' if keep == 'best' else 'uploaded'}"
    rounds = f"{epochs} local epoch{'' if epochs == 1 else 's'} of a round"
    return [f"patience {patience} is not below the {rounds}: training never stops early ({left}); lower patience to stop"]
