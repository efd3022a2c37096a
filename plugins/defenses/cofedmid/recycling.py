"""CoFedMID's compensation: loss intervals, the bandit that picks one, and the penalty on
confidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from fedbench.core import MemberContext
from fedbench.plugins.defenses.cofedmid import planning
from fedbench.plugins.defenses.cofedmid.planning import CoFedMIDParams


def normalise(losses: np.ndarray) -> np.ndarray:
    """[n] losses to [0, 1] by their minimum and maximum; all 0 if equal."""
    span = np.ptp(losses)
    return (losses - losses.min()) / span if span > 0 else np.zeros_like(losses)


def limit(mask: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """[n] bool: ``mask``, thinned at random to ``most`` entries where it has more."""
    candidates = np.flatnonzero(mask)
    if len(candidates) <= most:
        return mask
    thinned = np.zeros_like(mask)
    thinned[rng.choice(candidates, most, replace=False)] = True
    return thinned


def confidence_regulariser(
    logits: Tensor,
    y: Tensor,
    mu: float,
    detach: bool,
    kl_reduction: Literal["sum", "mean"],
) -> Tensor:
    """[B]: KL(soft || p) - mu H(p), the soft label keeping p_y on the true class and spreading 1 -
    p_y evenly.

    ``logits`` [B, N]. C13: written KL(log p || soft) in the paper, the argument order of
    ``kl_div``; ``kl_reduction``: over classes. C14: ``detach``: the soft label is a label, a
    constant. C17: then the divergence has no gradient at the true logit and p_i - (1 - p_y)/(N - 1)
    at the others: it only levels the wrong classes. C15: ``mu`` is as printed, while HAMP's .005
    went with a divergence divided by the number of classes. Source: CoFedMID section 4.2.2.
    """
    log_p = log_softmax(logits, 1)
    p_true = log_p.gather(1, y[:, None]).exp()
    rest = (1 - p_true) / (logits.shape[1] - 1)
    # Above zero, where the logarithm has no finite gradient.
    soft = (
        rest.expand_as(log_p)
        .scatter(1, y[:, None], p_true)
        .clamp_min(torch.finfo(logits.dtype).tiny)
    )
    if detach:
        soft = soft.detach()
    divergence = torch.xlogy(soft, soft) - soft * log_p
    entropy = -(log_p.exp() * log_p).sum(1)
    return (divergence.sum(1) if kl_reduction == "sum" else divergence.mean(1)) - mu * entropy


_REWARDS_BEFORE_SCALING = 5


@dataclass
class Exp3:
    """One member's bandit over loss intervals (CoFedMID section 4.2.1, steps 2 and 3).

    ``log_weights``: [M], 0 at first, logarithms so that no run is too long for them; ``gamma``:
    share of uniform exploration; ``step``: s, how fast weights follow rewards; ``rewards``: raw
    ones, oldest first. The paper names neither. Auer et al.'s Exp3 is ``step == gamma`` (C10): at
    .1 an arm that is always best has come to .15 after 51 rounds, to .20 after 91, and the paper's
    Figure 5 shows intervals that differ.
    """

    gamma: float
    log_weights: np.ndarray
    step: float
    rewards: list[float] = field(default_factory=list)

    def probabilities(self) -> np.ndarray:
        """[M]: (1 - gamma) w_j / sum(w) + gamma / M."""
        weights = np.exp(self.log_weights - self.log_weights.max())
        return (1 - self.gamma) * weights / weights.sum() + self.gamma / len(weights)

    def draw(self, rng: np.random.Generator) -> int:
        """An arm, by these probabilities."""
        return int(rng.choice(len(self.log_weights), p=self.probabilities()))

    def learn(self, arm: int, reward: float) -> None:
        """w_arm *= exp(step r / (p_arm M)), r being the reward on the scale of the earlier ones."""
        scaled = scale_reward(reward, self.rewards)
        self.rewards.append(reward)
        self.log_weights[arm] += (
            self.step * scaled / (self.probabilities()[arm] * len(self.log_weights))
        )


def best_step(arms: int, rounds: int) -> float:
    """min(1, sqrt(M ln M / ((e - 1) n))): what bounds the regret of M ``arms`` over n ``rounds``
    best when no reward exceeds 1.

    .38 for 10 arms and 91 rounds. Source: Auer et al. 2002, corollary 3.2, there for exploration
    and step in one.
    """
    return min(1.0, math.sqrt(arms * math.log(arms) / ((math.e - 1) * max(1, rounds))))


def scale_reward(reward: float, history: list[float]) -> float:
    """clip(2 (r - r20) / (r80 - r20) - 1, -1, 1) with the 20th and 80th percentile of ``history``.

    C11: 0 with fewer than five earlier rewards, or if the percentiles coincide; all earlier ones of
    the member count. Source: CoFedMID section 4.2.1, step 2.
    """
    if len(history) < _REWARDS_BEFORE_SCALING:
        return 0.0
    r20, r80 = np.percentile(history, [20, 80])
    if r80 - r20 < 1e-12:
        return 0.0
    return float(np.clip(2 * (reward - r20) / (r80 - r20) - 1, -1, 1))


@dataclass(frozen=True)
class Recycled:
    """One round of one member. ``share``: recycled samples per training sample. By the bandit also:
    the interval drawn (``arm``), the ``probabilities`` [M] it was drawn with, and the
    ``proportions`` [M] of the training samples in each.
    """

    round: int
    share: float
    arm: int | None = None
    probabilities: np.ndarray | None = None
    proportions: np.ndarray | None = None


@dataclass
class Recycler:
    """A member's memory of its recycling. ``bounds``: [M-1] of the intervals, from the first time
    on; ``place``: where the sequential strategy goes on in the order of losses; ``drawn``: round,
    arm and validation loss before training.
    """

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

    def choose(
        self, p: CoFedMIDParams, ctx: MemberContext, usable: np.ndarray, assigned: np.ndarray
    ) -> np.ndarray:
        """[n] bool: of the ``usable`` samples those to recycle, outside the ``assigned`` ones.

        C8: intervals are cut over all training samples, assigned or not. C9: r_l is a share of all
        training samples, .1 unless told. Table 8's rivals take just as many every round, as far as
        there are so many: ``random`` any; ``sequential``, which the paper describes as "in order of
        their loss values, from low to high", the next ones in the order of the losses that the
        received model gives in that round, where the last round stopped, and from the lowest again
        after the highest.
        """
        most = int(p.recycle_limit * usable.sum() + 1e-9)
        drawn: Sequence[Any] = ()
        if p.recycle == "random":
            recycled = limit(usable & ~assigned, most, ctx.rng)
        else:
            losses = ctx.losses(ctx.data.x, ctx.data.y).double().cpu().numpy()
            if p.recycle == "sequential":
                recycled = self._next(losses, usable, assigned, most)
            else:
                inside, *drawn = self._draw(p, ctx, losses, usable)
                recycled = limit(inside & ~assigned, most, ctx.rng)
        self.rounds.append(Recycled(ctx.round, float(recycled.sum() / usable.sum()), *drawn))
        return recycled

    def _draw(
        self, p: CoFedMIDParams, ctx: MemberContext, losses: np.ndarray, usable: np.ndarray
    ) -> tuple[Any, ...]:
        """[n] bool, which samples lie in the interval of the received model's losses that the
        bandit picks; as of ``Recycled``, that interval, the probabilities and the proportions.

        C7: its bounds are set in round t' and kept in units of the normalised loss, so that
        intervals grow and shrink as in Figure 5; ``requantile`` cuts equal ones every round. The
        outer ones take what lies beyond.
        """
        normalised = normalise(losses[usable])
        if self.bounds is None or p.intervals == "requantile":
            n, m = len(normalised), p.n_intervals  # M runs of equal size: cut at floor(j n / M)
            self.bounds = np.sort(normalised)[[j * n // m for j in range(1, m)]]
        chances, arm = self.bandit.probabilities(), self.bandit.draw(ctx.rng)
        self.drawn = (ctx.round, arm, losses[~usable].mean()) if (~usable).any() else None
        where = np.searchsorted(self.bounds, normalised, side="right")
        inside = np.zeros_like(usable)
        inside[usable] = where == arm
        return inside, arm, chances, np.bincount(where, minlength=p.n_intervals) / len(where)

    def _next(
        self, losses: np.ndarray, usable: np.ndarray, assigned: np.ndarray, most: int
    ) -> np.ndarray:
        candidates = np.flatnonzero(usable)
        order = np.roll(candidates[np.argsort(losses[candidates], kind="stable")], -self.place)
        taken = np.flatnonzero(~assigned[order])[:most]
        recycled = np.zeros_like(usable)
        recycled[order[taken]] = True
        if len(taken):
            self.place = (self.place + int(taken[-1]) + 1) % len(order)
        return recycled

    def learn(self, ctx: MemberContext) -> None:
        """Pay the arm of this round by the fall of the mean validation loss (equation 1)."""
        if self.drawn is None or self.drawn[0] != ctx.round:
            return
        _, arm, before = self.drawn
        held = ctx.data.held_out
        assert held is not None  # there was a loss on it before
        self.bandit.learn(
            arm, before - ctx.losses(ctx.data.x[held], ctx.data.y[held]).double().mean().item()
        )
