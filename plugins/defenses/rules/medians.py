"""Coordinate-wise median and trimmed mean, and the geometric median."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import Field

from fedbench.core import Defense, Federation, Params, ServerContext
from fedbench.plugins.defenses.rules.geometry import combine, expected, gram, require_majority, sorted_columns

Middle = Literal["midpoint", "lower"]


def middle_of(ordered: torch.Tensor, middle: Middle = "midpoint") -> torch.Tensor:
    """[P]: the median of columns [K, P] that are already in ascending order."""
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return low.clone() if middle == "lower" else low / 2 + high / 2  # halved first: the sum could overflow


class Median(Defense):
    """The median of every coordinate, unweighted.

    While fewer than half of the rows are malicious it lies between the least and the largest honest value of each
    coordinate. ``middle: lower`` is the released code's (torch.median): of an even number the lower of the two middles.
    Source: Yin et al., ICML 2018, definition 1.
    """

    class Params(Params):
        middle: Middle = Field("midpoint", description="of an even number of rows: the mean of the two middles, or the lower one")

    def check(self, federation: Federation) -> None:
        """More honest than malicious rows."""
        require_majority("median", federation)

    def aggregate(self, updates: torch.Tensor, weights: torch.Tensor, ctx: ServerContext) -> torch.Tensor:
        """[P]."""
        return middle_of(sorted_columns(updates), self.params.middle)


class TrimmedMean(Defense):
    """Every coordinate without its b largest and b smallest values, averaged unweighted.

    With no more than b malicious rows it lies between the least and the largest honest value of each coordinate.
    Source: Yin et al., ICML 2018, definition 2, with b the number of values rather than their part.
    """

    class Params(Params):
        b: int | None = Field(
            None, ge=0, description="values trimmed on each side of a coordinate; null: as many as malicious rows are assumed"
        )

    def check(self, federation: Federation) -> None:
        """Something must be left to average."""
        expected("trimmed-mean", self.params.b, federation, federation.cohort, 2, 1, "b")

    def aggregate(self, updates: torch.Tensor, weights: torch.Tensor, ctx: ServerContext) -> torch.Tensor:
        """[P]; raises ``UserError`` where nothing is left."""
        b = expected("trimmed-mean", self.params.b, ctx, len(updates), 2, 1, "b")
        return sorted_columns(updates)[b : len(updates) - b].mean(dim=0) if b else updates.mean(dim=0)


CONVERGED = 1e-9  # relative change of every weight: a huge row must stand still too, however small its weight


def weiszfeld(products: np.ndarray, smoothing: float, iterations: int) -> np.ndarray:
    """[K] weights, summing to 1, of the rows in their geometric median; ``products``: their inner products [K, K].

    Every iterate z is a combination of the rows, so |x_i - z|^2 = G_ii - 2 (G c)_i + c G c needs no vector of length P.
    Smoothed as in Pillutla et al.: a distance counts for ``smoothing`` at least. It starts near the majority, with
    weights inverse to each row's median distance to all rows: from the mean it would have to walk back from a huge row.
    """
    square = np.diag(products)
    between = np.sqrt(np.maximum(square[:, None] + square - 2 * products, 0))
    pull = 1 / np.maximum(np.sort(between, axis=1)[:, len(products) // 2], smoothing)
    weights = pull / pull.sum()
    for _ in range(iterations):
        mixed = products @ weights
        distance = np.sqrt(np.maximum(square - 2 * mixed + weights @ mixed, 0))
        pull = 1 / np.maximum(distance, smoothing)
        before, weights = weights, pull / pull.sum()
        if (np.abs(weights - before) <= CONVERGED * before).all():
            break
    return weights


class GeometricMedian(Defense):
    """The point with the least sum of Euclidean distances to the rows, by the smoothed Weiszfeld algorithm, unweighted.

    With f < n/2 malicious rows it is no farther from any point y than 2 (n - f) / (n - 2f) times the farthest honest
    row is. The paper weighs rows by their data and stops after three passes over the network; here they weigh the
    same, and since the server holds them all it iterates to the end.
    Source: Pillutla, Kakade & Harchaoui, "Robust aggregation for federated learning", IEEE TSP 2022, algorithms 1 and 2.
    """

    class Params(Params):
        smoothing: float = Field(1e-6, gt=0, description="nu, the least a distance counts for, in units of the parameters")
        iterations: int = Field(1000, ge=1, description="Weiszfeld steps at most; it stops when the weights stand still")

    def check(self, federation: Federation) -> None:
        """More honest than malicious rows."""
        require_majority("geometric-median", federation)

    def aggregate(self, updates: torch.Tensor, weights: torch.Tensor, ctx: ServerContext) -> torch.Tensor:
        """[P]."""
        return combine(weiszfeld(gram(updates), self.params.smoothing, self.params.iterations), updates)
