"""The server's red team: how well does membership inference do on a model, judged on the server's own samples?"""

from __future__ import annotations

import warnings
from typing import Literal

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from fedbench.core import ServerContext

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
    members = [random_half(len(y), ctx.rng) for _ in range(shadows + 1)]
    seen = []
    for member in members:
        inside = torch.from_numpy(member).to(y.device)
        shadow = ctx.train(start, x[inside], y[inside], epochs)
        seen.append(features(ctx.logits(shadow, x), y, order))
    attack = fit(np.concatenate(seen[:-1]), np.concatenate(members[:-1]), int(ctx.rng.integers(2**31)))
    return balanced_accuracy(attack.predict(seen[-1]).astype(bool), members[-1])


def random_half(n: int, rng: np.random.Generator) -> np.ndarray:
    """[n] bool, n // 2 of them true: who is in a shadow model's training set."""
    member = np.zeros(n, bool)
    member[rng.permutation(n)[: n // 2]] = True
    return member


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


def balanced_accuracy(predicted: np.ndarray, member: np.ndarray) -> float:
    """(TPR + TNR) / 2 of ``predicted`` [n] bool. Source: Jung et al., eq. 8."""
    return float((predicted[member].mean() + (~predicted[~member]).mean()) / 2)
