"""Which mask samples cover the poison: greedy selection on inner products, never on the updates themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import torch

from fedbench.core import norms
from fedbench.plugins.attacks.poisoning.angles import cosines, products
from fedbench.plugins.attacks.poisoning.scaling import SLACK, Objective, Segment

Search = Literal["full", "best"]


@dataclass(frozen=True, kw_only=True)
class Masks:
    """Inner products of the mask samples' updates g_1..g_N, the poison v and n unit benign rows.

    ``squared``: [N] |g_i|^2; ``poison``: [N] <g_i, v>; ``benign``: [N, n]; ``poison_benign``: [n]; ``poison_sq`` |v|^2.
    ``row(i)``: [N] <g_i, g_j>, computed when sample i is chosen: the whole [N, N] costs as much as N / chosen rounds.
    """

    squared: np.ndarray
    poison: np.ndarray
    benign: np.ndarray
    poison_benign: np.ndarray
    poison_sq: float
    row: Callable[[int], np.ndarray]

    @classmethod
    def of(cls, updates: torch.Tensor, poison: torch.Tensor, benign: torch.Tensor) -> Masks:
        """From the updates [N, P], the poison [P] and the unit benign rows [n, P]."""
        others = torch.cat([poison[None], benign])
        dots, among = products(others, updates).T, products(others[:1], others)[0]  # few rows first: half the time
        return cls(
            squared=norms(updates).square().cpu().numpy(), poison=dots[:, 0], benign=dots[:, 1:], poison_benign=among[1:],
            poison_sq=float(among[0]), row=cache(lambda i: products(updates[i : i + 1], updates)[0]),
        )  # fmt: skip

    def chosen(self, indices: list[int]) -> Chosen:
        """These samples, as if they had been chosen one after the other."""
        found = Chosen.none(self)
        for i in indices:
            found = found.joined(self, i)
        return found

    def segment(self, indices: list[int]) -> Segment:
        """s -> s m + v for m = the mean of the chosen updates (zero if there are none)."""
        k, chosen = max(len(indices), 1), self.chosen(indices)
        return Segment(
            chosen.benign / k, self.poison_benign, chosen.squared / k**2, chosen.poison / k, self.poison_sq,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Sums over the ``count`` mask samples chosen so far: ``benign`` [n] and ``poison`` of their products, ``squared`` |their
    sum|^2. ``row``: [N] <their sum, g_j> but for the ``last`` of them, whose row is asked for only when another one joins."""

    count: int
    benign: np.ndarray
    poison: float
    squared: float
    row: np.ndarray
    last: int | None

    @classmethod
    def none(cls, masks: Masks) -> Chosen:
        """Nobody yet."""
        n, rows = masks.benign.shape[1], np.zeros(len(masks.poison))
        return cls(count=0, benign=np.zeros(n), poison=0.0, squared=0.0, row=rows, last=None)

    def rows(self, masks: Masks) -> np.ndarray:
        """[N]: <the sum of the chosen, g_j>."""
        return self.row if self.last is None else self.row + masks.row(self.last)

    def joined(self, masks: Masks, i: int) -> Chosen:
        """With sample ``i`` besides."""
        row = self.rows(masks)
        return Chosen(
            count=self.count + 1, benign=self.benign + masks.benign[i], poison=self.poison + float(masks.poison[i]),
            squared=self.squared + 2 * float(row[i]) + float(masks.squared[i]), row=row, last=i,
        )  # fmt: skip

    def extended(self, masks: Masks, scale: float) -> tuple[np.ndarray, np.ndarray]:
        """(least cosine [N] to a benign row, squared norm [N]) of scale m + v with each sample joined to the chosen."""
        share = scale / (self.count + 1)
        dots = share * (self.benign + masks.benign) + masks.poison_benign
        squared = 2 * share * (self.poison + masks.poison) + masks.poison_sq
        squared += share**2 * (self.squared + 2 * self.rows(masks) + masks.squared)
        np.maximum(squared, 0.0, out=squared)
        return cosines(dots, squared).min(axis=1), squared


def greedy(masks: Masks, bound: float, count: int, scale: float, objective: Objective, search: Search) -> list[int]:
    """Positions of the chosen mask samples, in the order of choice.

    Starting from none, the sample joins that makes the objective of scale m + v largest (m: the mean of the chosen
    updates) among those that keep every cosine to a benign row >= ``bound``. The paper does not say what follows when no
    sample does: ``full`` takes the one that comes closest, so that ``count`` samples are chosen in any case; ``best``
    stops there, and of the sets on the way returns the one with the largest objective (the released code).
    Source: Mo et al. (FedPoisonMIA), ICCV 2025, equation 5 and algorithm 1.
    """
    chosen: list[int] = []
    so_far, free = Chosen.none(masks), np.ones(len(masks.poison), bool)
    best: tuple[float, list[int]] = (-np.inf, [])
    for _ in range(min(count, len(masks.poison))):
        least, squared = so_far.extended(masks, scale)
        value = -least if objective == "angle" else squared
        allowed = free & (least >= bound - SLACK)
        if allowed.any():
            pick = int(np.where(allowed, value, -np.inf).argmax())
        elif search == "best":
            break
        else:
            pick = int(np.where(free, least, -np.inf).argmax())
        chosen, so_far, free[pick] = [*chosen, pick], so_far.joined(masks, pick), False
        best = max(best, (float(value[pick]), chosen), key=lambda seen: seen[0])
    return best[1] if search == "best" else chosen
