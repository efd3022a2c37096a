"""Clustered federations: IFCA, and IFCA-MIR, which also weighs the risk of membership inference."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy import ndarray
from pydantic import Field, model_validator
from torch import Tensor

from fedbench.core import (
    Defense,
    FactValue,
    Federation,
    MemberContext,
    Params,
    ReportContext,
    ServerContext,
    UserError,
)
from fedbench.plugins.defenses.red_team import Order, risk

WORST = 1e30  # for a loss that is not finite: such a model is never the better one
USUAL = 0.7  # default of ``least_share``, in 1/s: the released code's 35 % for two clusters


def empirical_losses(models: Tensor, ctx: MemberContext, batch: int | None = None) -> ndarray:
    """Mean cross-entropy [s] float64 of each model [s, P] on the member's own data, in eval mode.

    ``batch``: on so many samples drawn without replacement, the same ones for every model; None: on
    all. Samples held out of training are left out. Overwrites ``ctx.params``. Normalisation
    statistics stay those of the member's present model. Source: Ghosh et al., NeurIPS 2020,
    algorithm 1, the cluster identity estimate.
    """
    index = ctx.data.trainable
    if batch is not None and batch < len(index):
        places = ctx.rng.choice(len(index), batch, replace=False)
        index = index[torch.from_numpy(places).to(index.device)]
    x = ctx.data.x[index]
    y = ctx.data.y[index]
    means = []
    for model in models:
        ctx.params.copy_(model)
        means.append(ctx.losses(x, y).double().mean())
    losses = torch.stack(means).cpu().numpy()
    return np.where(np.isfinite(losses), losses, WORST)


class IFCA(Defense):
    """The iterative federated clustering algorithm: s global models, one a cluster of clients with
    like data.

    In every round each client evaluates all s models on its own data, picks the one of least
    empirical loss, trains it and uploads it with its index; the server averages each cluster's
    models, unweighted. A model that no client picked stays as it is. Models that start at random
    may all lose to one of them: ``least_share`` has the initial ones drawn anew until every one is
    the choice of some client, as the released code does. No protection: the smaller a cluster, the
    more its model tells of a member, which is what IFCA-MIR is about. Source: Ghosh, Chung, Yin &
    Ramchandran, NeurIPS 2020, algorithm 1, option II (model averaging).
    """

    private = ("assign",)  # the loss on its samples picks the model

    class Params(Params):
        models: int = Field(2, ge=2, description="s, global models, one a cluster of clients")
        batch: int | None = Field(
            None,
            ge=1,
            description="own samples a member compares the models on, drawn each round; null: all "
            "of them",
        )
        weights: Literal["equal", "size"] = Field(
            "equal",
            description="a row's weight in its cluster's mean: one each, or its client's share of "
            "the data",
        )
        least_share: float | None = Field(
            None,
            ge=0,
            le=1,
            description="initial models are drawn until each is picked by this share of the "
            "members; null: 0.7 / models, 0: any",
        )

        @model_validator(mode="after")
        def _possible(self):
            if self.least_share is not None and self.least_share * self.models > 1:
                raise ValueError(
                    f"{self.models} models cannot each be picked by {self.least_share:g} of the "
                    "members"
                )
            return self

    @property
    def n_models(self) -> int:  # type: ignore[override]
        """Number of global models."""
        return self.params.models

    @property
    def least_share(self) -> float:  # type: ignore[override]
        """Share of the members that picks each initial model."""
        share = self.params.least_share
        return USUAL / self.params.models if share is None else share

    def check(self, federation: Federation) -> None:
        """Raise ``UserError`` for more clusters than clients."""
        models = self.params.models
        clients = federation.clients
        if models > clients:
            raise UserError(
                f"{models} clusters need as many clients, and the federation has {clients}: lower "
                "models, or let more clients take part"
            )

    def assign(self, models: Tensor, ctx: MemberContext) -> int:
        """Pick the model of [s, P] of least empirical loss, the first of equals."""
        return int(np.argmin(empirical_losses(models, ctx, self.params.batch)))

    def aggregate(self, updates: Tensor, weights: Tensor, ctx: ServerContext) -> Tensor:
        """Mean [P] of one cluster's rows [n, P]."""
        if self.params.weights == "size":
            return weights @ updates
        return updates.mean(dim=0)


