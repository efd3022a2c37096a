"""Utility-aware compensation, first half: which of the excluded samples a member uses again in a round."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedbench.core import MemberContext
from fedbench.plugins.defenses.cofedmid import compensation, planning
from fedbench.plugins.defenses.cofedmid.exp3 import Exp3, best_step
from fedbench.plugins.defenses.cofedmid.params import CoFedMIDParams


@dataclass(frozen=True)
class Recycled:
    """One round of one member. ``share``: recycled samples per training sample. By the bandit also: the interval drawn
    (``arm``), the ``probabilities`` [M] it was drawn with, and the ``proportions`` [M] of the training samples in each."""

    round: int
    share: float
    arm: int | None = None
    probabilities: np.ndarray | None = None
    proportions: np.ndarray | None = None


@dataclass
class Recycler:
    """A member's memory of its recycling. ``bounds``: [M-1] of the intervals, from the first time on; ``place``: where the
    sequential strategy goes on in the order of losses; ``drawn``: round, arm and validation loss before training."""

    bandit: Exp3
    bounds: np.ndarray | None = None
    place: int = 0
    drawn: tuple[int, int, float] | None = None
    rounds: list[Recycled] = field(default_factory=list)

    @classmethod
    def of(cls, p: CoFedMIDParams, ctx: MemberContext) -> Recycler:
        """The member's, made in the first round that recycles."""
        if "recycler" not in ctx.memory:
            n = ctx.federation.rounds - planning.first_recycling(p, ctx.federation.rounds) + 1
            step = best_step(p.n_intervals, n) if p.exp3_step is None else p.exp3_step
            ctx.memory["recycler"] = cls(Exp3(p.exp3_gamma, np.zeros(p.n_intervals), step))
        found: Recycler = ctx.memory["recycler"]
        return found

    def choose(self, p: CoFedMIDParams, ctx: MemberContext, usable: np.ndarray, assigned: np.ndarray) -> np.ndarray:
        """[n] bool: of the ``usable`` samples those to recycle, outside the ``assigned`` ones.

        C8: intervals are cut over all training samples, assigned or not. C9: r_l is a share of all training samples, .1
        unless told. Table 8's rivals take just as many every round, as far as there are so many: ``random`` any;
        ``sequential``, which the paper describes as "in order of their loss values, from low to high", the next ones in the
        order of the losses that the received model gives in that round, where the last round stopped, and from the lowest
        again after the highest.
        """
        most = int(p.recycle_limit * usable.sum() + 1e-9)
        if p.recycle == "random":
            return self._note(ctx, usable, compensation.limit(usable & ~assigned, most, ctx.rng))
        losses = ctx.losses(ctx.data.x, ctx.data.y).double().cpu().numpy()
        if p.recycle == "sequential":
            return self._note(ctx, usable, self._next(losses, usable, assigned, most))
        return self._draw(p, ctx, losses, usable, assigned, most)

    def _draw(
        self, p: CoFedMIDParams, ctx: MemberContext, losses: np.ndarray, usable: np.ndarray, assigned: np.ndarray, most: int
    ) -> np.ndarray:
        """One interval of the received model's losses, picked by the bandit.

        C7: its bounds are set in round t' and kept in units of the normalised loss, so that intervals grow and shrink as in
        Figure 5; ``requantile`` cuts equal ones every round. The outer ones take what lies beyond.
        """
        normalised = compensation.normalise(losses[usable])
        if self.bounds is None or p.intervals == "requantile":
            self.bounds = compensation.interval_bounds(normalised, p.n_intervals)
        chances, arm = self.bandit.probabilities(), self.bandit.draw(ctx.rng)
        self.drawn = (ctx.round, arm, losses[~usable].mean()) if (~usable).any() else None
        where = compensation.buckets(normalised, self.bounds)
        recycled = np.zeros_like(usable)
        recycled[usable] = where == arm
        proportions = np.bincount(where, minlength=p.n_intervals) / len(where)
        return self._note(ctx, usable, compensation.limit(recycled & ~assigned, most, ctx.rng), arm, chances, proportions)

    def _next(self, losses: np.ndarray, usable: np.ndarray, assigned: np.ndarray, most: int) -> np.ndarray:
        candidates = np.flatnonzero(usable)
        order = np.roll(candidates[np.argsort(losses[candidates], kind="stable")], -self.place)
        taken = np.flatnonzero(~assigned[order])[:most]
        recycled = np.zeros_like(usable)
        recycled[order[taken]] = True
        if len(taken):
            self.place = (self.place + int(taken[-1]) + 1) % len(order)
        return recycled

    def _note(
        self, ctx: MemberContext, usable: np.ndarray, recycled: np.ndarray, arm: int | None = None,
        probabilities: np.ndarray | None = None, proportions: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        share = float(recycled.sum() / usable.sum())
        self.rounds.append(Recycled(ctx.round, share, arm, probabilities, proportions))
        return recycled

    def learn(self, ctx: MemberContext) -> None:
        """Pay the arm of this round by the fall of the mean validation loss (equation 1)."""
        if self.drawn is None or self.drawn[0] != ctx.round:
            return
        _, arm, before = self.drawn
        held = ctx.data.held_out
        assert held is not None  # there was a loss on it before
        self.bandit.learn(arm, before - ctx.losses(ctx.data.x[held], ctx.data.y[held]).double().mean().item())
