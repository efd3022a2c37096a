"""SeqMIA's net, with its gradient by hand, beside one of separate modules that torch
differentiates.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedbench.plugins.attacks.classifiers import RandomForest
from fedbench.plugins.attacks.networks import STATE
from fedbench.plugins.attacks.series import BATCH, train


class Reference(nn.Module):
    """LSTM -> attention of the last state over all states -> Linear, as modules; drawn as torch
    would, from ``generator``.
    """

    def __init__(self, inputs, generator):
        super().__init__()
        self.lstm, self.head = nn.LSTM(inputs, STATE, batch_first=True), nn.Linear(2 * STATE, 2)
        for layer, width in ((self.lstm, STATE), (self.head, 2 * STATE)):
            for p in layer.parameters():
                nn.init.uniform_(p, -(width**-0.5), width**-0.5, generator=generator)
        self.double()
        self.mean, self.std = torch.zeros(inputs), torch.ones(inputs)

    def forward(self, x):
        h, _ = self.lstm((x - self.mean) / self.std)
        weight = (h @ h[:, -1:].mT).softmax(1)
        return self.head(torch.cat([h[:, -1], (weight * h).sum(1)], dim=1))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def series(n, steps, inputs, seed=1):
    rng = np.random.default_rng(seed)
    y = rng.random(n) < 0.4
    return rng.normal(size=(n, steps, inputs)) + 0.5 * y[:, None, None], y


@pytest.mark.parametrize("standardise", [True, False])
def test_seqmias_net_learns_what_separate_modules_learn(standardise):
    """The same draws, the same batches, a last one that is smaller; two nets from one generator, as
    the folds are.
    """
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


def learnt(x, y, epochs, standardise, generator):
    reference, samples, labels = (
        Reference(x.shape[2], generator),
        torch.from_numpy(x),
        torch.from_numpy(y).long(),
    )
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


@pytest.mark.parametrize(("split", "features"), [("sqrt", 3), ("all", 10)])
def test_a_forest_has_leaves_of_five_samples_and_splits_on_the_root_of_the_features_or_all(
    split, features
):
    x, y = series(200, 1, 10)
    forest = RandomForest(trees=5, split=split)._train(x[:, 0], y, 0).args[0]
    assert {tree.max_features_ for tree in forest.estimators_} == {features}
    trees = [tree.tree_ for tree in forest.estimators_]
    assert (
        min(t.n_node_samples[t.children_left < 0].min() for t in trees)
        <= 5
        <= min(t.weighted_n_node_samples[t.children_left < 0].min() for t in trees)
    )
