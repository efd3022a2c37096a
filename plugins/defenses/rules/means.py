"""Aggregation rules that average or take medians: by weights, norms, coordinates or angles."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy import ndarray
from pydantic import Field
from torch import Tensor

from fedbench.core import Defense, Federation, Params, ServerContext, norms
from fedbench.plugins.defenses.rules.geometry import (
    RobustRule,
    angles,
    clipped_mean,
    combine,
    gram,
    require_majority,
    sorted_columns,
)


class FedAvg(Defense):
    """The mean of the rows, weighted by the clients' data or not. No robustness: one row moves it
    anywhere.

    The other rules of this package give every row the same weight: a client could otherwise claim
    more data. Source: McMahan et al., AISTATS 2017, algorithm 1.
    """

    class Params(Params):
        weights: Literal["size", "equal"] = Field(
            "size", description="a row's weight: its client's share of the data, or 1/K"
        )

    def aggregate(self, updates: Tensor, weights: Tensor, ctx: ServerContext) -> Tensor:
        if self.params.weights == "equal":
            weights = torch.full_like(weights, 1 / len(weights))
        return weights @ updates


class TopK(Defense):
    """Every row keeps its entries of largest magnitude, the rest counts as zero; then the
    unweighted mean.

    The server's counterpart of ``grad-sparse``, on the whole row instead of each tensor. Source:
    Aji & Heafield, EMNLP 2017; Mo et al. (FedPoisonMIA), ICCV 2025, appendix D: half is kept.
    """

    class Params(Params):
        keep: float = Field(0.5, gt=0, le=1, description="part of a row's entries that is kept")

    def aggregate(self, updates: Tensor, weights: Tensor, ctx: ServerContext) -> Tensor:
        n, size = updates.shape
        # 0.29 * 100 is 28.999... in floating point
        k = max(1, int(self.params.keep * size + 1e-9))
        total = torch.zeros_like(updates[0])
        for row in updates:
            largest = row.abs().topk(k, sorted=False).indices
            total[largest] += row[largest]
        return total / n


class NormClipping(Defense):
    """Rows longer than the bound are scaled down to it, then averaged unweighted: f rows move the
    mean by 2 f bound / K at most.

    The paper fixes the bound; the median of the round's norms follows the training, and holds while
    fewer than half of the rows are malicious. The paper's weak noise is not added: see
    ``server-dp``. Source: Sun et al., "Can you really backdoor federated learning?", 2019, "Norm
    thresholding of updates".
    """

    class Params(Params):
        bound: float | None = Field(
            None,
            gt=0,
            description="largest L2 norm of a row; null: the median of the round's norms",
        )

    def check(self, federation: Federation) -> None:
        """Raise ``UserError`` where a bound by the median has no majority of honest rows."""
        if self.params.bound is None:
            require_majority("norm-clipping without a bound", federation)

    def aggregate(self, updates: Tensor, weights: Tensor, ctx: ServerContext) -> Tensor:
        lengths = norms(updates)
        bound = self.params.bound
        if bound is None:
            bound = float(lengths.quantile(0.5))
        return clipped_mean(updates, lengths, bound)


class ServerDP(Defense):
    """Rows clipped to norm C, and N(0, (sigma C)^2) on their sum: a standard deviation of sigma C /
    K on the mean.

    One row changes the sum by C at most, which is what the noise is measured by; rows weigh the
    same, since a weight would change that. sigma .01 and C = 1 give ten rows the standard deviation
    of .001 that the poisoning paper's code uses. ``variant: shared`` is that code: nothing is
    clipped, and every row gets the same one vector of standard deviation sigma, which is the mean
    plus that vector; no privacy guarantee follows. Fresh noise every round. Source: McMahan et al.,
    ICLR 2018; Mo et al. (FedPoisonMIA), ICCV 2025, appendix D "Differential privacy".
    """

    class Params(Params):
        clip: float = Field(
            1.0, gt=0, description="C, largest L2 norm of a row; not used by `variant: shared`"
        )
        sigma: float = Field(
            0.01,
            ge=0,
            description="noise on the sum, a standard deviation in units of clip; `shared`: on the "
            "mean, absolute",
        )
        variant: Literal["clipped", "shared"] = Field(
            "clipped",
            description="`clipped`: clip and noise the sum; `shared`: the released code (its "
            "sigma: .001)",
        )

    def aggregate(self, updates: Tensor, weights: Tensor, ctx: ServerContext) -> Tensor:
        p = self.params
        noise = ctx.randn_like(updates[0])
        if p.variant == "shared":
            return updates.mean(dim=0) + p.sigma * noise
        deviation = p.sigma * p.clip / len(updates)
        return clipped_mean(updates, norms(updates), p.clip) + deviation * noise


# --- medians and trimmed means --------------------------------------------------------------------


Middle = Literal["midpoint", "lower"]


def middle_of(ordered: Tensor, middle: Middle = "midpoint") -> Tensor:
    """Median [P] of columns [K, P] that are already in ascending order."""
    low = ordered[(len(ordered) - 1) // 2]
    high = ordered[len(ordered) // 2]
    if middle == "lower":
        return low.clone()
    return low / 2 + high / 2  # halved first: the sum could overflow


class Median(Defense):
    """The median of every coordinate, unweighted.

    While fewer than half of the rows are malicious it lies between the least and the largest honest
    value of each coordinate. ``middle: lower`` is the released code's (torch.median): of an even
    number the lower of the two middles. Source: Yin et al., ICML 2018, definition 1.
    """

    class Params(Params):
        middle: Middle = Field(
            "midpoint",
            description="of an even number of rows: the mean of the two middles, or the lower one",
        )

    def check(self, federation: Federation) -> None:
        """Raise ``UserError`` unless most rows are honest."""
        require_majority("median", federation)

    def aggregate(self, updates: Tensor, weights: Tensor, ctx: ServerContext) -> Tensor:
        return middle_of(sorted_columns(updates), self.params.middle)


class TrimmedMean(RobustRule):
    """Every coordinate without its b largest and b smallest values, averaged unweighted.

    With no more than b malicious rows it lies between the least and the largest honest value of
    each coordinate. Source: Yin et al., ICML 2018, definition 2, with b the number of values rather
    than their part.
    """

    class Params(Params):
        b: int | None = Field(
            None,
            ge=0,
            description="values trimmed on each side of a coordinate; null: as many as malicious "
            "rows are assumed",
        )

    rule = "trimmed-mean"
    condition = (2, 1)
    param = "b"

    def aggregate(self, updates: Tensor, weights: Tensor, ctx: ServerContext) -> Tensor:
        """Mean [P] of what is left; ``UserError`` where nothing is."""
        b = self._expected(ctx, len(updates), 2, 1)
        if b:
            updates = sorted_columns(updates)[b : len(updates) - b]
        return updates.mean(dim=0)


# relative change of every weight: a huge row must stand still too, however small its weight
CONVERGED = 1e-9


def weiszfeld(products: ndarray, smoothing: float, iterations: int) -> ndarray:
    """Weights [K], summing to 1, of the rows in their geometric median.

    ``products``: their inner products [K, K].
    Every iterate z is a combination of the rows, so |x_i - z|^2 = G_ii - 2 (G c)_i + c G c needs no
    vector of length P. Smoothed as in Pillutla et al.: a distance counts for ``smoothing`` at
    least. It starts near the majority, with weights inverse to each row's median distance to all
    rows: from the mean it would have to walk back from a huge row.
    """
    square = np.diag(products)
    between = np.sqrt(np.maximum(square[:, None] + square - 2 * products, 0))
    pull = 1 / np.maximum(np.sort(between, axis=1)[:, len(products) // 2], smoothing)
    weights = pull / pull.sum()
    for _ in range(iterations):
        mixed = products @ weights
        distance = np.sqrt(np.maximum(square - 2 * mixed + weights @ mixed, 0))
        pull = 1 / np.maximum(distance, smoothing)
        before = weights
        weights = pull / pull.sum()
        if (np.abs(weights - before) <= CONVERGED * before).all():
            break
    return weights


class GeometricMedian(Defense):
    """The point with the least sum of Euclidean distances to the rows, by the smoothed Weiszfeld
    algorithm, unweighted.

    With f < n/2 malicious rows it is no farther from any point y than 2 (n - f) / (n - 2f) times
    the farthest honest row is. The paper weighs rows by their data and stops after three passes
    over the network; here they weigh the same, and since the server holds them all it iterates to
    the end. Source: Pillutla, Kakade & Harchaoui, "Robust aggregation for federated learning", IEEE
    TSP 2022, algorithms 1 and 2.
    """

    class Params(Params):
        smoothing: float = Field(
            1e-6,
            gt=0,
            description="nu, the least a distance counts for, in units of the parameters",
        )
        iterations: int = Field(
            1000, ge=1, description="Weiszfeld steps at most; it stops when the weights stand still"
        )

    def check(self, federation: Federation) -> None:
        """Raise ``UserError`` unless most rows are honest."""
        require_majority("geometric-median", federation)

    def aggregate(self, updates: Tensor, weights: Tensor, ctx: ServerContext) -> Tensor:
        p = self.params
        return combine(weiszfeld(gram(updates), p.smoothing, p.iterations), updates)


# --- angles ---------------------------------------------------------------------------------------


TIE = 1e-6  # radians; arccos near 1 is good to 1.5e-8 in float64


def shares(scores: ndarray, keep: int) -> ndarray:
    """Share each row keeps, [K] summing to ``keep``: 1 for the ``keep`` least scores, else 0.

    Rows within ``TIE`` of the score at the cut share what places are left there equally.
    """
    cut = np.sort(scores)[keep - 1]
    below = scores < cut - TIE
    tied = np.abs(scores - cut) <= TIE
    return below + tied * (keep - below.sum()) / tied.sum()


class AngularTrimmedMean(RobustRule):
    """The mean angle of each row to all others; without the 2 kappa rows where it is largest, the
    rest is averaged.

    Angles do not see a row's length: scaling a row neither saves nor removes it, and a kept row
    enters at its full length. A zero row has no direction; it counts as orthogonal (pi/2) to every
    other row. Rows are not weighted. Rows that tie at the cut (collinear ones, within 1e-6 rad)
    share the places that are left there, so the result does not depend on the order of the rows; no
    other row is ever kept in part.

    The paper's code has kappa = 2 with one malicious client: of eight rows four are averaged.
    Source: Mo et al. (FedPoisonMIA), ICCV 2025, section 5.1, steps I to IV, equations 7 and 8.
    """

    class Params(Params):
        kappa: int | None = Field(
            None,
            ge=0,
            description="half of the rows to drop; null: as many as malicious rows are assumed; "
            "the paper's code: 2",
        )

    rule = "atm"
    condition = (2, 1)
    param = "kappa"

    def aggregate(self, updates: Tensor, weights: Tensor, ctx: ServerContext) -> Tensor:
        """Mean [P] of the rows that are kept; ``UserError`` where none is."""
        n = len(updates)
        keep = n - 2 * self._expected(ctx, n, 2, 1)
        mean = angles(updates).sum(axis=1) / max(1, n - 1)  # equation 7
        return combine(shares(mean, keep) / keep, updates)
