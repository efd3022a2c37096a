"""Clustered federations: IFCA, where each client trains the model that fits its data, and local training."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import Field, model_validator

from fedbench.core import Defense, Federation, MemberContext, Params, ServerContext, UserError

WORST = 1e30  # what a loss that is not finite counts as: such a model is never the better one
USUAL = 0.7  # default of ``least_share``, in units of 1/s: the released code's 35 % of the clients for two clusters


def empirical_losses(models: torch.Tensor, ctx: MemberContext, batch: int | None = None) -> np.ndarray:
    """[s] float64: mean cross-entropy of each model [s, P] on the member's own data, in eval mode.

    ``batch``: on so many samples drawn without replacement, the same ones for every model; None: on all. Samples held
    out of training are left out. Overwrites ``ctx.params``. Normalisation statistics stay those of the member's present
    model. Source: Ghosh et al., NeurIPS 2020, algorithm 1, the cluster identity estimate.
    """
    index = ctx.data.trainable
    if batch is not None and batch < len(index):
        index = index[torch.from_numpy(ctx.rng.choice(len(index), batch, replace=False)).to(index.device)]
    x, y = ctx.data.x[index], ctx.data.y[index]
    losses = []
    for model in models:
        ctx.params.copy_(model)
        losses.append(ctx.losses(x, y).double().mean())
    found = torch.stack(losses).cpu().numpy()
    return np.where(np.isfinite(found), found, WORST)


class IFCA(Defense):
    """The iterative federated clustering algorithm: s global models, one a cluster of clients with like data.

    In every round each client evaluates all s models on its own data, picks the one of least empirical loss, trains it
    and uploads it with its index; the server averages each cluster's models, unweighted. A model that no client picked
    stays as it is. Models that start at random may all lose to one of them: ``least_share`` has the initial ones drawn
    anew until every one is the choice of some client, as the released code does. No protection: the smaller a cluster, the more
    its model tells of a member, which is what IFCA-MIR is about.
    Source: Ghosh, Chung, Yin & Ramchandran, NeurIPS 2020, algorithm 1, option II (model averaging).
    """

    class Params(Params):
        models: int = Field(2, ge=2, description="s, global models, one a cluster of clients")
        batch: int | None = Field(
            None, ge=1, description="own samples a member compares the models on, drawn each round; null: all of them"
        )
        weights: Literal["equal", "size"] = Field(
            "equal", description="a row's weight in its cluster's mean: one each, or its client's share of the data"
        )
        least_share: float | None = Field(
            None, ge=0, le=1,
            description="initial models are drawn until each is picked by this share of the members; null: 0.7 / models, 0: any",
        )  # fmt: skip

        @model_validator(mode="after")
        def _possible(self):
            if self.least_share is not None and self.least_share * self.models > 1:
                raise ValueError(f"{self.models} models cannot each be picked by {self.least_share:g} of the members")
            return self

    @property
    def n_models(self) -> int:  # type: ignore[override]
        """``models``."""
        return self.params.models

    @property
    def least_share(self) -> float:  # type: ignore[override]
        """``least_share``, or its default for so many models."""
        share = self.params.least_share
        return USUAL / self.params.models if share is None else share

    def check(self, federation: Federation) -> None:
        """No more clusters than clients."""
        if self.params.models > federation.clients:
            raise UserError(
                f"{self.params.models} clusters need as many clients, and the federation has {federation.clients}: "
                "lower models, or let more clients take part"
            )

    def assign(self, models: torch.Tensor, ctx: MemberContext) -> int:
        """The model [s, P] of least empirical loss, the first of equals."""
        return int(np.argmin(empirical_losses(models, ctx, self.params.batch)))

    def aggregate(self, updates: torch.Tensor, weights: torch.Tensor, ctx: ServerContext) -> torch.Tensor:
        """[P]: the mean of one cluster's rows [n, P]."""
        return weights @ updates if self.params.weights == "size" else updates.mean(dim=0)


class LocalOnly(Defense):
    """Every client trains a model of its own; clients that learn alone are what a federation is compared with.

    The limit of clustering with one cluster a client: the averages are over one row each.
    Source: the baseline of Ghosh et al., NeurIPS 2020 (IFCA), section 6, "local model".
    """

    n_models = 0

    def assign(self, models: torch.Tensor, ctx: MemberContext) -> int:
        """The client's own model, whatever the others' [s, P] are worth to it."""
        return ctx.client
