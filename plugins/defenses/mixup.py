"""Mixup: train on convex combinations of pairs."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import Field
from torch.nn.functional import one_hot

from fedbench.core import Batch, Defense, MemberContext, Params, UserError


class Mixup(Defense):
    """Mix each batch with a permutation of itself: x' = l x + (1-l) x[pi], targets likewise, l ~ Beta(alpha, alpha).

    Cross-entropy is linear in the target, so the mixed target gives l CE(y) + (1-l) CE(y[pi]).
    Source: Zhang et al. (ICLR 2018), equation 1; one l and one pi per batch as in their algorithm.
    ``inputs: unmixed`` reproduces FedMIA's code, which mixes the labels alone: at a small alpha about half of its
    batches train on randomly permuted labels.
    """

    class Params(Params):
        alpha: float = Field(0.01, gt=0, description="Beta(alpha, alpha): below 1 mostly one of the pair, above 1 both")
        inputs: Literal["mixed", "unmixed"] = Field("mixed", description="whether inputs are mixed like labels")

    def transform(self, batch: Batch, ctx: MemberContext) -> Batch:
        keep = float(ctx.rng.beta(self.params.alpha, self.params.alpha))
        partner = ctx.randperm(len(batch.y))
        target = batch.soft
        if target is None:
            target = one_hot(batch.y, ctx.federation.n_classes).to(ctx.params.dtype)
        soft = keep * target + (1 - keep) * target[partner]
        if self.params.inputs == "unmixed":
            return replace(batch, soft=soft)
        if not batch.x.is_floating_point():
            raise UserError("mixup: inputs of integers (tokens) cannot be mixed")
        return replace(batch, x=keep * batch.x + (1 - keep) * batch.x[partner], soft=soft)
