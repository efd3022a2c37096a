"""How the nets of the attack ``mlp`` learn: those with as many lessons together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedbench.plugins.attacks.flat_adam import FlatAdam
from fedbench.plugins.attacks.hidden_layer import HiddenLayer, with_ones
from fedbench.plugins.attacks.trained.base import Prepared

HIDDEN, BATCH, RATE = 64, 200, 1e-3
LEAST, PATIENCE = 1e-4, 10  # a loss that is lower by less for more epochs than that ends the training


def train(lessons: Sequence[Prepared], epochs: int, penalty: float) -> list[HiddenLayer]:
    """A net for each lesson, as scikit-learn's ``MLPClassifier`` with these settings learns it, by its draws.

    Adam, rate 0.001, batches of 200, ``epochs`` at most, ``penalty`` on the squared weights.
    """
    found: dict[int, HiddenLayer] = {}
    for shape in {lesson.x.shape for lesson in lessons}:
        alike = [i for i, lesson in enumerate(lessons) if lesson.x.shape == shape]
        found |= zip(alike, _together([lessons[i] for i in alike], epochs, penalty), strict=True)
    return [found[i] for i in range(len(lessons))]


def _together(lessons: Sequence[Prepared], epochs: int, penalty: float) -> list[HiddenLayer]:
    """Of lessons of one shape."""
    x, member = with_ones(np.stack([lesson.x for lesson in lessons])), np.stack([lesson.member for lesson in lessons])
    rngs, n = [np.random.RandomState(lesson.seed) for lesson in lessons], x.shape[1]
    nets = HiddenLayer(*(np.stack(a) for a in zip(*(_drawn(x.shape[2] - 1, rng) for rng in rngs), strict=True)))
    going, order = np.arange(len(lessons)), np.tile(np.arange(n), (len(lessons), 1))
    best, stuck = np.full(len(lessons), np.inf), np.zeros(len(lessons), np.int64)
    adam, done = FlatAdam(nets.flat, late=True), dict[int, HiddenLayer]()
    for epoch in range(epochs):
        if n > BATCH:  # the order within one batch changes nothing but rounding
            order = np.stack([o[_shuffled(n, rngs[k])] for o, k in zip(order, going, strict=True)])
        loss = np.zeros(len(going))
        for start in range(0, n, BATCH):
            some = order[:, start : start + BATCH]
            rows = (slice(None), slice(None)) if n <= BATCH else (np.arange(len(going))[:, None], some)
            loss += some.shape[1] / n * _step(nets, adam, x[rows], member[rows], penalty)
        stuck = np.where(loss > best - LEAST, stuck + 1, 0)
        best = np.minimum(best, loss)
        over = (stuck > PATIENCE) | (epoch == epochs - 1)
        if over.any():
            done |= {int(going[i]): HiddenLayer(nets.hidden[[i]], nets.out[[i]]) for i in np.flatnonzero(over)}
            left = np.flatnonzero(~over)
            x, member, order, going, best, stuck = (a[left] for a in (x, member, order, going, best, stuck))
            nets.keep(left)
            adam.keep(left, nets.flat)
        if not len(going):
            break
    return [done[i] for i in range(len(lessons))]


def _step(nets: HiddenLayer, adam: FlatAdam, x: np.ndarray, member: np.ndarray, penalty: float) -> np.ndarray:
    """One step on ``x`` [K, n, d + 1]; the losses [K] before it."""
    gradient, n = np.empty_like(nets.flat), x.shape[1]
    said = nets.gradient(x, member, gradient)
    loss = (np.logaddexp(0, said) - member * said).mean(axis=1)
    for by, weights in zip(nets.views(gradient), (nets.hidden, nets.out), strict=True):
        own = weights[..., :-1, :] if weights.ndim == 3 else weights[:, :-1]  # biases go free
        loss += penalty / n / 2 * np.square(own).reshape(len(own), -1).sum(axis=1)
        by[:, :-1] += penalty / n * own
    adam.step(gradient, RATE)
    return loss


def _drawn(inputs: int, rng: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
    """[inputs + 1, HIDDEN] and [HIDDEN + 1]: weights and biases, uniform within the root of 6 / (ins + outs).

    Source: Glorot & Bengio, AISTATS 2010.
    """
    layers = []
    for ins, outs in ((inputs, HIDDEN), (HIDDEN, 1)):
        bound = (6 / (ins + outs)) ** 0.5
        weights, biases = rng.uniform(-bound, bound, (ins, outs)), rng.uniform(-bound, bound, outs)
        layers.append(np.concatenate([weights, biases[None]]))
    return layers[0], layers[1][:, 0]


def _shuffled(n: int, rng: np.random.RandomState) -> np.ndarray:
    order = np.arange(n)
    rng.shuffle(order)
    return order
