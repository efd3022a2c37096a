"""CoFedMID's compensation: loss intervals, the bandit over them, the penalty on confidence."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor
from torch.nn.functional import log_softmax

from fedbench.core import MemberContext
from fedbench.plugins.defenses.cofedmid import planning
from fedbench.plugins.defenses.cofedmid.planning import CoFedMIDParams
from fedbench.plugins.defenses.early_stopping import validation_loss
from fedbench.plugins.defenses.losses import entropy


def normalise(losses: ndarray) -> ndarray:
    """Scale losses [n] to [0, 1] by their minimum and maximum; all 0 if equal."""
    span = np.ptp(losses)
    return (losses - losses.min()) / span if span > 0 else np.zeros_like(losses)


def limit(mask: ndarray, most: int, rng: np.random.Generator) -> ndarray:
    """Thin ``mask`` [n] at random to ``most`` entries where it has more."""
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
    """Return KL(soft || p) - mu H(p), [B], of soft labels that spread 1 - p_y evenly.

    ``logits`` [B, N]. C13: written KL(log p || soft) in the paper, the argument order of
    ``kl_div``; ``kl_reduction``: over classes. C14: ``detach``: the soft label is a label, a
    constant. C17: then the divergence has no gradient at the true logit and p_i - (1 - p_y)/(N - 1)
    at the others: it only levels the wrong classes. C15: ``mu`` is as printed, while HAMP's .005
    went with a divergence divided by the number of classes. Source: CoFedMID section 4.2.2.
    """
    log_p = log_softmax(logits, 1)
    p_true = log_p.gather(1, y[:, None]).exp()
    rest = (1 - p_true) / (logits.shape[1] - 1)
    soft = rest.expand_as(log_p).scatter(1, y[:, None], p_true)
    # above zero, where the logarithm has no finite gradient
    soft = soft.clamp_min(torch.finfo(logits.dtype).tiny)
    if detach:
        soft = soft.detach()
    terms = torch.xlogy(soft, soft) - soft * log_p
    bonus = mu * entropy(log_p)
    kl = terms.sum(1) if kl_reduction == "sum" else terms.mean(1)
    return kl - bonus


_REWARDS_BEFORE_SCALING = 5


@dataclass
class Exp3:
    """Bandit of a member over loss intervals (CoFedMID section 4.2.1, steps 2 and 3).

    ``log_weights``: [M], 0 at first, logarithms so that no run is too long for them; ``gamma``:
    share of uniform exploration; ``step``: s, how fast weights follow rewards; ``rewards``: raw
    ones, oldest first. The paper names neither. Auer et al.'s Exp3 is ``step == gamma`` (C10): at
    .1 an arm that is always best has come to .15 after 51 rounds, to .20 after 91, and the paper's
    Figure 5 shows intervals that differ.
    """

    gamma: float
    log_weights: ndarray
    step: float
    rewards: list[float] = field(default_factory=list)

    def probabilities(self) -> ndarray:
        """Return (1 - gamma) w_j / sum(w) + gamma / M for each of the M arms."""
        weights = np.exp(self.log_weights - self.log_weights.max())
        return (1 - self.gamma) * weights / weights.sum() + self.gamma / len(weights)

    def learn(self, arm: int, reward: float) -> None:
        """Set w_arm *= exp(step r / (p_arm M)), r the reward on the scale of the earlier ones."""
        scaled = scale_reward(reward, self.rewards)
        self.rewards.append(reward)
        probabilities = self.probabilities()
        self.log_weights[arm] += self.step * scaled / (probabilities[arm] * len(probabilities))


def best_step(arms: int, rounds: int) -> float:
    """Return min(1, sqrt(M ln M / ((e - 1) n))), with M ``arms`` and n ``rounds``.

    It bounds the regret best when no reward exceeds 1: .38 for 10 arms and 91 rounds. Source: Auer
    et al. 2002, corollary 3.2, there for exploration and step in one.
    """
    return min(1.0, math.sqrt(arms * math.log(arms) / ((math.e - 1) * max(1, rounds))))


def scale_reward(reward: float, history: list[float]) -> float:
    """Return clip(2 (r - r20) / (r80 - r20) - 1, -1, 1), by percentiles of the ``history``.

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
    """Record of a member's round, with what the bandit drew if it did."""

    round: int
    share: float = 0.0
    """Recycled samples per training sample."""
    arm: int | None = None
    """Interval drawn."""
    probabilities: ndarray | None = None
    """Probability [M] with which each interval was drawn."""
    proportions: ndarray | None = None
    """Share [M] of the training samples in each interval."""


