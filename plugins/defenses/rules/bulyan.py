"""Bulyan: Krum selects rows, then every coordinate averages the values nearest to its median."""

from __future__ import annotations

import numpy as np
import torch

from fedbench.core import Defense, Federation, ServerContext
from fedbench.plugins.defenses.rules.geometry import sorted_columns, squared_distances
from fedbench.plugins.defenses.rules.krum import krum_order
from fedbench.plugins.defenses.rules.limits import ExpectsMalicious, expected, require
from fedbench.plugins.defenses.rules.median import middle_of


def select(squared: np.ndarray, f: int) -> list[int]:
    """The n - 2f rows that Krum chooses one after the other, each time among those that remain; ``squared``: [n, n]."""
    left = list(range(len(squared)))
    chosen: list[int] = []
    while len(chosen) < len(squared) - 2 * f:
        chosen.append(left.pop(krum_order(squared[np.ix_(left, left)], f)[0]))
    return chosen


def nearest_to_median(updates: torch.Tensor, beta: int) -> torch.Tensor:
    """[P]: for every coordinate of [K, P] the mean of the ``beta`` values that are nearest to its median.

    In ascending order these are ``beta`` neighbours: of all such windows the one whose farther end is nearest.
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


def bulyan(updates: torch.Tensor, f: int) -> torch.Tensor:
    """[P] from the rows [n, P]: theta = n - 2f rows by Krum, then beta = theta - 2f values a coordinate; n >= 4f + 1."""
    chosen = select(squared_distances(updates), f)
    return nearest_to_median(updates[sorted(chosen)], len(chosen) - 2 * f)


class Bulyan(Defense):
    """Krum again and again for n - 2f rows, then in each coordinate the mean of the n - 4f values nearest to the median.

    With f malicious rows each coordinate ends no farther from the selected rows' median, itself among the honest values,
    than an honest value does. Towards the end Krum is left with fewer rows than its own condition asks for; one
    neighbour is counted then at least. Rows are not weighted.
    Source: El Mhamdi, Guerraoui & Rouault, ICML 2018, with A = Krum.
    """

    class Params(ExpectsMalicious):
        pass

    def check(self, federation: Federation) -> None:
        """n >= 4f + 3, the paper's condition."""
        f = expected(self.params.f, federation)
        require("bulyan", f"f = {f}", "4f + 3", 4 * f + 3, federation.cohort)

    def aggregate(self, updates: torch.Tensor, weights: torch.Tensor, ctx: ServerContext) -> torch.Tensor:
        """[P]; raises ``UserError`` where no value would be left in a coordinate."""
        f = expected(self.params.f, ctx)
        require("bulyan", f"f = {f}", "4f + 1", 4 * f + 1, len(updates))
        return bulyan(updates, f)
