"""Top-k: average each row's largest entries."""

from __future__ import annotations

import torch
from pydantic import Field

from fedbench.core import Defense, Params, ServerContext


def top_k_mean(updates: torch.Tensor, keep: float) -> torch.Tensor:
    """[P]: the mean of the rows [K, P], each cut to its floor(keep P) entries of largest magnitude (one at least)."""
    n, size = updates.shape
    total = torch.zeros_like(updates[0])
    for row in updates:
        largest = row.abs().topk(max(1, int(keep * size)), sorted=False).indices
        total[largest] += row[largest]
    return total / n


class TopK(Defense):
    """Every row keeps its entries of largest magnitude, the rest counts as zero; then the unweighted mean.

    The server's counterpart of ``grad-sparse``, on the whole row instead of each tensor.
    Source: Aji & Heafield, EMNLP 2017; Mo et al. (FedPoisonMIA), ICCV 2025, appendix D: half is kept.
    """

    class Params(Params):
        keep: float = Field(0.5, gt=0, le=1, description="part of a row's entries that is kept")

    def aggregate(self, updates: torch.Tensor, weights: torch.Tensor, ctx: ServerContext) -> torch.Tensor:
        """[P]."""
        return top_k_mean(updates, self.params.keep)
