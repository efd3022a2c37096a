"""FedPoisonMIA: wrong labels behind samples chosen so that the malicious row stays near the honest
ones by angle.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import torch
from numpy import ndarray
from pydantic import Field
from torch import Tensor

from fedbench.core import Knowledge, SkipCell, norms
from fedbench.plugins.attacks.poisoning.base import (
    ABOUT_DRAW,
    Draw,
    Jitter,
    Poisoning,
    benign_rows,
    copies,
    wrong_labels,
)
from fedbench.plugins.attacks.poisoning.evasion import cosines, least_cosine, products, unit_rows

Objective = Literal["angle", "norm"]
SLACK = 1e-9  # of a cosine: float64 rounding at a point that lies on the bound


@dataclass(frozen=True)
class Segment:
    """Candidates a(s) = s m + v, 0 <= s <= 1, by inner products with n unit benign rows."""

    mask: ndarray
    """[n]: of m"""
    poison: ndarray
    """[n]: of v"""
    mask_sq: float
    """|m|^2"""
    cross: float
    """<m, v>"""
    poison_sq: float
    """|v|^2"""

    def squared(self, s: ndarray) -> ndarray:
        """Return |a(s)|^2 [k]."""
        return np.maximum(s * s * self.mask_sq + 2 * s * self.cross + self.poison_sq, 0.0)

    def least_cosine(self, s: ndarray) -> ndarray:
        """Return the cosine [k] of the largest angle between a(s) and a benign row."""
        return cosines(s[:, None] * self.mask + self.poison, self.squared(s)).min(axis=1)

    def stationary(self) -> ndarray:
        """Return where the cosine (p s + q) / sqrt(A s^2 + 2 B s + C) with each benign row has
        slope 0, [n]; not finite if nowhere.
        """
        p = self.mask
        q = self.poison
        b = self.cross
        with np.errstate(divide="ignore", invalid="ignore"):
            return (q * b - p * self.poison_sq) / (p * b - q * self.mask_sq)


def optimal_scale(segment: Segment, bound: float, objective: Objective) -> float | None:
    """Return the s in [0, 1] with the largest objective among those with all cosines >= ``bound``;
    None if there is none.

    No search: a cosine along a segment has one stationary point and meets the bound at the roots of
    a quadratic. The allowed s are intervals between such roots, 0 and 1; within one, the largest
    angle is attained at an end or a stationary point, the norm (convex) at an end. Of equal optima
    the smallest s is taken: more of what is sent is poison then. Source: Mo et al. (FedPoisonMIA),
    ICCV 2025, equation 6 (the released code's call of SLSQP for it is commented out).
    """
    s = _scales(segment, _bound_roots(segment, bound))
    s = s[segment.least_cosine(s) >= bound - SLACK]
    if len(s) == 0:
        return None
    value = -segment.least_cosine(s) if objective == "angle" else segment.squared(s)
    return float(s[value >= value.max() - SLACK * np.abs(value).max()].min())


def closest_scale(segment: Segment) -> float:
    """Return the s in [0, 1] of the smallest largest angle to a benign row, for where the bound
    cannot be kept.

    The least of several cosines is largest at 0 or 1, where one of them is stationary, or where two
    of them cross.
    """
    p = segment.mask
    q = segment.poison
    with np.errstate(divide="ignore", invalid="ignore"):
        crossings = (-(q[:, None] - q) / (p[:, None] - p)).ravel()
    s = _scales(segment, crossings)
    return float(s[segment.least_cosine(s).argmax()])


def _scales(segment: Segment, more: ndarray) -> ndarray:
    """Return 0, 1, every stationary point of a cosine, and ``more`` points, within [0, 1]."""
    s = np.concatenate([[0.0, 1.0], segment.stationary(), more])
    return s[np.isfinite(s) & (s >= 0) & (s <= 1)]


def _bound_roots(segment: Segment, bound: float) -> ndarray:
    """Return every point [2n] where a cosine may meet the bound: the roots of (p s + q)^2 = bound^2
    (A s^2 + 2 B s + C). Those of the other sign are not feasible.
    """
    p = segment.mask
    q = segment.poison
    a = segment.mask_sq
    b = segment.cross
    c = segment.poison_sq
    square = p * p - bound**2 * a
    half = p * q - bound**2 * b
    rest = q * q - bound**2 * c
    with np.errstate(divide="ignore", invalid="ignore"):
        # half^2 - square rest, its factor bound^2 taken out by hand: near a right angle it would
        # drown in rounding
        inner = p * p * c - 2 * p * q * b + q * q * a - bound**2 * (a * c - b * b)
        root = abs(bound) * np.sqrt(np.maximum(inner, 0.0))
        # a sum without cancellation; the other root follows from it
        large = -(half + np.where(half < 0, -root, root))
        return np.concatenate([large / square, rest / large])


Search = Literal["full", "best"]


@dataclass(frozen=True, kw_only=True)
class Masks:
    """Inner products of the mask samples' updates g_1..g_N, the poison v and n unit benign rows."""

    squared: ndarray
    """[N]: |g_i|^2"""
    poison: ndarray
    """[N]: <g_i, v>"""
    benign: ndarray
    """[N, n]: of g_i with each benign row"""
    poison_benign: ndarray
    """[n]: of v with each benign row"""
    poison_sq: float
    """|v|^2"""
    row: Callable[[int], ndarray]
    """i -> [N]: <g_i, g_j>, computed when sample i is chosen: the whole [N, N] costs as much as N /
    chosen rounds
    """

    @classmethod
    def of(cls, updates: Tensor, poison: Tensor, benign: Tensor) -> Masks:
        """Compute them from the updates [N, P], the poison [P] and the unit benign rows [n, P]."""
        rows = torch.cat([poison[None], benign])
        # few rows first: half the time
        dots = products(rows, updates).T
        poison_dots = products(rows[:1], rows)[0]
        return cls(
            squared=norms(updates).square().cpu().numpy(),
            poison=dots[:, 0],
            benign=dots[:, 1:],
            poison_benign=poison_dots[1:],
            poison_sq=float(poison_dots[0]),
            row=cache(lambda i: products(updates[i : i + 1], updates)[0]),
        )

    def sums(self, chosen: list[int]) -> tuple[ndarray, float, ndarray]:
        """Return the products of the chosen updates' sum c with the benign rows [n], |c|^2, and its
        products with all g_j [N].
        """
        squared = 0.0
        row = np.zeros(len(self.poison))
        for i in chosen:
            squared += 2 * float(row[i]) + float(self.squared[i])
            row = row + self.row(i)
        return self.benign[chosen].sum(axis=0), squared, row

    def extended(self, chosen: list[int], scale: float) -> tuple[ndarray, ndarray]:
        """Return (least cosine to a benign row [N], squared norm [N]) of scale m + v, m the mean of
        the chosen updates and one more each.
        """
        benign, length, row = self.sums(chosen)
        share = scale / (len(chosen) + 1)
        dots = share * (benign + self.benign) + self.poison_benign
        squared = 2 * share * (sum(self.poison[chosen].tolist()) + self.poison) + self.poison_sq
        squared += share**2 * (length + 2 * row + self.squared)
        np.maximum(squared, 0.0, out=squared)
        return cosines(dots, squared).min(axis=1), squared

    def segment(self, chosen: list[int]) -> Segment:
        """Return s -> s m + v for m = the mean of the chosen updates (zero if there are none)."""
        k, (benign, length, _) = max(len(chosen), 1), self.sums(chosen)
        cross = sum(self.poison[chosen].tolist()) / k
        return Segment(benign / k, self.poison_benign, length / k**2, cross, self.poison_sq)


def greedy(
    masks: Masks, bound: float, count: int, scale: float, objective: Objective, search: Search
) -> list[int]:
    """Return the positions of the chosen mask samples, in the order of choice.

    Starting from none, the sample joins that makes the objective of scale m + v largest (m: the
    mean of the chosen updates) among those that keep every cosine to a benign row >= ``bound``. The
    paper does not say what follows when no sample does: ``full`` takes the one that comes closest,
    so that ``count`` samples are chosen in any case; ``best`` stops there, and of the sets on the
    way returns the one with the largest objective (the released code). Source: Mo et al.
    (FedPoisonMIA), ICCV 2025, equation 5 and algorithm 1.
    """
    chosen: list[int] = []
    free = np.ones(len(masks.poison), bool)
    best_value = -np.inf
    best = chosen
    for _ in range(min(count, len(free))):
        least, squared = masks.extended(chosen, scale)
        value = -least if objective == "angle" else squared
        allowed = free & (least >= bound - SLACK)
        if allowed.any():
            pick = int(np.where(allowed, value, -np.inf).argmax())
        elif search == "best":
            break
        else:
            pick = int(np.where(free, least, -np.inf).argmax())
        chosen, free[pick] = [*chosen, pick], False
        if value[pick] > best_value:
            best_value = value[pick]
            best = chosen
    return best if search == "best" else chosen


class FedPoisonMIA(Poisoning):
    """Send s m + v from every malicious client (equation 3), as deviant as benign updates are from
    each other, no more.

    v: one step on the attack set with wrong labels. m: the mean of one-step updates on single mask
    samples, chosen greedily (equation 5). s: the best scale in [0, 1] for that m (equation 6).
    Objective: the largest angle to a benign row, which must not exceed the largest angle between
    two benign rows. Benign rows: the other clients' with full knowledge, its own clients' honest
    ones with partial knowledge; in a round with fewer than two in sight there is no bound to keep,
    and its clients send what they honestly would. The paper does not say what is sent where the
    bound cannot be kept, which is common once the model fits its data. By default that is all of
    the poison, with as much of the mask as makes it deviate least. The released code instead
    maximises the norm, with at most five samples and s = 1, and sends v bare where nothing is
    allowed: ``objective: norm, mask_count: 5, scaling: fixed, search: best, infeasible: poison``.
    Its random ablation: ``selection: random, random_count: 30, scaling: fixed, infeasible: cover``.
    Source: Mo et al. (FedPoisonMIA), ICCV 2025, sections 4.1 and 4.2; algorithm 1.
    """

    class Params(Jitter):
        objective: Objective = Field(
            "angle",
            description="what is maximised under the bound: angle to a benign row (paper), or norm "
            "(released code)",
        )
        selection: Literal["greedy", "random"] = Field(
            "greedy", description="how mask samples are chosen (random: the ablation)"
        )
        mask_count: int | None = Field(
            None, ge=1, description="mask samples to choose; null: ceil(ratio x mask set)"
        )
        ratio: float = Field(
            0.1, gt=0, le=1, description="share of the mask set to choose, where mask_count is null"
        )
        random_count: int | None = Field(
            None, ge=1, description="mask samples of the random selection; null: as greedy's"
        )
        search: Search = Field(
            "full",
            description="greedy where no sample is allowed: full takes the closest one, best stops "
            "(released code)",
        )
        scaling: Literal["optimised", "fixed"] = Field(
            "optimised", description="the mask's: equation 6, or `scale` as it is"
        )
        scale: float = Field(
            1.0,
            ge=0,
            le=1,
            description="scale of the mask while selecting, and after it if fixed; no unit",
        )
        infeasible: Literal["closest", "poison", "cover", "skip"] = Field(
            "closest",
            description="what to send where the bound cannot be kept: the least deviant scale of "
            "the mask with the poison, "
            "the poison bare (released code), the mask alone (its random ablation), or honest "
            "updates",
        )
        labels: Draw = Field("uniform", description=ABOUT_DRAW)

    knowledge = "own"

    def craft(self, round: int, knowledge: Knowledge) -> Tensor:
        assert knowledge.own is not None  # granted from level "own" on
        benign = unit_rows(benign_rows(knowledge))
        if len(benign) < 2:
            return self._no_bound(knowledge, knowledge.own)
        knowledge.memory["bounded"] = True
        poison = knowledge.step(knowledge.x, wrong_labels(knowledge, self.params.labels))
        updates = knowledge.sample_steps(knowledge.mask_x, knowledge.mask_y)
        masks = Masks.of(updates, poison, benign)
        bound = least_cosine(products(benign, benign))
        chosen = self._select(masks, bound, knowledge.rng)
        cover = updates[chosen].mean(dim=0) if chosen else torch.zeros_like(poison)
        segment = masks.segment(chosen)
        infeasible = self.params.infeasible
        scale = self._scale(segment, bound)
        if scale is None and infeasible == "skip":
            return knowledge.own
        if scale is None and infeasible == "cover":
            return copies(cover, knowledge, self.params.jitter)
        if scale is None and infeasible == "poison":
            scale = 0.0
        elif scale is None and self.params.scaling == "fixed":
            scale = self.params.scale
        elif scale is None:
            scale = closest_scale(segment)
        return copies(scale * cover + poison, knowledge, self.params.jitter)

    @staticmethod
    def _no_bound(knowledge: Knowledge, honest: Tensor) -> Tensor:
        """Return ``honest`` [m, P]; raise ``SkipCell`` where no round had a bound or ever will:
        nothing would be poisoned.
        """
        federation = knowledge.federation
        hopeless = federation.participation >= 1 or knowledge.round == federation.rounds
        if hopeless and "bounded" not in knowledge.memory:
            raise SkipCell(
                "it needs two benign rows to compare: more malicious clients, or full knowledge of "
                "more others"
            )
        return honest

    def _select(self, masks: Masks, bound: float, rng: np.random.Generator) -> list[int]:
        p = self.params
        n = len(masks.poison)
        count = min(n, p.mask_count or math.ceil(p.ratio * n))
        if p.selection == "random":
            return [int(i) for i in rng.permutation(n)[: p.random_count or count]]
        return greedy(masks, bound, count, p.scale, p.objective, p.search)

    def _scale(self, segment: Segment, bound: float) -> float | None:
        """Return the scale to send with; None where the bound cannot be kept."""
        p = self.params
        if p.scaling == "optimised":
            return optimal_scale(segment, bound, p.objective)
        if segment.least_cosine(np.array([p.scale]))[0] >= bound - SLACK:
            return p.scale
        return None
