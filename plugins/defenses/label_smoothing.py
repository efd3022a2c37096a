"""Label smoothing: targets that are never quite sure."""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field
from torch.nn.functional import one_hot

from fedbench.core import Batch, Defense, MemberContext, Params


class LabelSmoothing(Defense):
    """Cross-entropy against (1 - strength) one-hot + strength / C, C the number of classes.

    Targets that another defense has made soft are smoothed like hard ones, so it goes with any defense that acts on the
    batch or on the loss and knows soft targets.
    Source: Szegedy et al. (CVPR 2016), section 7, with the uniform distribution over labels.
    """

    class Params(Params):
        strength: float = Field(0.1, ge=0, lt=1, description="share of a target that is spread evenly over all classes")

    def transform(self, batch: Batch, ctx: MemberContext) -> Batch:
        target = one_hot(batch.y, ctx.federation.n_classes) if batch.soft is None else batch.soft
        even = self.params.strength / ctx.federation.n_classes
        return replace(batch, soft=(1 - self.params.strength) * target.to(ctx.params.dtype) + even)
