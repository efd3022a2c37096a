"""IFCA-MIR: clients weigh a model's fit against its measured risk of membership inference."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from fedbench.core import Federation, MemberContext, ServerContext, UserError
from fedbench.plugins.defenses.ifca import IFCA, empirical_losses

HIDDEN, RATE, EPOCHS = 64, 1e-3, 50  # of the attack model
Order = Literal["sorted", "true-first"]


def risk(start: torch.Tensor, ctx: ServerContext, shadows: int, epochs: int, order: Order = "sorted") -> float:
    """Balanced accuracy in [0, 1] of a shadow-model attack, 0.5 being chance.

    ``shadows`` models are trained from ``start`` [P] for ``epochs`` on random halves of ``ctx.root``; an attack model
    learns from their confidences to tell in from out; it is judged on one more shadow model that it has not seen. No
    client's data are involved. How much that says of the model itself depends on ``start``: shadows that continue it
    inherit what it has learnt, but its own training samples are never asked about.
    Source: Jung, Biswas & Palamidessi, ARTMAN 2025, algorithm 2 (TrainMIA), after Shokri et al., IEEE S&P 2017. The
    paper does not say where TPR and TNR are taken: a held-out shadow model is what a server can do by itself.
    """
    if ctx.root is None or ctx.train is None or ctx.logits is None:
        raise RuntimeError("the red team was given no root samples")
    x, y = ctx.root.x, ctx.root.y
    members = [ctx.rng.permutation(len(y)).argsort() < len(y) // 2 for _ in range(shadows + 1)]
    seen = []
    for member in members:
        inside = torch.from_numpy(member).to(y.device)
        shadow = ctx.train(start, x[inside], y[inside], epochs)
        seen.append(features(ctx.logits(shadow, x), y, order))
    attack = fit(np.concatenate(seen[:-1]), np.concatenate(members[:-1]), int(ctx.rng.integers(2**31)))
    predicted, member = attack.predict(seen[-1]).astype(bool), members[-1]
    return float((predicted[member].mean() + (~predicted[~member]).mean()) / 2)  # Jung et al., eq. 8


def features(logits: torch.Tensor, y: torch.Tensor, order: Order = "sorted") -> np.ndarray:
    """[n, 2C] float64: the softmax of ``logits`` [n, C], largest first, then the label [n] one-hot.

    ``true-first`` puts the label's own confidence before the others: sorted ones do not tell right from wrong, while the
    plain vectors of Shokri et al., one attack model a class, do.
    """
    p = logits.double().softmax(dim=1)
    if order == "true-first":
        column = y[:, None]
        others = p.scatter(1, column, -1.0).sort(dim=1, descending=True).values[:, :-1]
        p = torch.cat([p.gather(1, column), others], dim=1)
    else:
        p = p.sort(dim=1, descending=True).values
    return np.hstack([p.cpu().numpy(), np.eye(logits.shape[1])[y.cpu().numpy()]])


def fit(x: np.ndarray, member: np.ndarray, seed: int) -> MLPClassifier:
    """The attack model on ``x`` [n, F] and ``member`` [n] bool: one hidden layer of ReLUs, Adam, a fixed number of epochs."""
    attack = MLPClassifier(
        (HIDDEN,), activation="relu", solver="adam", alpha=0.0, learning_rate_init=RATE, max_iter=EPOCHS,
        n_iter_no_change=EPOCHS, random_state=seed,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it is stopped, not converged, by design
        return attack.fit(x, member)


Scale = Literal["relative", "raw"]


def costs(losses: np.ndarray, risks: np.ndarray, beta: float, scale: Scale) -> np.ndarray:
    """[s]: (1 - beta) f + beta l of losses f [s] and risks l [s]. ``relative``: each divided by its largest over the s
    models, so that both are 1 for the worst; ``raw``: as printed (Jung et al., algorithm 1, line 12)."""
    if scale == "relative":
        losses, risks = (v / max(float(v.max()), 1e-30) for v in (losses, risks))
    return (1 - beta) * losses + beta * risks


class IFCAMIR(IFCA):
    """IFCA with clients that pick argmin_j alpha_i f(theta_j) + beta_i l(theta_j), alpha_i + beta_i = 1.

    l(theta_j) is the accuracy of the membership inference that the server itself runs on every model (``red_team``) in
    every ``every``-th round and announces to all; until every model has such a number, the loss alone decides. A model
    that was idle then is examined when it next moves. The paper leaves alpha_i and beta_i to the client: here beta_i
    follows from the accuracy tau_i that the client tolerates. A cross-entropy has no bound and l lies in [0.5, 1], so
    both are compared relative to the worst model. With beta_i = 0 it is IFCA. It lowers no client's risk, it lets
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
        self.announced: dict[int, float] = {}
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
        risks = np.array([self.announced[j] for j in range(len(models))])
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
        """``beta_max`` for a client that tolerates ``sensitive`` or less, 0 from ``tolerant`` on, linear between."""
        p = self.params
        if p.beta_max == 0 or ctx.privacy_threshold is None:
            return 0.0
        return p.beta_max * min(max((p.tolerant - ctx.privacy_threshold) / (p.tolerant - p.sensitive), 0.0), 1.0)

    def aggregate(self, updates: torch.Tensor, weights: torch.Tensor, ctx: ServerContext) -> torch.Tensor:
        """[P]: as IFCA; then, in its turn, the model that comes of it is examined."""
        step = super().aggregate(updates, weights, ctx)
        if self.params.start == "initial" and "initial" not in ctx.memory:
            ctx.memory["initial"] = ctx.params.clone()  # a model moves only here: before the first call it is as drawn
        every = self.params.every
        # a multiple of it has passed since this model's last examination, and there are clients left to tell
        if ctx.round < ctx.federation.rounds and ctx.round // every > ctx.memory.get("examined", 0) // every:
            self._examine(ctx.memory.get("initial", ctx.params + step), ctx)
        return step

    def _examine(self, start: torch.Tensor, ctx: ServerContext) -> None:
        # The date is in ``ctx.memory``: an adversary that tries the rule gets a copy of it, so the real examination
        # is still due afterwards and overwrites what the trial announced.
        ctx.memory["examined"] = ctx.round
        p = self.params
        found = risk(start, ctx, p.shadows, p.epochs, p.confidences)
        self.announced[ctx.model_index] = self.history[ctx.round, ctx.model_index] = found
