"""Red team of a server: shadow models that train as a global model does, and an attack that learns
from them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy import ndarray
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from torch import Tensor

from fedbench.core import ServerContext

HIDDEN = 64  # of the attack model
RATE = 1e-3
EPOCHS = 50
LESSONS = 6000  # predictions it learns from, at most
Order = Literal["sorted", "true-first"]


@dataclass(frozen=True)
class Curriculum:
    """Training of a global model so far, as its server knows it."""

    samples: int
    """of all its clients"""
    epochs: int
    """passes over them"""
    batch_size: int
    """of its clients together: a mean of models that made one step each is one step on the mean of
    their gradients
    """


def curriculum(ctx: ServerContext) -> Curriculum:
    """Return what the clients of this round have trained the model on, had they always been its
    clients.
    """
    facts = ctx.federation
    share = 1.0  # of a local epoch
    if facts.local_batches is not None:
        share = min(1.0, facts.local_batches * facts.batch_size / float(np.mean(ctx.sizes)))
    epochs = ctx.round * facts.participation * facts.local_epochs * share
    return Curriculum(
        samples=round(sum(ctx.sizes) / facts.participation),
        epochs=max(1, round(epochs)),
        batch_size=len(ctx.sizes) * facts.batch_size,
    )


@dataclass
class Shadows:
    """Shadow models of one global model, each trained on its own half of a pool."""

    pool: Tensor
    """[2 n] positions in the server's samples"""
    inside: list[ndarray]
    """[2 n] bool each, n of them True"""
    models: list[Tensor]
    """[P] each"""
    epochs: int = 0
    """passes over their halves so far"""

    @classmethod
    def drawn(cls, ctx: ServerContext, start: Tensor, n: int, models: int) -> Shadows:
        """Draw a pool of 2 ``n`` samples, and a half of it for each of so many models."""
        assert ctx.root
        pool = torch.from_numpy(ctx.rng.choice(len(ctx.root.y), 2 * n, replace=False))
        inside = [ctx.rng.permutation(2 * n) < n for _ in range(models)]
        return cls(pool.to(ctx.root.y.device), inside, [start] * models)

    def train(self, ctx: ServerContext, course: Curriculum) -> None:
        """Continue every model up to the passes of the ``course``."""
        assert ctx.root and ctx.train
        missing = course.epochs - self.epochs
        if missing <= 0:
            return
        self.epochs = course.epochs
        for m, inside in enumerate(self.inside):
            half = self.pool[torch.from_numpy(inside).to(self.pool.device)]
            x = ctx.root.x[half]
            y = ctx.root.y[half]
            self.models[m] = ctx.train(self.models[m], x, y, missing, course.batch_size)


def risk(ctx: ServerContext, start: Tensor, shadows: int, order: Order = "sorted") -> float:
    """Return the balanced accuracy in [0, 1] of a shadow-model attack, 0.5 being chance.

    ``shadows`` models train from ``start`` [P], the examined model's own start, on as many of the
    server's samples as the model's clients have (at most half of the server's), for as many passes
    and in batches as large as theirs together (:func:`curriculum`), so that a model of few samples
    is told from one of many. An attack model learns from their confidences to tell in from out; it
    is judged on one more shadow model that it has not seen. No client's data are involved. The
    shadow models are kept in ``ctx.memory`` and continued at the next examination, or drawn anew
    where the model's samples have changed in number. Source: Jung, Biswas & Palamidessi, ARTMAN
    2025, algorithm 2 (TrainMIA), after Shokri et al., IEEE S&P 2017. The paper says neither how
    shadow models are trained nor where TPR and TNR are taken: a held-out shadow model is what a
    server can do by itself.
    """
    assert ctx.root and ctx.logits  # `root_samples` asks for them
    course = curriculum(ctx)
    n = min(course.samples, len(ctx.root.y) // 2)
    team = ctx.memory.get("shadows")
    if team is None or len(team.pool) != 2 * n:
        team = Shadows.drawn(ctx, start, n, shadows + 1)
        ctx.memory["shadows"] = team
    team.train(ctx, course)
    x = ctx.root.x[team.pool]
    y = ctx.root.y[team.pool]
    inputs = [features(ctx.logits(model, x), y, order) for model in team.models]
    seed = int(ctx.rng.integers(2**31))
    lessons = np.concatenate(inputs[:-1])
    member = np.concatenate(team.inside[:-1])
    chosen = ctx.rng.permutation(len(lessons))[:LESSONS]
    attack = fit(lessons[chosen], member[chosen], seed)
    return balanced_accuracy(attack.predict(inputs[-1]).astype(bool), team.inside[-1])


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
