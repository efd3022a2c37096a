"""Fang: leave one row out and see whether the model gets better on data of the server's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch.nn.functional import cross_entropy

from fedbench.core import Defense, Federation, ServerContext, UserError
from fedbench.plugins.defenses.rules.geometry import ExpectsMalicious, expected

Reject = Literal["err", "lfr", "union"]
WORST = 1e30  # what a loss that is not finite counts as: leaving its cause out is an improvement, not NaN


def leave_one_out(updates: torch.Tensor) -> Iterator[torch.Tensor]:
    """K vectors [P]: the mean of all rows [K, P] but the k-th; K >= 2.

    Sums of the rows before and after k: taking row k off the sum of all would leave nothing of the others beside a
    huge row's rounding error.
    """
    before = torch.zeros_like(updates[0])
    after = [before]
    for row in updates[1:].flip(0):
        after.append(after[-1] + row)
    for row in updates:
        yield (before + after.pop()) / (len(updates) - 1)
        before = before + row


def impacts(updates: torch.Tensor, evaluate: Callable[[torch.Tensor], tuple[float, float]]) -> np.ndarray:
    """[K, 2]: how much lower (loss, error rate) are without each row; ``evaluate(step)`` gives both of a step [P]."""
    with_all = np.array(evaluate(updates.mean(dim=0)))
    return np.array([with_all - np.array(evaluate(step)) for step in leave_one_out(updates)])


def rejected(impact: np.ndarray, f: int, reject: Reject) -> set[int]:
    """Rows to remove: the ``f`` of largest impact on the error rate (ERR), the loss (LFR), or those of both (up to 2f).

    Error rates on a small sample often tie: the larger impact on the loss then decides.
    """
    loss, error = impact.T
    by_error = np.lexsort((-loss, -error))[:f].tolist()
    by_loss = np.argsort(-loss, kind="stable")[:f].tolist()
    return {"err": set(by_error), "lfr": set(by_loss), "union": {*by_error, *by_loss}}[reject]


def fang(updates: torch.Tensor, f: int, reject: Reject, evaluate: Callable[[torch.Tensor], tuple[float, float]]) -> torch.Tensor:
    """[P]: the mean of the rows [K, P] that are not rejected; raises ``UserError`` when all are."""
    if f == 0:
        return updates.mean(dim=0)
    removed = rejected(impacts(updates, evaluate), f, reject) if f < len(updates) else set(range(len(updates)))
    kept = [k for k in range(len(updates)) if k not in removed]
    if not kept:
        raise UserError(f"fang with f = {f} and reject {reject} removes all of the {len(updates)} rows: lower f")
    return updates[kept].mean(dim=0)


class Fang(Defense):
    """Remove the rows without which the averaged model has the lower error (ERR) or loss (LFR) on the server's own data.

    The impact of row k is the error rate, or the loss, of the global model moved by the mean of all rows less that of
    the model moved by the mean of all others; the f rows of largest impact are removed and the rest is averaged
    unweighted. ``union`` removes what either rejects. The data are ``root`` samples that are in no training, test or
    audit data; the poisoning paper's code takes the whole test set, the attack's own non-members included, which is not
    offered. It evaluates K + 1 models a round.
    Source: Fang et al., USENIX Security 2020, "Error Rate based Rejection", "Loss Function based Rejection", "Union".
    """

    class Params(ExpectsMalicious):
        reject: Reject = Field("union", description="by error rate, by loss, or what either of them rejects")
        root: int = Field(100, ge=1, description="samples the server has of its own")

    @property
    def root_samples(self) -> int:  # type: ignore[override]
        """``root``."""
        return self.params.root

    def check(self, federation: Federation) -> None:
        """What is left after up to 2f removals."""
        expected("fang", self.params.f, federation, federation.cohort, 2, 1)

    def aggregate(self, updates: torch.Tensor, weights: torch.Tensor, ctx: ServerContext) -> torch.Tensor:
        """[P]; raises ``UserError`` where nothing is left."""
        f = expected("fang", self.params.f, ctx, len(updates), 0, 1)
        return fang(updates, f, self.params.reject, lambda step: _evaluate(step, ctx))


def _evaluate(step: torch.Tensor, ctx: ServerContext) -> tuple[float, float]:
    """(mean cross-entropy, error rate) of the global model moved by ``step`` [P], on the root samples."""
    if ctx.root is None or ctx.logits is None:
        raise RuntimeError("fang was given no root samples")
    logits = ctx.logits(ctx.params + step, ctx.root.x).double()
    loss = float(cross_entropy(logits, ctx.root.y))
    error = float((logits.argmax(dim=1) != ctx.root.y).double().mean())
    return (min(loss, WORST) if np.isfinite(loss) else WORST), error
