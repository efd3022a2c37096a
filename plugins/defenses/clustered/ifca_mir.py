"""IFCA-MIR: clients weigh a cluster's fit against how well its model resists membership inference."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field, model_validator

from fedbench.core import Federation, MemberContext, ServerContext, UserError
from fedbench.plugins.defenses.clustered.ifca import IFCA, empirical_losses
from fedbench.plugins.defenses.clustered.red_team import Order, risk

Scale = Literal["relative", "raw"]


class Announcement(NamedTuple):
    """What the server tells everybody of one global model: its MIA accuracy as it was after ``round``."""

    risk: float
    round: int


def privacy_weight(threshold: float, sensitive: float, tolerant: float, beta_max: float) -> float:
    """beta_i: ``beta_max`` for a client that tolerates ``sensitive`` or less, 0 from ``tolerant`` on, linear between."""
    return beta_max * min(max((tolerant - threshold) / (tolerant - sensitive), 0.0), 1.0)


def costs(losses: np.ndarray, risks: np.ndarray, beta: float, scale: Scale) -> np.ndarray:
    """[s]: (1 - beta) f + beta l of losses f [s] and risks l [s]. ``relative``: each divided by its largest over the s
    models, so that both are 1 for the worst; ``raw``: as printed (Jung et al., algorithm 1, line 12)."""
    if scale == "relative":
        losses, risks = (v / max(float(v.max()), 1e-30) for v in (losses, risks))
    return (1 - beta) * losses + beta * risks


class IFCAMIR(IFCA):
    """IFCA whose clients pick argmin_j alpha_i f(theta_j) + beta_i l(theta_j), alpha_i + beta_i = 1.

    l(theta_j) is the accuracy of the membership inference that the server itself runs on every model (``red_team``) in
    every ``every``-th round and announces to all; until every model has such a number, the loss alone decides. A model
    that was idle then is examined when it next moves. The paper leaves alpha_i and beta_i to the client: here beta_i
    follows from the accuracy tau_i that the client tolerates. A cross-entropy has no bound and l lies in [0.5, 1], so
    both are compared relative to the worst model. With beta_i = 0 it is IFCA. It takes nobody's risk away, it lets
    sensitive clients move; the risk of those who stay may rise (the paper's table 2).
    ``announced``: model -> what its clients were last told. ``history``: (round, model) -> risk.
    Source: Jung, Biswas & Palamidessi, ARTMAN 2025, section 4.3, algorithm 1, and section 5.2 (every 5 rounds, 3 shadow
    models); beta_i, the scales, the server's recipe and the attack model are not in the paper.
    """

    class Params(IFCA.Params):
        beta_max: float = Field(1.0, ge=0, le=1, description="beta of the most privacy-sensitive clients; 0: IFCA")
        sensitive: float = Field(0.5, ge=0, le=1, description="tolerated MIA accuracy up to which beta is beta_max")
        tolerant: float = Field(0.8, ge=0, le=1, description="tolerated MIA accuracy from which on beta is 0")
        scale: Scale = Field("relative", description="loss and risk divided by their largest over the models, or raw")
        every: int = Field(5, ge=1, description="rounds between two examinations of the models")
        shadows: int = Field(3, ge=1, description="shadow models the attack learns from; one more is kept to judge it")
        shadow_samples: int = Field(1000, ge=4, description="samples the server has of its own")
        epochs: int = Field(10, ge=1, description="a shadow model's training, epochs over its half of the samples")
        start: Literal["model", "initial"] = Field(
            "model", description="shadow models continue the examined model, or start where it started: from scratch"
        )
        confidences: Order = Field(
            "sorted", description="what the attack model reads beside the label: confidences sorted, or the label's own first"
        )

        @model_validator(mode="after")
        def _ordered(self):
            if self.sensitive >= self.tolerant:
                raise ValueError(f"sensitive is {self.sensitive:g}, which must be below tolerant, {self.tolerant:g}")
            return self

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.announced: dict[int, Announcement] = {}
        self.history: dict[tuple[int, int], float] = {}

    @property
    def root_samples(self) -> int:  # type: ignore[override]
        """``shadow_samples``."""
        return self.params.shadow_samples

    def assign(self, models: torch.Tensor, ctx: MemberContext) -> int:
        """The model [s, P] of least cost to this member."""
        beta = self._beta(ctx)
        if beta == 0 or len(self.announced) < len(models):
            return super().assign(models, ctx)
        risks = np.array([self.announced[j].risk for j in range(len(models))])
        return int(np.argmin(costs(empirical_losses(models, ctx, self.params.batch), risks, beta, self.params.scale)))

    def check(self, federation: Federation) -> None:
        """As IFCA; and a privacy weight needs thresholds."""
        super().check(federation)
        if self.params.beta_max and not federation.thresholds:
            raise UserError(
                "ifca-mir weighs a client's privacy by the MIA accuracy it tolerates, and this setting gives its clients "
                "none: give the setting thresholds: [0.5, 0.8] (or the defense beta_max: 0)"
            )

    def _beta(self, ctx: MemberContext) -> float:
        p = self.params
        if p.beta_max == 0 or ctx.privacy_threshold is None:
            return 0.0
        return privacy_weight(ctx.privacy_threshold, p.sensitive, p.tolerant, p.beta_max)

    def aggregate(self, updates: torch.Tensor, weights: torch.Tensor, ctx: ServerContext) -> torch.Tensor:
        """[P]: as IFCA; then, in its turn, the model that comes of it is examined."""
        step = super().aggregate(updates, weights, ctx)
        if self.params.start == "initial" and "initial" not in ctx.memory:
            ctx.memory["initial"] = ctx.params.clone()  # a model moves only here: before the first call it is as drawn
        if self._due(ctx):
            self._examine(ctx.memory.get("initial", ctx.params + step), ctx)
        return step

    def _due(self, ctx: ServerContext) -> bool:
        """Whether a multiple of ``every`` has passed since this model's last examination, and somebody will be told."""
        every = self.params.every
        return ctx.round < ctx.federation.rounds and ctx.round // every > ctx.memory.get("examined", 0) // every

    def _examine(self, start: torch.Tensor, ctx: ServerContext) -> None:
        # The date is in ``ctx.memory``: an adversary that tries the rule gets a copy of it, so the real examination
        # is still due afterwards and overwrites what the trial announced.
        ctx.memory["examined"] = ctx.round
        p = self.params
        found = risk(start, ctx, p.shadows, p.epochs, p.confidences)
        self.announced[ctx.model_index] = Announcement(found, ctx.round)
        self.history[ctx.round, ctx.model_index] = found
