"""CoFedMID's three modules in the phases of a round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedbench.core import (
    Batch,
    CoalitionContext,
    Defense,
    FactValue,
    Federation,
    MemberContext,
    MemberData,
    ReportContext,
    Selection,
    UserError,
)
from fedbench.plugins.defenses.cofedmid import planning, recycling, reports
from fedbench.plugins.defenses.cofedmid.planning import CoFedMIDParams
from fedbench.plugins.defenses.cofedmid.recycling import Recycler
from fedbench.plugins.defenses.early_stopping import hold_out


class CoFedMID(Defense):
    """Collaborative membership-inference defense of a coalition, in three modules.

    1. partition: each round every member trains on a few classes, few of them shared, fewer as
       rounds go by.
    2. compensation: from round ``recycle_from`` it adds some excluded samples of one loss interval,
       picked by a bandit that is paid in validation loss, with a penalty on confidence.
    3. perturbation: one scalar a member and round, added to its last parameters; the weighted sum
       is zero.

    ``mode: independent`` is the paper's comparison (section 2.3, Figure 3): each member draws its
    classes and its noise by itself. The paper does not say what becomes of the noise there.
    Projected, a coalition of one has none; here each member keeps its N(0, sigma^2), which is not
    cancelled, and ``perturbation: false`` takes it away.

    The noise cancels only if all members take part and the server takes the mean, by data volume or
    with equal weights (C20): under client sampling it raises ``UserError`` (``allow_absent``);
    that, shuffled weights and any other rule leave noise in the model, which ``remarks`` says
    before and the fact ``remarks`` after the training. A scalar on a whole final linear layer
    shifts all logits alike and changes no prediction; the effect is that of the entries before it
    (C19). Members that hardly own samples of their assigned classes train on recycled samples or
    not at all (C22).

    Not for a defense to settle: which client is attacked and by which others' models (C23), that
    samples of classes never assigned count as members (C24), that rivals defend the same coalition
    (C26). Every member validates on data of its own (C6): what other members or a public split
    hold, no context tells, so there is no ``val: shared``. Source: Bai et al., "United We Defend"
    (CoFedMID), sections 4.1 to 4.3, algorithms 1 to 4. What is open in it is numbered C1 to C26,
    each settled where it is implemented. Defaults are the paper's for CIFAR-100 (Table 1);
    TinyImageNet (Table 19): m_max 1, ratio .3; CIFAR-10 (Table 17): m_max 1, sigma .01, ratio .01.
    """

    # a stratified hold-out; losses, validation and class sizes choose samples
    private = ("prepare", "select")

    Params = CoFedMIDParams
    params: CoFedMIDParams
    classes: ndarray | None = None  # [T, d, N] bool of the coalition's plan

    @property
    def least_members(self) -> int:  # type: ignore[override]
        """Smallest coalition: one member has no other to share classes with, and its noise cancels
        to nothing.
        """
        return 2 if self.params.mode == "collaborative" else 1

    def check(self, federation: Federation) -> None:
        """Raise ``UserError`` for too few classes or rounds, and where noise cannot cancel."""
        p = self.params
        if p.partition:
            planning.class_limits(p, federation.n_classes)
        if p.compensation:
            planning.first_recycling(p, federation.rounds)
        if p.shared_noise and federation.participation < 1 and not p.allow_absent:
            raise UserError(
                f"cofedmid: with participation {federation.participation:g} members can be absent, "
                "and the noise of the others does not cancel: set participation 1, perturbation "
                "false or allow_absent true"
            )

    def remarks(self, federation: Federation) -> Sequence[str]:
        """Say which noise will not cancel."""
        return list(reports.before(self.params, federation))

    # before round 1: the coordinator

    def begin(self, ctx: CoalitionContext) -> None:
        p = self.params
        self.row = {client: i for i, client in enumerate(ctx.members)}
        if p.mode == "collaborative" and p.partition:
            self.classes = planning.plan_classes(p, ctx)

    # before round 1: a member

    def prepare(self, data: MemberData, ctx: MemberContext) -> MemberData:
        p = self.params
        n = len(data.y)
        perturbed = planning.tail(p.ratio, ctx.federation.n_params)
        ctx.memory["final layer"] = planning.in_final_layer(ctx.model, perturbed)
        if p.compensation and data.held_out is None:  # else a validation part is there already
            count = min(max(round(p.val_fraction * n), p.val_min), n // 5)
            data = hold_out(data, count, ctx.rng)
        if p.partition and n and not len(data.trainable):
            raise UserError(
                f"cofedmid: all {n} samples of client {ctx.client} are held out to validate on and "
                "none is left to train on: lower the validation part of the federation, or of the "
                "defense that holds them out"
            )
        return data

    # every round: a member

    def select(self, ctx: MemberContext) -> Selection | None:
        p = self.params
        if not p.partition:
            return None
        y = ctx.data.y.cpu().numpy()
        device = ctx.data.y.device
        usable = np.zeros(len(y), bool)
        usable[ctx.data.trainable.cpu().numpy()] = True
        assigned = usable & self._classes_of(ctx)[y]
        recycled = self._recycled(ctx, usable, assigned)
        # C22: a step or two on a handful is not what was assigned
        missed = assigned.sum() < planning.fewest_samples(p, ctx.federation)
        if missed:
            assigned = np.zeros_like(assigned)
        index = np.flatnonzero(assigned | recycled)
        counts = ctx.memory.setdefault("counts", Counter())
        counts.update(asked=1, missed=int(missed), idle=int(len(index) == 0))
        flag = torch.from_numpy(recycled[index])
        return Selection(torch.from_numpy(index).to(device), flag.to(device))

    def _classes_of(self, ctx: MemberContext) -> ndarray:
        """Classes [N] of this round, as the coordinator planned, or drawn by the member alone."""
        if self.classes is not None:
            return self.classes[ctx.round - 1, self.row[ctx.client]]
        m = planning.sizes(self.params, ctx.federation)[ctx.round - 1]
        return planning.assign_random(ctx.federation.n_classes, 1, m, ctx.rng)[0]

    def _recycled(self, ctx: MemberContext, usable: ndarray, assigned: ndarray) -> ndarray:
        """Mask [n] of the samples that are recycled; none before the first round that does."""
        p = self.params
        rounds = ctx.federation.rounds
        if p.compensation and usable.any() and ctx.round >= planning.first_recycling(p, rounds):
            return Recycler.of(p, ctx).choose(p, ctx, usable, assigned)
        return np.zeros_like(usable)

    def loss(self, logits: Tensor, batch: Batch, ctx: MemberContext) -> Tensor:
        """Return [sum CE + sum over recycled CR] / B.

        C16: assigned and recycled samples come in the same shuffled batches.
        """
        p = self.params
        y = batch.hard_labels("cofedmid")
        loss = cross_entropy(logits, y)
        if batch.flag is None or not p.confidence:
            return loss
        penalty = recycling.confidence_regulariser(logits, y, p.mu, p.detach_soft, p.kl_reduction)
        return loss + (penalty * batch.flag).sum() / len(y)

    def protect(self, update: Tensor, ctx: MemberContext) -> Tensor:
        """Add a member's own noise in the independent mode."""
        if not self.params.raw_noise:
            return update
        noise = planning.draw_noise(self.params, 1, ctx.federation, ctx.device_generator)
        return self._perturbed(update[None], noise)[0]

    def after_round(self, ctx: MemberContext) -> None:
        if "recycler" in ctx.memory:
            ctx.memory["recycler"].learn(ctx)

    # every round: the coalition

    def coordinate(self, updates: Tensor, ctx: CoalitionContext) -> Tensor:
        if not self.params.shared_noise:
            return updates
        if len(ctx.present) < len(ctx.members):
            ctx.memory["absent"] = ctx.memory.get("absent", 0) + 1
        rows = [self.row[client] for client in ctx.present]
        return self._perturbed(updates, self._shared_noise(ctx)[rows])

    def _shared_noise(self, ctx: CoalitionContext) -> Tensor:
        """Draw [d, 1] or [d, P'], for all members, present or not, since they are planned together.

        C18: a scalar a member, fresh every round, as the paper's two numbers a member and round
        have room for; ``noise: vector`` is the other reading of "N(0, sigma^2 I)".
        """
        n = len(ctx.members)
        noise = planning.draw_noise(self.params, n, ctx.federation, ctx.device_generator)
        weights = torch.tensor(ctx.weights, dtype=noise.dtype, device=noise.device)
        return planning.project(noise, weights)

    def _perturbed(self, updates: Tensor, noise: Tensor) -> Tensor:
        """Add ``noise`` [n, 1] or [n, P'] to the last P' parameters of [n, P]."""
        n_params = updates.shape[1]
        perturbed = updates.clone()
        perturbed[:, n_params - planning.tail(self.params.ratio, n_params) :] += noise.to(updates)
        return perturbed

    # after the last round

    def report(self, ctx: ReportContext) -> dict[str, FactValue]:
        """Report draws of the bandits, samples recycled and left out, bytes sent, and remarks."""
        return reports.facts_of(self.params, self.classes, ctx)
