"""Krum, Multi-Krum and Bulyan: rules that choose rows by their distances."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import Field

from fedbench.core import Defense, Federation, ServerContext, UserError
from fedbench.plugins.defenses.rules.geometry import (
    ExpectsMalicious,
    expected,
    sorted_columns,
    squared_distances,
)
from fedbench.plugins.defenses.rules.means import middle_of

Variant = Literal["published", "released"]


def krum_order(squared: np.ndarray, f: int) -> np.ndarray:
    """[n] row indices, best first, by the sum of squared distances to the n - f - 2 nearest other
    rows.

    ``squared``: [n, n] distances, zero on the diagonal. Two rows that are each other's only
    neighbour always tie: the one that is closer to all rows together comes first, so that the
    choice does not hang on the order of the rows. At least one neighbour is counted.
    """
    n = len(squared)
    nearest = np.sort(squared, axis=1)[:, 1 : 1 + max(1, n - f - 2)]  # column 0 is the row itself
    return np.lexsort((squared.sum(axis=1), nearest.sum(axis=1)))


def released_krum(updates: torch.Tensor, f: int) -> torch.Tensor:
    """[P]: the row of [K, P] with the least sum of n - f - 2 plain distances, of which one is the
    row's to itself.
    """
    nearest = np.sort(np.sqrt(squared_distances(updates)), axis=1)[:, : len(updates) - f - 2]
    return updates[nearest.sum(axis=1).argmin()].clone()


def released_multi_krum(updates: torch.Tensor, f: int, keep: int) -> torch.Tensor:
    """[P]: the mean of up to ``keep`` rows, chosen one by one among more than 2f + 2 remaining
    ones; K >= 2f + 3.

    Each time the row with the least sum of its m - 2 - f smallest squared distances to the m
    remaining rows, itself among them.
    """
    squared, left = squared_distances(updates), list(range(len(updates)))
    chosen: list[int] = []
    while len(left) > 2 * f + 2 and len(chosen) < keep:
        nearest = np.sort(squared[np.ix_(left, left)], axis=1)[:, : len(left) - 2 - f]
        chosen.append(left.pop(int(nearest.sum(axis=1).argmin())))
    return updates[sorted(chosen)].mean(dim=0)


class Krum(Defense):
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

    def check(self, federation: Federation) -> None:
        """n >= 2f + 3, the condition of the paper's proposition 1."""
        expected("krum", self.params.f, federation, federation.cohort, 2, 3)

    def aggregate(
        self, updates: torch.Tensor, weights: torch.Tensor, ctx: ServerContext
    ) -> torch.Tensor:
        """[P]; raises ``UserError`` where no row has a neighbour to count."""
        f = expected("krum", self.params.f, ctx, len(updates), 1, 3)
        if self.params.variant == "released":
            return released_krum(updates, f)
        return updates[krum_order(squared_distances(updates), f)[0]].clone()


class MultiKrum(Defense):
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

    def check(self, federation: Federation) -> None:
        """n >= 2f + 3, as for Krum, and as many rows as are to be kept."""
        expected("multi-krum", self.params.f, federation, federation.cohort, 2, 3)
        if (self.params.keep or 0) > federation.cohort:
            raise UserError(
                f"multi-krum: keep is {self.params.keep}, and a round has {federation.cohort} "
                "rows: lower it, or let more "
                "clients take part"
            )

    def aggregate(
        self, updates: torch.Tensor, weights: torch.Tensor, ctx: ServerContext
    ) -> torch.Tensor:
        """[P]; raises ``UserError`` where no row can be scored."""
        released, keep = self.params.variant == "released", self.params.keep
        f = expected("multi-krum", self.params.f, ctx, len(updates), 2 if released else 1, 3)
        if released:
            return released_multi_krum(updates, f, keep or 4)
        best = krum_order(squared_distances(updates), f)[: keep or len(updates) - f]
        return updates[np.sort(best)].mean(dim=0)


def select(squared: np.ndarray, f: int) -> list[int]:
    """The n - 2f rows that Krum chooses one after the other, each time among those that remain;
    ``squared``: [n, n].
    """
    left = list(range(len(squared)))
    chosen: list[int] = []
    while len(chosen) < len(squared) - 2 * f:
        chosen.append(left.pop(krum_order(squared[np.ix_(left, left)], f)[0]))
    return chosen


def nearest_to_median(updates: torch.Tensor, beta: int) -> torch.Tensor:
    """[P]: for every coordinate of [K, P] the mean of the ``beta`` values that are nearest to its
    median.

    In ascending order these are ``beta`` neighbours: of all such windows the one with the nearest
    farther end.
    """
    ordered = sorted_columns(updates)
    centre = middle_of(ordered)
    reach = torch.full_like(centre, torch.inf)
    found = torch.empty_like(centre)
    for start in range(len(ordered) - beta + 1):
        window = ordered[start : start + beta]
        farther = torch.maximum(centre - window[0], window[-1] - centre)
        closer = farther < reach
        found = torch.where(closer, window.mean(dim=0), found)
        reach = torch.where(closer, farther, reach)
    return found


class Bulyan(Defense):
    """Krum again and again for n - 2f rows, then in each coordinate the mean of the n - 4f values
    nearest to the median.

    With f malicious rows each coordinate ends no farther from the selected rows' median, itself
    among the honest values, than an honest value does. Towards the end Krum is left with fewer rows
    than its own condition asks for; one neighbour is counted then at least. Rows are not weighted.
    Source: El Mhamdi, Guerraoui & Rouault, ICML 2018, with A = Krum.
    """

    class Params(ExpectsMalicious):
        pass

    def check(self, federation: Federation) -> None:
        """n >= 4f + 3, the paper's condition."""
        expected("bulyan", self.params.f, federation, federation.cohort, 4, 3)

    def aggregate(
        self, updates: torch.Tensor, weights: torch.Tensor, ctx: ServerContext
    ) -> torch.Tensor:
        """[P]; raises ``UserError`` where no value would be left in a coordinate."""
        f = expected("bulyan", self.params.f, ctx, len(updates), 4, 1)
        chosen = select(squared_distances(updates), f)
        return nearest_to_median(updates[sorted(chosen)], len(chosen) - 2 * f)
