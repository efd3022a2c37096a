"""MemoryTopK: sparse uploads with error feedback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from fedbench.core import Defense, FactValue, MemberContext, Params, ReportContext
from pydantic import Field

_LEFT = "left"  # [P]: what the member has not sent yet


class MemoryTopK(Defense):
    """Each member adds to its update what it held back so far, sends k entries of the sum, and
    holds back the others.

    With u the update of a round (trained minus received parameters) and m the memory, zero at
    first: g = Comp_k(m + u) is sent, m <- m + u - g. In contrast to plain sparsification
    (fedbench's ``grad-sparse``), entries held back are sent later, so an upload also depends on
    earlier rounds.

    Source: Basu, Data, Karakus, Diggavi, Qsparse-local-SGD, NeurIPS 2019, algorithm 1 (without
    quantisation), which has local steps as a federation does; with one local step it is Stich,
    Cordonnier, Jaggi, Sparsified SGD with Memory, NeurIPS 2018, algorithm 1. Comp_k is top_k or
    rand_k of their definition 2.1, over the whole vector. The memory is kept while a client is
    absent.
    """

    private = ()  # the update alone

    class Params(Params):
        share: float = Field(
            0.01,
            gt=0,
            le=1,
            description="k as a share of all parameters, as a fraction; at least one entry",
        )
        entries: Literal["largest", "random"] = Field(
            "largest",
            description="which k are sent: top_k, the largest in magnitude, or rand_k, uniformly "
            "drawn",
        )

    def protect(self, update: torch.Tensor, ctx: MemberContext) -> torch.Tensor:
        """[P] -> [P], zero in all but k entries."""
        owed = update + ctx.memory.get(_LEFT, 0)
        chosen = self._chosen(owed, ctx)
        sent = torch.zeros_like(owed).index_copy(0, chosen, owed[chosen])
        ctx.memory[_LEFT] = owed - sent
        return sent

    def _chosen(self, owed: torch.Tensor, ctx: MemberContext) -> torch.Tensor:
        """[k] positions; ties are broken by position, so that every device chooses the same
        ones.
        """
        k = max(1, round(self.params.share * len(owed)))
        if self.params.entries == "random":
            return ctx.randperm(len(owed))[:k]
        return owed.abs().argsort(descending=True, stable=True)[:k]

    def report(self, ctx: ReportContext) -> Mapping[str, FactValue]:
        """``entries sent`` by a member in a round, ``held back``: mean norm of what members never
        sent.
        """
        k = max(1, round(self.params.share * ctx.federation.n_params))
        left = [float(memory[_LEFT].norm()) for memory in ctx.of_member.values() if _LEFT in memory]
        return {"entries sent": k, "held back": sum(left) / max(1, len(left))}
