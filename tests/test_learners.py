"""The learners of attacks (forests, small nets, SeqMIA's net) beside slow, obvious ones and beside scikit-learn's."""

from __future__ import annotations

import itertools
import warnings
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from torch import nn
from torch.nn.functional import cross_entropy

from fedbench.plugins.attacks.hidden_layer import with_ones
from fedbench.plugins.attacks.seqmia_net import HIDDEN
from fedbench.plugins.attacks.seqmia_train import BATCH, train
from fedbench.plugins.attacks.trained import forest, growth, mlp_train
from fedbench.plugins.attacks.trained.base import Prepared
from fedbench.plugins.attacks.trained.forest import grow


def lesson(n: int, d: int, seed: int, leak: float = 1.0, distinct: int | None = None) -> Prepared:
    """Members and non-members in turn, of which the first feature tells."""
    rng, member = np.random.default_rng(seed), np.arange(n) % 2 == 0
    x = rng.normal(size=(n, d))
    x[:, 0] += leak * member
    return Prepared(x if distinct is None else np.round(x * distinct), member, seed)


# -- random forests ----------------------------------------------------------------------------------------------------


def gini(member: np.ndarray, weight: np.ndarray) -> float:
    p = (weight * member).sum() / weight.sum()
    return 2 * p * (1 - p) * weight.sum()


def best_split(x, member, weight, features, leaf):
    """(feature, threshold) with the lowest impurity, of equal ones the first; None where nothing can be split."""
    best, found = np.inf, None
    for f in features:
        values = np.unique(x[:, f])
        for low, high in itertools.pairwise(values):
            left = x[:, f] <= low
            if min(left.sum(), (~left).sum()) < leaf:
                continue
            impurity = gini(member[left], weight[left]) + gini(member[~left], weight[~left])
            if impurity < best - 1e-9:
                best, found = impurity, (int(f), (low + high) / 2)
    return found


def slow_tree(x, member, weight, key, leaf, asked):
    """A tree as nested tuples: (feature, threshold, left, right), or the share of members."""
    share = (weight * member).sum() / weight.sum()
    if len(x) < 2 * leaf or share in (0, 1):
        return share
    d = x.shape[1]
    order = np.argsort(growth._mixed(key ^ (growth._GOLDEN * np.arange(3, 3 + d, dtype=np.uint64))))
    tries = (best_split(x, member, weight, order[i : i + asked], leaf) for i in range(0, d, asked))
    found = next((split for split in tries if split is not None), None)
    if found is None:
        return share
    f, threshold = found
    left = x[:, f] <= threshold
    keys = growth._mixed(key + growth._GOLDEN * np.arange(1, 3, dtype=np.uint64))
    sides = zip((left, ~left), keys, strict=True)
    return f, threshold, *(slow_tree(x[side], member[side], weight[side], k, leaf, asked) for side, k in sides)


def answered(tree, row):
    while isinstance(tree, tuple):
        f, threshold, left, right = tree
        tree = right if row[f] > threshold else left
    return tree


@given(
    st.integers(2, 40), st.integers(1, 5), st.integers(1, 6), st.integers(1, 5), st.sampled_from([None, 0.1, 1, 3]),
    st.integers(0, 99), st.sampled_from([30, forest.BLOCK]),
)  # fmt: skip
@settings(max_examples=40)
def test_trees_are_those_that_are_grown_node_by_node(n, d, leaf, asked, distinct, seed, block):
    """Of any samples, those that are all alike, too, together with another forest's, in blocks of any size."""
    lessons = [lesson(n, d, seed, distinct=distinct), lesson(n + 7, d, seed + 1, distinct=distinct)]
    asked_about = lesson(25, d, seed + 2, distinct=distinct).x
    with np.errstate(over="ignore"), patch.object(forest, "BLOCK", block):
        for k, found in enumerate(grow(lessons, 4, leaf, asked)):
            bags = [bag for of, bags in forest._bags(lessons, 4) if of == k for bag in zip(*bags, strict=True)]
            x, member, _ = lessons[k]
            trees = [slow_tree(x[c > 0], member[c > 0], c[c > 0], key, leaf, asked) for c, key in bags]
            wanted = np.mean([[answered(tree, row) for row in asked_about] for tree in trees], axis=0)
            np.testing.assert_allclose(found.shares(asked_about), wanted, rtol=1e-12)