@dataclass
class Recycler:
    """A member's memory of its recycling."""

    bandit: Exp3
    bounds: ndarray | None = None
    """Bounds [M-1] between intervals, from the first time on."""
    place: int = 0
    """Where the sequential strategy goes on in the order of losses."""
    drawn: tuple[int, int, float] | None = None
    """Round, arm and validation loss before training."""
    rounds: list[Recycled] = field(default_factory=list)

    @classmethod
    def of(cls, p: CoFedMIDParams, ctx: MemberContext) -> Recycler:
        """Return the member's recycler, made in the first round that recycles."""
        if "recycler" not in ctx.memory:
            rounds = ctx.federation.rounds
            n = rounds - planning.first_recycling(p, rounds) + 1
            step = p.exp3_step or best_step(p.n_intervals, n)
            ctx.memory["recycler"] = cls(Exp3(p.exp3_gamma, np.zeros(p.n_intervals), step))
        return ctx.memory["recycler"]

    def within(self, rounds: range) -> list[Recycled]:
        """Return the records of these rounds."""
        return [record for record in self.rounds if record.round in rounds]

    def choose(
        self, p: CoFedMIDParams, ctx: MemberContext, usable: ndarray, assigned: ndarray
    ) -> ndarray:
        """Mask [n] of the ``usable`` samples to recycle, outside the ``assigned`` ones.

        C8: intervals are cut over all training samples, assigned or not. C9: r_l is a share of all
        training samples, .1 unless told. Table 8's rivals take just as many every round, as far as
        there are so many: ``random`` any; ``sequential``, which the paper describes as "in order of
        their loss values, from low to high", the next ones in the order of the losses that the
        received model gives in that round, where the last round stopped, and from the lowest again
        after the highest.
        """
        most = int(p.recycle_limit * usable.sum() + 1e-9)
        record = Recycled(ctx.round)
        candidates = usable
        if p.recycle != "random":
            losses = ctx.losses(ctx.data.x, ctx.data.y).double().cpu().numpy()
        if p.recycle == "mab":
            candidates, record = self._draw(p, ctx, losses, usable)
        if p.recycle == "sequential":
            recycled = self._next(losses, usable, assigned, most)
        else:
            recycled = limit(candidates & ~assigned, most, ctx.rng)
        self.rounds.append(replace(record, share=float(recycled.sum() / usable.sum())))
        return recycled

    def _draw(
        self, p: CoFedMIDParams, ctx: MemberContext, losses: ndarray, usable: ndarray
    ) -> tuple[ndarray, Recycled]:
        """Mask [n] of the interval of the received model's losses that the bandit picks."""
        interval = self._intervals(p, normalise(losses[usable]))
        probabilities = self.bandit.probabilities()
        arm = int(ctx.rng.choice(p.n_intervals, p=probabilities))
        self.drawn = None
        if not usable.all():
            self.drawn = ctx.round, arm, losses[~usable].mean()
        inside = np.zeros_like(usable)
        inside[usable] = interval == arm
        proportions = np.bincount(interval, minlength=p.n_intervals) / len(interval)
        return inside, Recycled(ctx.round, 0.0, arm, probabilities, proportions)

    def _intervals(self, p: CoFedMIDParams, losses: ndarray) -> ndarray:
        """Interval [n] of each normalised loss; the outer ones take what lies beyond.

        C7: bounds are set in round t' and kept in units of the normalised loss, so that intervals
        grow and shrink as in Figure 5; ``requantile`` cuts equal ones every round.
        """
        if self.bounds is None or p.intervals == "requantile":
            n = len(losses)
            m = p.n_intervals
            self.bounds = np.sort(losses)[[j * n // m for j in range(1, m)]]  # runs of equal size
        return np.searchsorted(self.bounds, losses, side="right")

    def _next(self, losses: ndarray, usable: ndarray, assigned: ndarray, most: int) -> ndarray:
        """Mask [n] of the next samples in the order of losses."""
        candidates = np.flatnonzero(usable)
        order = np.roll(candidates[np.argsort(losses[candidates], kind="stable")], -self.place)
        places = np.flatnonzero(~assigned[order])[:most]
        recycled = np.zeros_like(usable)
        recycled[order[places]] = True
        if len(places):
            self.place = (self.place + int(places[-1]) + 1) % len(order)
        return recycled

    def learn(self, ctx: MemberContext) -> None:
        """Pay the arm of this round by the fall of the mean validation loss (equation 1)."""
        if self.drawn is None or self.drawn[0] != ctx.round:
            return
        _, arm, before = self.drawn
        self.bandit.learn(arm, before - validation_loss(ctx, ctx.data.y))
