"""GradSparse: upload only the large entries of an update."""

from __future__ import annotations

import torch
from pydantic import Field

from fedbench.core import Defense, MemberContext, Params


class GradSparse(Defense):
    """Zero the smallest entries of each member's update, tensor by tensor.

    Source: sparse updates as in Aji & Heafield (EMNLP 2017); CoFedMID (appendix E) removes .1 and .2, FedMIA (A.2.1)
    .1 to .99. The attacks see the sparse model, for losses too; FedMIA's code shows it to gradient attacks alone.
    """

    class Params(Params):
        rate: float = Field(0.2, ge=0, lt=1, description="fraction of a tensor's entries removed, 0 to 1")
        min_elements: int = Field(1000, ge=0, description="tensors of at most this many elements stay whole")

    def protect(self, update: torch.Tensor, ctx: MemberContext) -> torch.Tensor:
        sizes = [p.numel() for p in ctx.model.parameters() if p.requires_grad]
        pieces = [
            sparsify(piece, self.params.rate) if len(piece) > self.params.min_elements else piece
            for piece in update.split(sizes)
        ]
        return torch.cat(pieces)


def sparsify(values: torch.Tensor, rate: float) -> torch.Tensor:
    """[n] with the floor(rate * n) entries of smallest magnitude zeroed; of equal ones the earlier go first."""
    remove = int(rate * len(values) + 1e-9)  # 0.29 * 100 is 28.999... in floating point
    if remove == 0:
        return values
    magnitude = values.abs()
    threshold = magnitude.topk(remove, largest=False, sorted=False).values.max()
    below = magnitude < threshold
    # Ties at the threshold are broken by position, so that every device removes the same entries.
    ties = (magnitude == threshold).nonzero().squeeze(1)[: remove - int(below.sum())]
    return values.masked_fill(below, 0).index_fill(0, ties, 0)
