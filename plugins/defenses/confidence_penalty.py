"""Confidence penalty: reward the entropy of the predictions."""

from __future__ import annotations

import torch
from pydantic import Field
from torch.nn.functional import cross_entropy, log_softmax

from fedbench.core import Batch, Defense, MemberContext, Params


class ConfidencePenalty(Defense):
    """The loss is cross-entropy minus ``strength`` times the entropy of the prediction, both meaned over the batch.

    Source: Pereyra et al. (ICLR workshop 2017), section 3; neither annealed nor thresholded, which that section also
    tries. Soft targets are honoured.
    """

    capturable = frozenset({"loss"})

    class Params(Params):
        strength: float = Field(0.1, ge=0, description="beta, weight of the entropy (in nats) of a prediction")

    def loss(self, logits: torch.Tensor, batch: Batch, ctx: MemberContext) -> torch.Tensor:
        log_p = log_softmax(logits, 1)
        entropy = -(log_p.exp() * log_p).sum(1).mean()
        return cross_entropy(logits, batch.y if batch.soft is None else batch.soft) - self.params.strength * entropy
