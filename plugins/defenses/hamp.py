"""HAMP, training phase: high-entropy soft labels and an entropy bonus."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch.nn.functional import log_softmax

from fedbench.core import Batch, Defense, MemberContext, MemberData, Params


class HAMP(Defense):
    """Train on soft labels of entropy >= gamma ln(C), and reward the entropy of the predictions.

    The loss is KL(q || p) - C alpha H(p), meaned over the batch; ``reduction: mean`` divides it by C, which is the
    authors' code (its KL is a mean over samples and classes): the same minimiser at a C times smaller rate.
    Source: Chen & Pattabiraman (NDSS 2024), section IV; the test phase, which replaces outputs, is not part of it.
    """

    capturable = frozenset({"loss"})

    class Params(Params):
        gamma: float = Field(0.5, ge=0, le=1, description="least entropy of a soft label, as a fraction of ln(classes)")
        alpha: float = Field(0.005, ge=0, description="entropy weight as the authors state it (theirs: .001 to .01)")
        reduction: Literal["batchmean", "mean"] = Field(
            "batchmean", description="`batchmean`: the divergence; `mean`: also divided by the number of classes"
        )

    def prepare(self, data: MemberData, ctx: MemberContext) -> MemberData:
        return replace(data, soft=soft_labels(data.y, ctx.federation.n_classes, self.params.gamma))

    def loss(self, logits: torch.Tensor, batch: Batch, ctx: MemberContext) -> torch.Tensor:
        classes = logits.shape[1]
        log_p = log_softmax(logits, 1)
        target = batch.soft if batch.soft is not None else soft_labels(batch.y, classes, self.params.gamma)
        kl = (torch.xlogy(target, target) - target * log_p).sum(1).mean()
        entropy = -(log_p.exp() * log_p).sum(1).mean()
        loss = kl - classes * self.params.alpha * entropy
        return loss if self.params.reduction == "batchmean" else loss / classes


def true_class_probability(classes: int, gamma: float) -> float:
    """The largest multiple of .01 whose soft label (the rest spread evenly) has entropy >= gamma ln(classes).

    At gamma near 1 no multiple may reach it; then 1/classes, the label of largest entropy.
    """
    for hundredths in range(100, 0, -1):
        p = hundredths / 100
        if p <= 1 / classes:
            break
        if _entropy(p, classes) >= gamma * math.log(classes):
            return p
    return 1 / classes


def soft_labels(y: torch.Tensor, classes: int, gamma: float) -> torch.Tensor:
    """[n, classes] target probabilities for the labels ``y`` [n]."""
    p = true_class_probability(classes, gamma)
    soft = torch.full((len(y), classes), (1 - p) / (classes - 1), device=y.device)
    return soft.scatter_(1, y[:, None], p)


def _entropy(p: float, classes: int) -> float:
    rest = 1 - p
    return -p * math.log(p) - (rest * math.log(rest / (classes - 1)) if rest > 0 else 0.0)
