"""Federated averaging: the weighted mean of the rows."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from fedbench.core import Defense, Params, ServerContext


def fedavg(updates: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """[P]: the rows [K, P] summed with ``weights`` [K], which sum to 1."""
    return weights @ updates


class FedAvg(Defense):
    """The mean of the rows, weighted by the clients' data or not. No robustness: one row moves it anywhere.

    The other rules of this package give every row the same weight: a client could otherwise claim more data.
    Source: McMahan et al., AISTATS 2017, algorithm 1.
    """

    class Params(Params):
        weights: Literal["size", "equal"] = Field("size", description="a row's weight: its client's share of the data, or 1/K")

    def aggregate(self, updates: torch.Tensor, weights: torch.Tensor, ctx: ServerContext) -> torch.Tensor:
        """[P]."""
        equal = torch.full_like(weights, 1 / len(weights))
        return fedavg(updates, weights if self.params.weights == "size" else equal)
