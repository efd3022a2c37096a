"""Defenses that train on mixtures of samples: mixup and InstaHide."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from pydantic import Field, model_validator
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


class InstaHide(Defense):
    """Replace each sample by m * (l_1 x_1 + ... + l_k x_k) with k of the member's samples and a sign mask m.

    x_1 is the sample itself, the others are distinct ones of the member's training data, every one used equally often.
    The weights l are uniform on the simplex with no weight above ``bound``, labels are mixed with them, and m is
    uniform in {-1, +1} for every input value. The whole client is encoded anew in every local epoch. Test and
    audit samples reach the model as they are, which costs accuracy: the model has learnt on masked inputs.
    Source: Huang et al. (ICML 2020), section 3 and algorithm 1, inside-dataset; FedMIA's code has k = 3, bound .65.
    The encoding is no encryption: Carlini et al. (IEEE S&P 2021) recover images from it.
    """

    class Params(Params):
        k: int = Field(3, ge=1, le=8, description="samples in a mixture, the encoded one included; 1: the mask alone")
        bound: float = Field(0.65, gt=0, le=1, description="largest weight of one sample in a mixture (k above 1)")

        @model_validator(mode="after")
        def _feasible(self):
            if self.k > 1 and self.bound * self.k <= 1:
                raise ValueError(f"{self.k} weights of at most {self.bound:g} cannot sum to 1: raise bound above 1/k")
            return self

    def transform(self, batch: Batch, ctx: MemberContext) -> Batch:
        if not batch.x.is_floating_point():
            raise UserError("instahide: inputs of integers (tokens) cannot be mixed")
        partners, weights = (a[batch.index] for a in self._plan(ctx))
        weights = weights.to(batch.x)
        data, classes = ctx.data, ctx.federation.n_classes
        each = [(batch.x, _target(batch.y, batch.soft, classes))]  # as earlier transformations left it
        for o in partners.T:
            soft = None if data.soft is None else data.soft[o]
            each.append((ctx.normalise(data.x[o]), _target(data.y[o], soft, classes)))
        x = torch.stack([_rows(weights[:, j], part) * part for j, (part, _) in enumerate(each)]).sum(0)
        target = torch.stack([weights[:, j, None] * part for j, (_, part) in enumerate(each)]).sum(0)
        mask = 2 * torch.randint(0, 2, batch.x.shape, generator=ctx.generator, dtype=torch.int8) - 1
        return replace(batch, x=x * mask.to(batch.x), soft=target)

    def _plan(self, ctx: MemberContext) -> tuple[torch.Tensor, torch.Tensor]:
        """Which samples are mixed, and how much of each, in this local epoch."""
        epoch, plan = ctx.memory.get("plan", (None, None))
        if epoch != ctx.epoch:
            usable = ctx.data.trainable.cpu().numpy()
            if len(usable) < self.params.k:
                raise UserError(
                    f"instahide: client {ctx.client} has {len(usable)} samples and cannot mix {self.params.k}; lower k"
                )
            drawn = draw_plan(len(ctx.data.y), usable, self.params.k, self.params.bound, ctx.rng)
            plan = tuple(torch.from_numpy(a).to(ctx.data.y.device) for a in drawn)
            ctx.memory["plan"] = ctx.epoch, plan
        return plan


def draw_plan(n: int, usable: np.ndarray, k: int, bound: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """[n, k - 1] partners and [n, k] weights of every sample of ``usable`` [m].

    Distinct partners, never the sample itself, each sample being partner k - 1 times: distinct shifts of a ring.
    """
    ring = rng.permutation(usable)
    place = np.zeros(n, np.int64)
    place[ring] = np.arange(len(ring))
    shifts = 1 + rng.choice(len(ring) - 1, k - 1, replace=False) if k > 1 else np.zeros(0, np.int64)
    weights = np.ones((n, 1)) if k == 1 else bounded_weights(n, k, bound, rng)
    return ring[(place[:, None] + shifts) % len(ring)], weights.astype(np.float32)


def bounded_weights(n: int, k: int, bound: float, rng: np.random.Generator) -> np.ndarray:
    """[n, k] float64, each row uniform on the simplex with no entry above ``bound`` (> 1/k).

    By rejection, from the smaller of two simplices that hold that set: all weights, or bound minus those of a simplex
    of side k * bound - 1 (entries at most ``bound``, some perhaps negative).
    """
    side = k * bound - 1

    def draw(rows: int) -> np.ndarray:
        even = rng.dirichlet(np.ones(k), rows)
        return bound - side * even if side < 1 else even

    weights = draw(n)
    while len(bad := np.flatnonzero(((weights > bound) | (weights < 0)).any(1))):
        weights[bad] = draw(len(bad))
    return weights


def _target(y: torch.Tensor, soft: torch.Tensor | None, classes: int) -> torch.Tensor:
    """[B, C] target probabilities."""
    return one_hot(y, classes).float() if soft is None else soft


def _rows(weights: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """[B] as a column that scales the samples of ``like`` [B, ...]."""
    return weights.view(-1, *[1] * (like.ndim - 1))
