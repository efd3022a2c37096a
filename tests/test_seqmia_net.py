"""SeqMIA's net in NumPy beside the slow, obvious one: `nn.LSTM`, autograd and torch's Adam, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from fedbench.plugins.attacks.adam import Adam
from fedbench.plugins.attacks.flat_adam import FlatAdam
from fedbench.plugins.attacks.seqmia_net import _ROWS, HIDDEN, Room, SequenceNet
from fedbench.plugins.attacks.seqmia_train import BATCH, train, wrong_by


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


def both(inputs: int, seed: int = 0) -> tuple[SequenceNet, Reference]:
    return SequenceNet(inputs, seeded(seed), np.float64), Reference(inputs, seeded(seed))


def lessons(n: int, steps: int, inputs: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.random(n) < 0.4
    return rng.normal(size=(n, steps, inputs)) + 0.5 * y[:, None, None], y


@given(st.integers(1, 6), st.integers(1, 3), st.integers(1, 7))
def test_the_gradient_written_out_is_autograds(steps, inputs, n):
    net, reference = both(inputs)
    x, y = lessons(n, steps, inputs)
    logits = reference(torch.from_numpy(x))
    wanted = torch.autograd.grad(cross_entropy(logits, torch.from_numpy(y).long()), list(reference.parameters()))
    room, found = Room(net, steps, n), np.full_like(net.flat, np.nan)
    for _ in range(2):  # a room that was used before leaves nothing behind
        said = net.forward(room, net.read(x))
        net.gradient(room, wrong_by(said, y), found)
    np.testing.assert_allclose(said.T, logits.detach().numpy(), rtol=1e-10, atol=1e-12)
    by_signals, by_state, by_bias, by_other, by_head, by_head_bias = (g.numpy() for g in wanted)
    gates = np.concatenate([by_signals, by_bias[:, None], by_other[:, None], by_state], axis=1)[_ROWS]
    flat = np.concatenate([gates.ravel(), np.concatenate([by_head, by_head_bias[:, None]], axis=1).ravel()])
    np.testing.assert_allclose(found, flat, rtol=1e-8, atol=1e-13)


@pytest.mark.parametrize("standardise", [True, False])
def test_a_net_learns_what_separate_modules_learn(standardise):
    """The same draws, the same batches, a last one that is smaller; two nets from one generator, as the folds are."""
    generators = seeded(3), seeded(3)
    for fold in range(2):
        x, y = lessons(BATCH + 37 + fold, 4, 5, seed=fold)
        net = train(x, y, 12, standardise, generators[0])
        reference = _trained(x, y, 12, standardise, generators[1])
        asked = lessons(250, 4, 5, seed=9)[0]  # scored in pieces
        with torch.no_grad():
            wanted = reference(torch.from_numpy(asked)).numpy()
        np.testing.assert_allclose(net.logits(asked), wanted, rtol=1e-6, atol=1e-8)
    assert torch.equal(generators[0].get_state(), generators[1].get_state())


def _trained(x: np.ndarray, y: np.ndarray, epochs: int, standardise: bool, generator: torch.Generator) -> Reference:
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


def test_in_float32_nothing_overflows_and_the_answer_is_close():
    net, reference = SequenceNet(5, seeded()), both(5)[1]
    x = np.float32(1e4) * lessons(60, 3, 5)[0].astype(np.float32)
    with np.errstate(all="raise", under="ignore"):
        found, asked = net.logits(x), net.forward(Room(net, 3, 60), net.read(x))
        wrong = wrong_by(np.float32(1e6) * asked, np.arange(60) % 2 == 0)
    with torch.no_grad():
        np.testing.assert_allclose(found, reference(torch.from_numpy(x).double()).numpy(), rtol=1e-3, atol=1e-4)
    assert found.dtype == wrong.dtype == np.float32


def test_of_no_samples_there_are_no_logits():
    assert SequenceNet(5, seeded()).logits(np.zeros((0, 3, 5), np.float32)).shape == (0, 2)


def test_both_adams_are_torchs():
    theirs, ours = (nn.Linear(3, 2, dtype=torch.float64) for _ in range(2))
    ours.load_state_dict(theirs.state_dict())
    flat = np.concatenate([p.detach().numpy().ravel() for p in theirs.parameters()])
    wanted = torch.optim.Adam(theirs.parameters(), weight_decay=1e-4)
    found, written = Adam(list(ours.parameters()), 1e-4), FlatAdam(flat, 1e-4)
    for rate in (0.01, 0.01, 0.003):
        x = torch.full((4, 3), rate, dtype=torch.float64)
        wanted.param_groups[0]["lr"] = rate
        wanted.zero_grad()
        theirs(x).square().sum().backward()
        written.step(np.concatenate([p.grad.numpy().ravel() for p in theirs.parameters()]), rate)
        wanted.step()
        found.step(ours(x).square().sum(), rate)
    torch.testing.assert_close(list(ours.parameters()), list(theirs.parameters()), rtol=1e-9, atol=1e-12)
    after = np.concatenate([p.detach().numpy().ravel() for p in theirs.parameters()])
    np.testing.assert_allclose(flat, after, rtol=1e-9, atol=1e-12)
