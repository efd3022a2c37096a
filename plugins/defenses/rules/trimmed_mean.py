"""Coordinate-wise trimmed mean."""

from __future__ import annotations

import torch
from pydantic import Field

from fedbench.core import Defense, Federation, Params, ServerContext
from fedbench.plugins.defenses.rules.geometry import sorted_columns
from fedbench.plugins.defenses.rules.limits import expected, require


def trimmed_mean(updates: torch.Tensor, b: int) -> torch.Tensor:
    """[P]: the mean of every coordinate of [K, P] without its ``b`` largest and ``b`` smallest values; K > 2b."""
    return sorted_columns(updates)[b : len(updates) - b].mean(dim=0) if b else updates.mean(dim=0)


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
        self._require(expected(self.params.b, federation), federation.cohort)

    def aggregate(self, updates: torch.Tensor, weights: torch.Tensor, ctx: ServerContext) -> torch.Tensor:
        """[P]; raises ``UserError`` where nothing is left."""
        b = expected(self.params.b, ctx)
        self._require(b, len(updates))
        return trimmed_mean(updates, b)

    def _require(self, b: int, rows: int) -> None:
        require("trimmed-mean", f"b = {b}", "2b + 1", 2 * b + 1, rows)