class LocalOnly(Defense):
    """Every client trains a model of its own; clients that learn alone are what a federation is
    compared with.

    The limit of clustering with one cluster a client: the averages are over one row each.
    Source: the baseline of Ghosh et al., NeurIPS 2020 (IFCA), section 6, "local model".
    """

    private = ()  # its own number picks the model

    n_models = 0

    def assign(self, models: Tensor, ctx: MemberContext) -> int:
        """Pick the client's own model, whatever the others are worth to it."""
        return ctx.client


Scale = Literal["relative", "raw"]


def costs(losses: ndarray, risks: ndarray, beta: float, scale: Scale) -> ndarray:
    """Cost [s], (1 - beta) f + beta l of losses f [s] and risks l [s].

    ``relative``: each divided by its largest over the s models, so that both are 1 for the worst;
    ``raw``: as printed (Jung et al., algorithm 1, line 12).
    """
    if scale == "relative":
        losses = losses / max(float(losses.max()), 1e-30)
        risks = risks / max(float(risks.max()), 1e-30)
    return (1 - beta) * losses + beta * risks


def tolerated(losses: ndarray, risks: ndarray, bound: float) -> int:
    """Index of the least of the losses f [s] among models with a risk l [s] of at most ``bound``.

    Where no model has one, the model of least risk: beta_i = 1 in Jung et al., equation 11. Such a
    client is violated by either choice, and comes closest to its bound.
    """
    allowed = risks <= bound
    if not allowed.any():
        return int(np.argmin(risks))
    return int(np.argmin(np.where(allowed, losses, np.inf)))


