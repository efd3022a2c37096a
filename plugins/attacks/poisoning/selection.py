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
        v = poison[None]
        return cls(
            squared=norms(updates).square().cpu().numpy(), poison=products(updates, v)[:, 0],
            benign=products(updates, benign), poison_benign=products(v, benign)[0], poison_sq=float(products(v, v)[0, 0]),
            row=cache(lambda i: products(updates[i : i + 1], updates)[0]),
        )  # fmt: skip

    def rows(self, chosen: list[int]) -> np.ndarray:
        """[k, N]: the chosen samples' inner products with all."""
        return np.array([self.row(i) for i in chosen]).reshape(len(chosen), len(self.poison))

    def segment(self, chosen: list[int]) -> Segment:
        """s -> s m + v for m = the mean of the chosen updates (zero if there are none)."""
        k = max(len(chosen), 1)
        return Segment(
            self.benign[chosen].sum(axis=0) / k, self.poison_benign, float(self.rows(chosen)[:, chosen].sum()) / k**2,
            float(self.poison[chosen].sum()) / k, self.poison_sq,
        )  # fmt: skip

    def extended(self, chosen: list[int], scale: float) -> tuple[np.ndarray, np.ndarray]:
        """(least cosine [N] to a benign row, squared norm [N]) of scale m + v with each sample joined to the chosen."""
        share = scale / (len(chosen) + 1)
        dots = share * (self.benign[chosen].sum(axis=0) + self.benign) + self.poison_benign
        rows = self.rows(chosen)
        mask_sq = rows[:, chosen].sum() + 2 * rows.sum(axis=0) + self.squared
        cross = self.poison[chosen].sum() + self.poison
        squared = np.maximum(share**2 * mask_sq + 2 * share * cross + self.poison_sq, 0.0)
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
    best: tuple[float, list[int]] = (-np.inf, [])
    for _ in range(min(count, len(masks.poison))):
        least, squared = masks.extended(chosen, scale)
        value = -least if objective == "angle" else squared
        free = ~np.isin(np.arange(len(value)), chosen)
        allowed = free & (least >= bound - SLACK)
        if allowed.any():
            pick = int(np.where(allowed, value, -np.inf).argmax())
        elif search == "best":
            break
        else:
            pick = int(np.where(free, least, -np.inf).argmax())
        chosen = [*chosen, pick]
        best = max(best, (float(value[pick]), chosen), key=lambda seen: seen[0])
    return best[1] if search == "best" else chosen
