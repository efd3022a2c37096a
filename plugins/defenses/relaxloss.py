"""RelaxLoss: hold the training loss at a level that test data reach too."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch.nn.functional import log_softmax, nll_loss

from fedbench.core import Batch, Defense, MemberContext, Params


class RelaxLoss(Defense):
    """Keep the batch's mean cross-entropy near ``alpha``; flatten the posteriors of what is learnt too well.

    Even epochs: |mean CE - alpha|. Odd epochs: mean CE while it exceeds alpha, else mean[(1 - correct) CE_soft - CE]:
    ascent on correctly classified samples, and on the others a soft target that keeps the predicted p_y (at most
    ``upper``) and spreads the rest evenly.
    Source: Chen, Yu & Fritz (ICLR 2022), algorithm 1. Their code lets gradients flow through the soft target
    (``detach: false``); an epoch counter that restarts every round (``parity: local``) never leaves the even branch
    when a round has one epoch.
    """

    class Params(Params):
        alpha: float = Field(1.0, ge=0, description="target of the mean training loss, in nats")
        upper: float = Field(1.0, gt=0, le=1, description="largest true-class probability of a soft target")
        parity: Literal["global", "local"] = Field("global", description="epochs counted over all rounds, or in each")
        detach: bool = Field(True, description="whether soft targets are constants, without gradient")

    def loss(self, logits: torch.Tensor, batch: Batch, ctx: MemberContext) -> torch.Tensor:
        log_p = log_softmax(logits, 1)
        ce = nll_loss(log_p, batch.hard_labels("relaxloss"), reduction="none")
        epoch = ctx.epoch if self.params.parity == "global" else ctx.epoch % ctx.federation.local_epochs
        if epoch % 2 == 0:
            return (ce.mean() - self.params.alpha).abs()
        wrong = logits.argmax(1) != batch.y
        flattened = (wrong * self._soft_ce(log_p, batch.y) - ce).mean()
        # torch.where rather than `if`: no wait for the device in every batch
        return torch.where(ce.mean() > self.params.alpha, ce.mean(), flattened)

    def _soft_ce(self, log_p: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """[B]: cross-entropy against p_y (at most ``upper``) on the true class and an even rest."""
        p_true = log_p.gather(1, y[:, None]).exp().clamp(max=self.params.upper)
        if self.params.detach:
            p_true = p_true.detach()
        rest = ((1 - p_true) / (log_p.shape[1] - 1)).expand_as(log_p)
        return -(rest.scatter(1, y[:, None], p_true) * log_p).sum(1)