class IFCAMIR(IFCA):
    """IFCA with clients that pick argmin_j alpha_i f(theta_j) + beta_i l(theta_j), alpha_i + beta_i
    = 1.

    l(theta_j) is the accuracy of the membership inference that the server itself runs on every
    model (:func:`~fedbench.plugins.defenses.red_team.risk`) in every ``every``-th round from
    ``first_round`` on and announces to all; until every model has such a number, the loss alone
    decides. A model that was idle then is examined when it next moves. The paper leaves alpha_i and
    beta_i to the client: here beta_i follows from the accuracy tau_i that the client tolerates. A
    cross-entropy has no bound and l lies in [0.5, 1], so both are compared relative to the worst
    model. With beta_i = 0 it is IFCA. ``rule: tolerated`` is another reading: beta_i is 0 among the
    models that the client tolerates, and 1 among the others (:func:`tolerated`). The method lowers
    no client's risk, it lets sensitive clients move; the risk of those who stay may rise (the
    paper's table 2).
    ``announced``: model -> what its clients were last told. ``history``: (round, model) -> risk.
    Source: Jung, Biswas & Palamidessi, ARTMAN 2025, section 4.3, algorithm 1, and section 5.2
    (every 5 rounds, 3 shadow models); beta_i, the scales, the server's recipe and the attack model
    are not in the paper.
    """

    private = ("assign",)  # as in IFCA

    class Params(IFCA.Params):
        rule: Literal["linear", "tolerated"] = Field(
            "linear",
            description="a client's choice: least of the weighted sum of loss and risk, or least "
            "loss among the models that it tolerates",
        )
        beta_max: float = Field(
            1.0, ge=0, le=1, description="beta of the most privacy-sensitive clients; 0: IFCA"
        )
        sensitive: float = Field(
            0.5, ge=0, le=1, description="tolerated MIA accuracy up to which beta is beta_max"
        )
        tolerant: float = Field(
            0.8, ge=0, le=1, description="tolerated MIA accuracy from which on beta is 0"
        )
        scale: Scale = Field(
            "relative", description="loss and risk divided by their largest over the models, or raw"
        )
        every: int = Field(5, ge=1, description="rounds between two examinations of the models")
        first_round: int = Field(
            1,
            ge=1,
            description="round from which on models are examined; before, the loss alone decides",
        )
        shadows: int = Field(
            3,
            ge=1,
            description="shadow models the attack learns from; one more is kept to judge it",
        )
        shadow_samples: int = Field(
            1000,
            ge=4,
            description="samples the server has of its own; a shadow model trains on at most half "
            "of them",
        )
        confidences: Order = Field(
            "sorted",
            description="what the attack model reads beside the label: confidences sorted, or the "
            "label's own first",
        )

        @model_validator(mode="after")
        def _ordered(self):
            if self.sensitive >= self.tolerant:
                raise ValueError(
                    f"sensitive is {self.sensitive:g}, which must be below tolerant, "
                    f"{self.tolerant:g}"
                )
            return self

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.announced: dict[int, float] = {}
        self.history: dict[tuple[int, int], float] = {}

    @property
    def root_samples(self) -> int:  # type: ignore[override]
        """Number of samples the server has of its own."""
        return self.params.shadow_samples

    @property
    def _first_examination(self) -> int:
        """Round after which models are first examined."""
        return max(self.params.first_round, self.params.every)

    def assign(self, models: Tensor, ctx: MemberContext) -> int:
        """Pick the model of [s, P] that the rule prefers for this member.

        Raises:
            UserError: the server's examination is that of another group's instance.
        """
        p = self.params
        bound = ctx.privacy_threshold
        if p.beta_max == 0 or bound is None:
            return super().assign(models, ctx)
        if not self.announced and ctx.round > self._first_examination:
            raise UserError(
                "ifca-mir announces risks to the first group of clients alone, and client "
                f"{ctx.client} is of another: make them one group, or give the defense beta_max: 0"
            )
        if len(self.announced) < len(models):
            return super().assign(models, ctx)
        losses = empirical_losses(models, ctx, p.batch)
        risks = np.array([self.announced[j] for j in range(len(models))])
        if p.rule == "tolerated":
            return tolerated(losses, risks, bound)
        return int(np.argmin(costs(losses, risks, self._beta(bound), p.scale)))

    def check(self, federation: Federation) -> None:
        """Raise ``UserError`` where IFCA does, for a privacy weight without thresholds, and where
        no client would ever be told a risk.
        """
        super().check(federation)
        p = self.params
        if p.beta_max == 0:
            return
        if not federation.thresholds:
            raise UserError(
                "ifca-mir weighs a client's privacy by the MIA accuracy it tolerates, and this "
                "setting gives its clients none: give the setting thresholds: [0.5, 0.8] (or the "
                "defense beta_max: 0)"
            )
        first = self._first_examination
        if first >= federation.rounds:
            raise UserError(
                f"ifca-mir first examines its models after round {first}, and the federation has "
                f"{federation.rounds} rounds, so no client would be told a risk: lower first_round "
                "or every, or raise rounds"
            )

    def _beta(self, bound: float) -> float:
        """Return ``beta_max`` for a client that tolerates ``sensitive`` or less, 0 from
        ``tolerant`` on, linear between.
        """
        p = self.params
        sensitivity = (p.tolerant - bound) / (p.tolerant - p.sensitive)
        return p.beta_max * min(max(sensitivity, 0.0), 1.0)

    def aggregate(self, updates: Tensor, weights: Tensor, ctx: ServerContext) -> Tensor:
        """Aggregate by IFCA; then, in its turn, examine the model that comes of it."""
        step = super().aggregate(updates, weights, ctx)
        p = self.params
        memory = ctx.memory
        if "initial" not in memory:
            # a model moves only here: before the first call it is as drawn
            memory["initial"] = ctx.params.clone()
        # a multiple of ``every`` has passed since this model was examined last
        due = ctx.round // p.every > memory.get("examined", 0) // p.every
        if due and p.first_round <= ctx.round < ctx.federation.rounds:  # there are clients to tell
            self._examine(ctx)
        return step

    def _examine(self, ctx: ServerContext) -> None:
        """Announce the risk of a model.

        The date is in ``ctx.memory``: an adversary that tries the rule gets a copy of it, so the
        real examination is still due afterwards and overwrites what the trial announced.
        """
        p = self.params
        model = ctx.model_index
        ctx.memory["examined"] = ctx.round
        self.announced[model] = risk(ctx, ctx.memory["initial"], p.shadows, p.confidences)
        self.history[ctx.round, model] = self.announced[model]

    def report(self, ctx: ReportContext) -> dict[str, FactValue]:
        """Report the least and the largest of the risks that were announced last."""
        risks = self.announced.values()
        if not risks:
            return {}
        return {"announced risk, least": min(risks), "announced risk, largest": max(risks)}
