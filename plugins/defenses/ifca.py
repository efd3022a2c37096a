"""Clustered federations: IFCA, and IFCA-MIR, which also weighs the risk of membership inference."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np
import torch
from numpy import ndarray
from pydantic import Field, model_validator
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from torch import Tensor

from fedbench.core import Defense, Federation, MemberContext, Params, ServerContext, UserError

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


HIDDEN = 64  # of the attack model
RATE = 1e-3
EPOCHS = 50
Order = Literal["sorted", "true-first"]


def risk(
    start: Tensor, ctx: ServerContext, shadows: int, epochs: int, order: Order = "sorted"
) -> float:
    """Return the balanced accuracy in [0, 1] of a shadow-model attack, 0.5 being chance.

    ``shadows`` models are trained from ``start`` [P] for ``epochs`` on random halves of
    ``ctx.root``; an attack model learns from their confidences to tell in from out; it is judged on
    one more shadow model that it has not seen. No client's data are involved. How much that says of
    the model itself depends on ``start``: shadows that continue it inherit what it has learnt, but
    its own training samples are never asked about. Source: Jung, Biswas & Palamidessi, ARTMAN 2025,
    algorithm 2 (TrainMIA), after Shokri et al., IEEE S&P 2017. The paper does not say where TPR and
    TNR are taken: a held-out shadow model is what a server can do by itself.
    """
    assert ctx.root and ctx.train and ctx.logits  # `root_samples` asks for them
    x = ctx.root.x
    y = ctx.root.y
    n = len(ctx.root.y)
    members = [ctx.rng.permutation(n).argsort() < n // 2 for _ in range(shadows + 1)]
    inputs = []
    for member in members:
        inside = torch.from_numpy(member).to(y.device)
        shadow = ctx.train(start, x[inside], y[inside], epochs)
        inputs.append(features(ctx.logits(shadow, x), y, order))
    seed = int(ctx.rng.integers(2**31))
    attack = fit(np.concatenate(inputs[:-1]), np.concatenate(members[:-1]), seed)
    return balanced_accuracy(attack.predict(inputs[-1]).astype(bool), members[-1])


def balanced_accuracy(predicted: ndarray, member: ndarray) -> float:
    """Mean of TPR and TNR (Jung et al., eq. 8) of decisions [n] bool."""
    return float((predicted[member].mean() + (~predicted[~member]).mean()) / 2)


def features(logits: Tensor, y: Tensor, order: Order = "sorted") -> ndarray:
    """Return [n, 2C] float64: the softmax of ``logits`` [n, C], largest first, and one-hot labels.

    ``true-first`` puts the label's own confidence before the others: sorted ones do not tell right
    from wrong, while the plain vectors of Shokri et al., one attack model a class, do.
    """
    p = logits.double().softmax(dim=1)
    column = y[:, None]
    descending = p.sort(dim=1, descending=True).values
    if order == "true-first":
        rest = p.scatter(1, column, -1.0).sort(dim=1, descending=True).values[:, :-1]
        descending = torch.cat([p.gather(1, column), rest], dim=1)
    return np.hstack([descending.cpu().numpy(), np.eye(p.shape[1])[y.cpu().numpy()]])


def fit(x: ndarray, member: ndarray, seed: int) -> MLPClassifier:
    """Fit the attack model to ``x`` [n, F] and ``member`` [n] bool.

    One hidden layer of ReLUs, Adam, a fixed number of epochs.
    """
    attack = MLPClassifier(
        (HIDDEN,),
        activation="relu",
        solver="adam",
        alpha=0.0,
        learning_rate_init=RATE,
        max_iter=EPOCHS,
        n_iter_no_change=EPOCHS,
        random_state=seed,
    )
    with warnings.catch_warnings():
        # it is stopped, not converged, by design
        warnings.simplefilter("ignore", ConvergenceWarning)
        return attack.fit(x, member)


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


class IFCAMIR(IFCA):
    """IFCA with clients that pick argmin_j alpha_i f(theta_j) + beta_i l(theta_j), alpha_i + beta_i
    = 1.

    l(theta_j) is the accuracy of the membership inference that the server itself runs on every
    model (``red_team``) in every ``every``-th round and announces to all; until every model has
    such a number, the loss alone decides. A model that was idle then is examined when it next
    moves. The paper leaves alpha_i and beta_i to the client: here beta_i follows from the accuracy
    tau_i that the client tolerates. A cross-entropy has no bound and l lies in [0.5, 1], so both
    are compared relative to the worst model. With beta_i = 0 it is IFCA. It lowers no client's
    risk, it lets sensitive clients move; the risk of those who stay may rise (the paper's table 2).
    ``announced``: model -> what its clients were last told. ``history``: (round, model) -> risk.
    Source: Jung, Biswas & Palamidessi, ARTMAN 2025, section 4.3, algorithm 1, and section 5.2
    (every 5 rounds, 3 shadow models); beta_i, the scales, the server's recipe and the attack model
    are not in the paper.
    """

    private = ("assign",)  # as in IFCA

    class Params(IFCA.Params):
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
        shadows: int = Field(
            3,
            ge=1,
            description="shadow models the attack learns from; one more is kept to judge it",
        )
        shadow_samples: int = Field(1000, ge=4, description="samples the server has of its own")
        epochs: int = Field(
            10, ge=1, description="a shadow model's training, epochs over its half of the samples"
        )
        start: Literal["model", "initial"] = Field(
            "model",
            description="shadow models continue the examined model, or start where it started: "
            "from scratch",
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

    def assign(self, models: Tensor, ctx: MemberContext) -> int:
        """Pick the model of [s, P] of least cost to this member."""
        beta = self._beta(ctx)
        if beta == 0 or len(self.announced) < len(models):
            return super().assign(models, ctx)
        losses = empirical_losses(models, ctx, self.params.batch)
        risks = np.array([self.announced[j] for j in range(len(models))])
        return int(np.argmin(costs(losses, risks, beta, self.params.scale)))

    def check(self, federation: Federation) -> None:
        """Raise ``UserError`` where IFCA does, and for a privacy weight without thresholds."""
        super().check(federation)
        if self.params.beta_max and not federation.thresholds:
            raise UserError(
                "ifca-mir weighs a client's privacy by the MIA accuracy it tolerates, and this "
                "setting gives its clients none: give the setting thresholds: [0.5, 0.8] (or the "
                "defense beta_max: 0)"
            )

    def _beta(self, ctx: MemberContext) -> float:
        """Return ``beta_max`` for a client that tolerates ``sensitive`` or less, 0 from
        ``tolerant`` on, linear between.
        """
        p = self.params
        if p.beta_max == 0 or ctx.privacy_threshold is None:
            return 0.0
        sensitivity = (p.tolerant - ctx.privacy_threshold) / (p.tolerant - p.sensitive)
        return p.beta_max * min(max(sensitivity, 0.0), 1.0)

    def aggregate(self, updates: Tensor, weights: Tensor, ctx: ServerContext) -> Tensor:
        """Aggregate by IFCA; then, in its turn, examine the model that comes of it."""
        step = super().aggregate(updates, weights, ctx)
        p = self.params
        memory = ctx.memory
        if p.start == "initial" and "initial" not in memory:
            # a model moves only here: before the first call it is as drawn
            memory["initial"] = ctx.params.clone()
        # a multiple of ``every`` has passed since this model was examined last
        due = ctx.round // p.every > memory.get("examined", 0) // p.every
        if due and ctx.round < ctx.federation.rounds:  # there are clients left to tell
            self._examine(memory.get("initial", ctx.params + step), ctx)
        return step

    def _examine(self, start: Tensor, ctx: ServerContext) -> None:
        """Announce the risk of a model.

        The date is in ``ctx.memory``: an adversary that tries the rule gets a copy of it, so the
        real examination is still due afterwards and overwrites what the trial announced.
        """
        p = self.params
        model = ctx.model_index
        ctx.memory["examined"] = ctx.round
        self.announced[model] = risk(start, ctx, p.shadows, p.epochs, p.confidences)
        self.history[ctx.round, model] = self.announced[model]
