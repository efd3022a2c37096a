"""Krum, Multi-Krum and Bulyan: rules that choose rows by their distances."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from numpy import ndarray
from pydantic import Field
from torch import Tensor

from fedbench.core import Federation, ServerContext, UserError
from fedbench.plugins.defenses.rules.geometry import (
    ExpectsMalicious,
    RobustRule,
    sorted_columns,
    squared_distances,
)
from fedbench.plugins.defenses.rules.means import middle_of

Variant = Literal["published", "released"]


def krum_order(squared: ndarray, f: int) -> ndarray:
    """Rank the rows, best first, by the sum of squared distances to the n - f - 2 nearest others.

    ``squared``: [n, n] distances, zero on the diagonal. Two rows that are each other's only
    neighbour always tie: the one that is closer to all rows together comes first, so that the
    choice does not hang on the order of the rows. At least one neighbour is counted.
    """
    n = len(squared)
    nearest = np.sort(squared, axis=1)[:, 1 : 1 + max(1, n - f - 2)]  # column 0 is the row itself
    return np.lexsort((squared.sum(axis=1), nearest.sum(axis=1)))


def krum_choice(squared: ndarray, f: int) -> int:
    """Return the row of the best Krum score."""
    return int(krum_order(squared, f)[0])


def released_choice(distances: ndarray, f: int) -> int:
    """Return the row with the least sum of n - f - 2 distances [n, n], its own 0 among them."""
    nearest = np.sort(distances, axis=1)[:, : len(distances) - f - 2]
    return int(nearest.sum(axis=1).argmin())


def choose_in_turn(
    squared: ndarray, count: int, choice: Callable[[ndarray, int], int], f: int
) -> list[int]:
    """Return ``count`` of n rows in ascending order, each the ``choice`` among those that remain.

    ``squared``: [n, n] distances.
    """
    left = list(range(len(squared)))
    chosen = []
    for _ in range(count):
        chosen.append(left.pop(choice(squared[np.ix_(left, left)], f)))
    return sorted(chosen)


class Krum(RobustRule):
    """The one row with the least sum of squared distances to its n - f - 2 nearest other rows; rows
    are not weighted.

    With n >= 2f + 3 and f malicious rows the result is within sqrt(n - f - 2) D of an honest row, D
    being the largest distance between two honest rows: an honest row's score is (n - f - 2) D^2 at
    most, the chosen row's is no larger, and one of its neighbours at least is honest. ``variant:
    released`` is the poisoning paper's code: distances are not squared, and the row itself counts
    as one of its neighbours. Source: Blanchard et al., NeurIPS 2017.
    """

    class Params(ExpectsMalicious):
        variant: Variant = Field(
            "published",
            description="`published`: the paper's; `released`: plain distances, self included",
        )

    rule = "krum"
    condition = (2, 3)  # of the paper's proposition 1

    def aggregate(self, updates: Tensor, weights: Tensor, ctx: ServerContext) -> Tensor:
        """Return the chosen row; ``UserError`` where no row has a neighbour to count."""
        f = self._expected(ctx, len(updates), 1, 3)
        squared = squared_distances(updates)
        if self.params.variant == "released":
            return updates[released_choice(np.sqrt(squared), f)].clone()
        return updates[krum_choice(squared, f)].clone()


class MultiKrum(RobustRule):
    """The unweighted mean of the m = n - f rows with the best Krum scores, for each of which Krum's
    bound holds.

    ``variant: released`` is the poisoning paper's code: rows are taken one by one, the scores
    computed anew among the rest, until 4 are taken or 2f + 2 are left; a row counts as its own
    neighbour. Source: Blanchard et al., NeurIPS 2017, "Multi-Krum"; Mo et al. (FedPoisonMIA), ICCV
    2025, appendix D.
    """

    class Params(ExpectsMalicious):
        keep: int | None = Field(
            None,
            ge=1,
            description="m, rows that are averaged; null: n - f, and 4 in `variant: released`",
        )
        variant: Variant = Field(
            "published", description="`published`: the m best scores; `released`: one row at a time"
        )

    rule = "multi-krum"
    condition = (2, 3)

    def check(self, federation: Federation) -> None:
        """Raise ``UserError`` where Krum would, and where fewer than ``keep`` rows take part."""
        super().check(federation)
        keep = self.params.keep or 0
        rows = federation.cohort
        if keep > rows:
            raise UserError(
                f"multi-krum: keep is {keep}, and a round has {rows} rows: lower it, or let more "
                "clients take part"
            )

    def aggregate(self, updates: Tensor, weights: Tensor, ctx: ServerContext) -> Tensor:
        """Mean [P] of the chosen rows; ``UserError`` where no row can be scored."""
        p = self.params
        n = len(updates)
        released = p.variant == "released"
        f = self._expected(ctx, n, 2 if released else 1, 3)
        squared = squared_distances(updates)
        if released:
            chosen = choose_in_turn(squared, min(p.keep or 4, n - 2 * f - 2), released_choice, f)
        else:
            chosen = sorted(krum_order(squared, f)[: p.keep or n - f].tolist())
        return updates[chosen].mean(dim=0)


def nearest_to_median(updates: Tensor, beta: int) -> Tensor:
    """Mean [P] of the ``beta`` values of each coordinate of [K, P] nearest to its median.

    In ascending order these are ``beta`` neighbours: of all such windows the one with the nearest
    farther end.
    """
    ordered = sorted_columns(updates)
    centre = middle_of(ordered)
    reach = torch.full_like(centre, torch.inf)
    mean = torch.empty_like(centre)
    for start in range(len(ordered) - beta + 1):
        window = ordered[start : start + beta]
        farther = torch.maximum(centre - window[0], window[-1] - centre)
        closer = farther < reach
        mean = torch.where(closer, window.mean(dim=0), mean)
        reach = torch.where(closer, farther, reach)
    return mean


class Bulyan(RobustRule):
    """Krum again and again for n - 2f rows, then in each coordinate the mean of the n - 4f values
    nearest to the median.

    With f malicious rows each coordinate ends no farther from the selected rows' median, itself
    among the honest values, than an honest value does. Towards the end Krum is left with fewer rows
    than its own condition asks for; one neighbour is counted then at least. Rows are not weighted.
    Source: El Mhamdi, Guerraoui & Rouault, ICML 2018, with A = Krum.
    """

    class Params(ExpectsMalicious):
        pass

    rule = "bulyan"
    condition = (4, 3)  # the paper's

    def aggregate(self, updates: Tensor, weights: Tensor, ctx: ServerContext) -> Tensor:
        """Mean [P] near the medians; ``UserError`` where no value is left in a coordinate."""
        n = len(updates)
        f = self._expected(ctx, n, 4, 1)
        chosen = choose_in_turn(squared_distances(updates), n - 2 * f, krum_choice, f)
        return nearest_to_median(updates[chosen], n - 4 * f)