# -- nets of one hidden layer ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "epochs"), [(60, 300), (2 * mlp_train.BATCH + 31, 200)])
def test_a_net_is_the_one_that_scikit_learn_learns(n, epochs):
    """Several at once, of several batches, too, in its order; one stops early, the others at the last epoch."""
    lessons = [lesson(n, 5, 0, 0.2), lesson(n, 5, 1, leak=60.0), lesson(n + 2, 5, 2, 0.2), lesson(n, 5, 3, leak=0.0)]
    asked, stopped = lesson(40, 5, 9).x, []
    for one, net in zip(lessons, mlp_train.train(lessons, epochs, 0.01), strict=True):
        reference = MLPClassifier((64,), alpha=0.01, max_iter=epochs, random_state=one.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            reference.fit(one.x, one.member)
        stopped.append(reference.n_iter_ < epochs)
        p = reference.predict_proba(asked)[:, 1]
        np.testing.assert_allclose(1 / (1 + np.exp(-net.logits(with_ones(asked)[None])[0])), p, rtol=1e-6, atol=1e-9)
    assert stopped == [False, True, False, False]


# -- SeqMIA's net ------------------------------------------------------------------------------------------------------


class Reference(nn.Module):
    """LSTM -> attention of the last state over all states -> Linear, as modules; drawn as torch would, from ``generator``."""

    def __init__(self, inputs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(inputs, HIDDEN, batch_first=True), nn.Linear(2 * HIDDEN, 2)
        for layer, width in ((self.lstm, HIDDEN), (self.head, 2 * HIDDEN)):
            for p in layer.parameters():
                nn.init.uniform_(p, -(width**-0.5), width**-0.5, generator=generator)
        self.double()
        self.mean, self.std = torch.zeros(inputs), torch.ones(inputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, _ = self.lstm((x - self.mean) / self.std)
        weight = (h @ h[:, -1:].mT).softmax(1)
        return self.head(torch.cat([h[:, -1], (weight * h).sum(1)], dim=1))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def series(n: int, steps: int, inputs: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.random(n) < 0.4
    return rng.normal(size=(n, steps, inputs)) + 0.5 * y[:, None, None], y


@pytest.mark.parametrize("standardise", [True, False])
def test_seqmias_net_learns_what_separate_modules_learn(standardise):
    """The same draws, the same batches, a last one that is smaller; two nets from one generator, as the folds are."""
    generators = seeded(3), seeded(3)
    for fold in range(2):
        x, y = series(BATCH + 37 + fold, 4, 5, seed=fold)
        net = train(x, y, 12, standardise, generators[0])
        reference = learnt(x, y, 12, standardise, generators[1])
        asked = series(250, 4, 5, seed=9)[0]  # scored in pieces
        with torch.no_grad():
            wanted = reference(torch.from_numpy(asked)).numpy()
        np.testing.assert_allclose(net.logits(asked), wanted, rtol=1e-6, atol=1e-8)
    assert torch.equal(generators[0].get_state(), generators[1].get_state())


def learnt(x: np.ndarray, y: np.ndarray, epochs: int, standardise: bool, generator: torch.Generator) -> Reference:
    reference, samples, labels = Reference(x.shape[2], generator), torch.from_numpy(x), torch.from_numpy(y).long()
    if standardise:
        reference.mean, reference.std = samples.mean((0, 1)), samples.std((0, 1), correction=0)
    adam = torch.optim.Adam(reference.parameters(), weight_decay=1e-4)
    for epoch in range(epochs):
        adam.param_groups[0]["lr"] = max(0.01 * 0.9 ** (epoch // 10), 5e-4)
        for batch in torch.randperm(len(x), generator=generator).split(100):
            adam.zero_grad()
            cross_entropy(reference(samples[batch]), labels[batch]).backward()
            adam.step()
    return reference
