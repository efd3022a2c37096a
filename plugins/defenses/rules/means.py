"""Rules that average rows: federated averaging, top-k, norm clipping and server-side noise."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from fedbench.core import Defense, Federation, Params, ServerContext, norms
from fedbench.plugins.defenses.rules.geometry import clipped_mean, require_majority


class FedAvg(Defense):
    """The mean of the rows, weighted by the clients' data or not. No robustness: one row moves it anywhere.

    The other rules of this package give every row the same weight: a client could otherwise claim more data.
    Source: McMahan et al., AISTATS 2017, algorithm 1.
    """

    class Params(Params):
        weights: Literal["size", "equal"] = Field("size", description="a row's weight: its client's share of the data, or 1/K")

    def aggregate(self, updates: torch.Tensor, weights: torch.Tensor, ctx: ServerContext) -> torch.Tensor:
        """[P]."""
        return (weights if self.params.weights == "size" else torch.full_like(weights, 1 / len(weights))) @ updates


class TopK(Defense):
    """Every row keeps its entries of largest magnitude, the rest counts as zero; then the unweighted mean.

    The server's counterpart of ``grad-sparse``, on the whole row instead of each tensor.
    Source: Aji & Heafield, EMNLP 2017; Mo et al. (FedPoisonMIA), ICCV 2025, appendix D: half is kept.
    """

    class Params(Params):
        keep: float = Field(0.5, gt=0, le=1, description="part of a row's entries that is kept")

    def aggregate(self, updates: torch.Tensor, weights: torch.Tensor, ctx: ServerContext) -> torch.Tensor:
        """[P]."""
        n, size = updates.shape
        total = torch.zeros_like(updates[0])
        for row in updates:
            largest = row.abs().topk(max(1, int(self.params.keep * size)), sorted=False).indices
            total[largest] += row[largest]
        return total / n


class NormClipping(Defense):
    """Rows longer than the bound are scaled down to it, then averaged unweighted: f rows move the mean by 2 f bound / K at most.

    The paper fixes the bound; the median of the round's norms follows the training, and holds while fewer than half of
    the rows are malicious. The paper's weak noise is not added: see ``server-dp``.
    Source: Sun et al., "Can you really backdoor federated learning?", 2019, "Norm thresholding of updates".
    """

    class Params(Params):
        bound: float | None = Field(None, gt=0, description="largest L2 norm of a row; null: the median of the round's norms")

    def check(self, federation: Federation) -> None:
        """Without a bound of its own it needs more honest than malicious rows."""
        if self.params.bound is None:
            require_majority("norm-clipping without a bound", federation)

    def aggregate(self, updates: torch.Tensor, weights: torch.Tensor, ctx: ServerContext) -> torch.Tensor:
        """[P]."""
        lengths, bound = norms(updates), self.params.bound
        return clipped_mean(updates, lengths, float(lengths.quantile(0.5)) if bound is None else bound)


class ServerDP(Defense):
    """Rows clipped to norm C, and N(0, (sigma C)^2) on their sum: a standard deviation of sigma C / K on the mean.

    One row changes the sum by C at most, which is what the noise is measured by; rows weigh the same, since a weight
    would change that. sigma .01 and C = 1 give ten rows the standard deviation of .001 that the poisoning paper's
    code uses. ``variant: shared`` is that code: nothing is clipped, and every row gets the same one vector of standard
    deviation sigma, which is the mean plus that vector; no privacy guarantee follows. Fresh noise every round.
    Source: McMahan et al., ICLR 2018; Mo et al. (FedPoisonMIA), ICCV 2025, appendix D "Differential privacy".
    """

    class Params(Params):
        clip: float = Field(1.0, gt=0, description="C, largest L2 norm of a row; not used by `variant: shared`")
        sigma: float = Field(
            0.01, ge=0, description="noise on the sum, a standard deviation in units of clip; `shared`: on the mean, absolute"
        )
        variant: Literal["clipped", "shared"] = Field(
            "clipped", description="`clipped`: clip and noise the sum; `shared`: the released code (its sigma: .001)"
        )

    def aggregate(self, updates: torch.Tensor, weights: torch.Tensor, ctx: ServerContext) -> torch.Tensor:
        """[P]."""
        p, noise = self.params, ctx.randn_like(updates[0])
        if p.variant == "shared":
            return updates.mean(dim=0) + p.sigma * noise
        return clipped_mean(updates, norms(updates), p.clip) + (p.sigma * p.clip / len(updates)) * noise
