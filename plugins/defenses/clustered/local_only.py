"""Local training: nobody shares anything."""

from __future__ import annotations

import torch

from fedbench.core import Defense, MemberContext


class LocalOnly(Defense):
    """Every client trains a model of its own; clients that learn alone are what a federation is compared with.

    The limit of clustering with one cluster a client: the averages are over one row each.
    Source: the baseline of Ghosh et al., NeurIPS 2020 (IFCA), section 6, "local model".
    """

    n_models = 0

    def assign(self, models: torch.Tensor, ctx: MemberContext) -> int:
        """The client's own model, whatever the others' [s, P] are worth to it."""
        return ctx.client
