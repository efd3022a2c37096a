"""Coordinate-wise median."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from fedbench.core import Defense, Federation, Params, ServerContext
from fedbench.plugins.defenses.rules.geometry import sorted_columns
from fedbench.plugins.defenses.rules.limits import require_majority

Middle = Literal["midpoint", "lower"]


def median(updates: torch.Tensor, middle: Middle = "midpoint") -> torch.Tensor:
    """[P]: the median of every coordinate of [K, P]; of an even number the mean of the two middles, or the lower one."""
    return middle_of(sorted_columns(updates), middle)


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
        return median(updates, self.params.middle)
