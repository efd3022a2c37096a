"""The three modules of CoFedMID put to work in the phases of a round."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch.nn.functional import cross_entropy

from fedbench.core import (
    Batch,
    CoalitionContext,
    Defense,
    FactValue,
    Federation,
    MemberContext,
    MemberData,
    Params,
    ReportContext,
    Selection,
    UserError,
)
from fedbench.plugins.defenses.cofedmid import compensation, partition, perturbation
from fedbench.plugins.defenses.cofedmid.partition import Decay, Rounding


class CoFedMID(Defense):
    """Collaborative membership-inference defense of a coalition, in three modules.

    1. partition: each round every member trains on a few classes, few of them shared, fewer as rounds go by.
    2. compensation: from round ``recycle_from`` it adds some excluded samples of one loss interval, picked by a bandit
       that is paid in validation loss, with a penalty on confidence.
    3. perturbation: one scalar a member and round, added to its last parameters; the weighted sum is zero.

    The noise cancels only if all members take part and the server takes the mean weighted by data volume: under client
    sampling it raises ``UserError`` (``allow_absent``), under a robust aggregation it remains in the model. A scalar
    on a whole final linear layer shifts all logits alike and changes no prediction; the effect is that of the entries
    before it. Members whose assigned classes they hardly own train on recycled samples or not at all.
    Source: Bai et al., "United We Defend" (CoFedMID), sections 4.1 to 4.3, algorithms 1 to 4. Defaults are the paper's
    for CIFAR100 but for ``m_max`` (50 there); CIFAR10: sigma .01, ratio .01; TinyImageNet: sigma .1, ratio .3.
    """

    class Params(Params):
        partition: bool = Field(True, description="module 1: train on assigned classes only")
        compensation: bool = Field(True, description="module 2: recycle excluded samples (needs module 1)")
        perturbation: bool = Field(True, description="module 3: noise that cancels in the aggregate")

        m_max: int | None = Field(None, ge=1, description="classes a member has in round 1; null: all")
        m_min: int | None = Field(None, ge=1, description="classes a member has in the last round; null: 20 % of all")
        decay: Decay = Field("linear", description="how the number of classes falls from m_max to m_min")
        m_round: Rounding = Field("nearest", description="rounding of a fractional number of classes")
        assign: Literal["balanced", "random"] = Field("balanced", description="least overlap, or at random")
        coverage: Literal["max_if_infeasible", "strict"] = Field(
            "max_if_infeasible", description="where members x classes < all classes: as many as possible, or an error"
        )
        min_assigned: int | None = Field(
            None, ge=1, description="with fewer assigned samples a member trains on recycled ones only; null: one batch"
        )

        val_fraction: float = Field(
            0.05, gt=0, le=0.2, description="share of a member's samples held out to validate, where no part of them is already"
        )
        val_min: int = Field(100, ge=1, description="fewest held-out samples; never more than a fifth of the member's")
        recycle_from: int = Field(10, ge=1, description="t', first round that recycles")
        n_intervals: int = Field(10, ge=2, description="M, loss intervals, the arms of the bandit")
        intervals: Literal["fixed_bounds", "requantile"] = Field(
            "fixed_bounds", description="interval bounds set in round t' in normalised losses, or anew every round"
        )
        recycle_limit: float = Field(0.1, ge=0, le=1, description="r_l, recycled samples per training sample, at most")
        exp3_gamma: float = Field(0.1, gt=0, le=1, description="share of uniform exploration in the bandit")
        mu: float = Field(0.005, ge=0, description="weight of the entropy of recycled samples' predictions")
        kl_reduction: Literal["sum", "mean"] = Field("sum", description="of the divergence, over classes")
        detach_soft: bool = Field(True, description="whether the soft label is a constant, without gradient")

        sigma: float = Field(0.1, ge=0, description="standard deviation of the noise before it is projected")
        ratio: float = Field(0.2, gt=0, le=1, description="r_p, share of the parameters perturbed, the last ones")
        noise: Literal["scalar", "vector"] = Field("scalar", description="one number a member, or one a parameter")
        noise_resample: bool = Field(True, description="fresh noise every round, or the same in all")
        allow_absent: bool = Field(False, description="run under client sampling, where the noise does not cancel")

        @model_validator(mode="after")
        def _consistent(self):
            if self.compensation and not self.partition:
                raise ValueError("compensation recycles what partition leaves out: switch it off too, or partition on")
            if self.m_max is not None and self.m_min is not None and self.m_min > self.m_max:
                raise ValueError(f"m_min {self.m_min} exceeds m_max {self.m_max}")
            return self

    def check(self, federation: Federation) -> None:
        """Members that can be absent leave the others' noise in the aggregate."""
        if self.params.perturbation and federation.participation < 1 and not self.params.allow_absent:
            raise UserError(
                f"cofedmid: with participation {federation.participation:g} members can be absent, and the "
                "noise of the others does not cancel: set participation 1, perturbation false or allow_absent true"
            )

    # before round 1: the coordinator

    def begin(self, ctx: CoalitionContext) -> None:
        p = self.params
        self.row = {client: i for i, client in enumerate(ctx.members)}
        if p.partition:
            self.classes = self._plan_classes(ctx)
        if p.perturbation and not p.noise_resample:
            self.fixed_noise = self._noise(ctx)

    def _plan_classes(self, ctx: CoalitionContext) -> np.ndarray:
        """[T, d, N] bool."""
        p, n, rounds, d = self.params, ctx.federation.n_classes, ctx.federation.rounds, len(ctx.members)
        m_max, m_min = self._subset_limits(n)
        assign = partition.assign_balanced if p.assign == "balanced" else partition.assign_random
        plan = []
        for t in range(1, rounds + 1):
            m = partition.subset_size(t, rounds, m_max, m_min, p.decay, p.m_round)
            if p.coverage == "strict" and d * m < n:
                raise UserError(f"cofedmid: from round {t} on, {d} members x {m} classes cannot cover all {n} classes")
            plan.append(assign(n, d, m, ctx.rng))
        return np.stack(plan)

    def _subset_limits(self, n_classes: int) -> tuple[int, int]:
        m_max = n_classes if self.params.m_max is None else self.params.m_max
        fifth = max(1, (n_classes + 2) // 5)  # 20 %, rounded
        m_min = min(fifth, m_max) if self.params.m_min is None else self.params.m_min
        if not m_min <= m_max <= n_classes:
            raise UserError(f"cofedmid: need m_min <= m_max <= {n_classes} classes; got m_min {m_min}, m_max {m_max}")
        return m_max, m_min

    # before round 1: a member

    def prepare(self, data: MemberData, ctx: MemberContext) -> MemberData:
        if not self.params.compensation or data.held_out is not None:  # a validation part is there already
            return data
        n = len(data.y)
        count = min(max(round(self.params.val_fraction * n), self.params.val_min), n // 5)
        held = partition.hold_out(data.y.cpu().numpy(), count, ctx.rng)
        return replace(data, held_out=torch.from_numpy(held).to(data.y.device))

    # every round: a member

    def select(self, ctx: MemberContext) -> Selection | None:
        if not self.params.partition:
            return None
        y = ctx.data.y.cpu().numpy()
        usable = np.ones(len(y), bool) if ctx.data.held_out is None else ~ctx.data.held_out.cpu().numpy()
        assigned = usable & self.classes[ctx.round - 1, self.row[ctx.client]][y]
        recycled = np.zeros_like(usable)
        if self.params.compensation and ctx.round >= self.params.recycle_from:
            recycled = self._recycle(ctx, usable, assigned)
        fewest = ctx.federation.batch_size if self.params.min_assigned is None else self.params.min_assigned
        if assigned.sum() < fewest:
            assigned = np.zeros_like(assigned)
            ctx.memory["missed"] = ctx.memory.get("missed", 0) + 1
        index = np.flatnonzero(assigned | recycled)
        device = ctx.data.y.device
        return Selection(torch.from_numpy(index).to(device), torch.from_numpy(recycled[index]).to(device))

    def _recycle(self, ctx: MemberContext, usable: np.ndarray, assigned: np.ndarray) -> np.ndarray:
        """[n] bool: samples of one interval of the received model's loss, outside the assigned classes."""
        p = self.params
        losses = ctx.losses(ctx.data.x, ctx.data.y).double().cpu().numpy()
        normalised = compensation.normalise(losses[usable])
        if "bounds" not in ctx.memory or p.intervals == "requantile":
            ctx.memory["bounds"] = compensation.interval_bounds(normalised, p.n_intervals)
        bandit = ctx.memory.setdefault("exp3", compensation.Exp3(p.exp3_gamma, np.zeros(p.n_intervals)))
        arm = bandit.draw(ctx.rng)
        ctx.memory.setdefault("pulls", [0] * p.n_intervals)[arm] += 1
        ctx.memory["pull"] = (ctx.round, arm, losses[~usable].mean() if (~usable).any() else None)
        recycled = np.zeros_like(usable)
        recycled[usable] = compensation.buckets(normalised, ctx.memory["bounds"]) == arm
        return compensation.limit(recycled & ~assigned, int(p.recycle_limit * usable.sum() + 1e-9), ctx.rng)

    def loss(self, logits: torch.Tensor, batch: Batch, ctx: MemberContext) -> torch.Tensor:
        loss = cross_entropy(logits, batch.hard_labels("cofedmid"))
        if batch.flag is None:
            return loss
        p = self.params
        extra = compensation.confidence_regulariser(logits, batch.y, p.mu, p.detach_soft, p.kl_reduction)
        return loss + (extra * batch.flag).sum() / len(batch.y)

    def after_round(self, ctx: MemberContext) -> None:
        round_, arm, before = ctx.memory.get("pull", (None, None, None))
        if round_ != ctx.round or before is None:
            return
        held = ctx.data.held_out
        after = ctx.losses(ctx.data.x[held], ctx.data.y[held]).double().mean().item()
        ctx.memory["exp3"].learn(arm, before - after)

    # after the last round

    def report(self, ctx: ReportContext) -> dict[str, FactValue]:
        """How often the members' bandits drew each loss interval, lowest first, and how often a member's assigned classes
        gave it too few samples to train on."""
        facts: dict[str, FactValue] = {}
        if self.params.partition:
            facts["assignments missed"] = sum(memory.get("missed", 0) for memory in ctx.of_member.values())
        if self.params.compensation:
            pulls = [memory.get("pulls", [0] * self.params.n_intervals) for memory in ctx.of_member.values()]
            facts["draws of each loss interval"] = np.sum(pulls, axis=0, dtype=int).tolist()
        return facts

    # every round: the coalition

    def coordinate(self, updates: torch.Tensor, ctx: CoalitionContext) -> torch.Tensor:
        if not self.params.perturbation:
            return updates
        noise = self._noise(ctx) if self.params.noise_resample else self.fixed_noise
        noise = noise[[self.row[client] for client in ctx.present]].to(updates)
        perturbed = updates.clone()
        perturbed[:, updates.shape[1] - perturbation.tail(self.params.ratio, updates.shape[1]) :] += noise
        return perturbed

    def _noise(self, ctx: CoalitionContext) -> torch.Tensor:
        """[d, 1] or [d, P']: every member's, present or not, since all were planned together."""
        columns = 1 if self.params.noise == "scalar" else perturbation.tail(self.params.ratio, ctx.federation.n_params)
        shape = (len(ctx.members), columns)
        raw = torch.randn(shape, generator=ctx.generator, dtype=torch.float64) * self.params.sigma
        return perturbation.project(raw, torch.tensor(ctx.weights, dtype=torch.float64))
