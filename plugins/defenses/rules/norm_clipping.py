"""Norm clipping: no row counts for more than a bound."""

from __future__ import annotations

import torch
from pydantic import Field

from fedbench.core import Defense, Federation, Params, ServerContext, norms
from fedbench.plugins.defenses.rules.geometry import clipped_mean
from fedbench.plugins.defenses.rules.limits import require_majority


def norm_clipping(updates: torch.Tensor, bound: float | None = None) -> torch.Tensor:
    """[P]: the mean of the rows [K, P] scaled down to the L2 norm ``bound``; None: to the median of their norms."""
    lengths = norms(updates)
    return clipped_mean(updates, lengths, float(lengths.quantile(0.5)) if bound is None else bound)


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
        return norm_clipping(updates, self.params.bound)
