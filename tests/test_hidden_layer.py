"""The small nets of attacks, written out for several at once, beside autograd and beside scikit-learn's classifier."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from attack_worlds import rich_world, taught
from hypothesis import given
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from threadpoolctl import ThreadpoolController, threadpool_info
from torch.nn.functional import binary_cross_entropy_with_logits

from fedbench.plugins.attacks import one_thread
from fedbench.plugins.attacks.hidden_layer import HiddenLayer, with_ones
from fedbench.plugins.attacks.trained import mlp
from fedbench.plugins.attacks.trained.base import Prepared
from fedbench.plugins.attacks.trained.mlp_train import BATCH, train


def lesson(n: int, d: int, seed: int, leak: float = 1.0) -> Prepared:
    rng = np.random.default_rng(seed)
    member = np.arange(n) % 2 == 0
    return Prepared(rng.normal(size=(n, d)) + leak * member[:, None] / d, member, seed)


@given(st.integers(1, 3), st.integers(1, 8), st.integers(1, 5), st.integers(1, 6), st.integers(0, 99))
def test_the_gradient_written_out_is_autograds(nets, n, d, hidden, seed):
    rng = np.random.default_rng(seed)
    net = HiddenLayer(rng.normal(size=(nets, d + 1, hidden)), rng.normal(size=(nets, hidden + 1)))
    x, member = rng.normal(size=(nets, n, d)), rng.random((nets, n)) < 0.5
    found = np.full_like(net.flat, np.nan)
    said = net.gradient(with_ones(x), member, found)
    weights, out = (torch.from_numpy(a.copy()).requires_grad_() for a in (net.hidden, net.out))
    lit = torch.relu(torch.from_numpy(x) @ weights[:, :-1] + weights[:, -1:])
    logits = (lit * out[:, None, :-1]).sum(2) + out[:, -1:]
    loss = sum(binary_cross_entropy_with_logits(z, torch.from_numpy(m).double()) for z, m in zip(logits, member, strict=True))
    wanted = torch.autograd.grad(loss, [weights, out])
    np.testing.assert_allclose(said, logits.detach().numpy(), rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(said, net.logits(with_ones(x)))
    np.testing.assert_allclose(found, np.concatenate([wanted[0].flatten(1), wanted[1]], axis=1), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("n", [60, 2 * BATCH + 31])
def test_a_net_is_the_one_that_scikit_learn_learns(n):
    """Of several batches, too, in its order; some stop early, others at the last epoch."""
    lessons = [lesson(n, 5, 0), lesson(n, 5, 1, leak=60.0), lesson(n + 2, 5, 2), lesson(n, 5, 3, leak=0.0)]
    asked, epochs, stopped = lesson(40, 5, 9).x, {60: 300, 431: 200}[n], []
    for one, net in zip(lessons, train(lessons, epochs, 0.01), strict=True):
        reference = MLPClassifier((64,), alpha=0.01, max_iter=epochs, random_state=one.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            reference.fit(one.x, one.member)
        stopped.append(reference.n_iter_ < epochs)
        p = reference.predict_proba(asked)[:, 1]
        np.testing.assert_allclose(1 / (1 + np.exp(-net.logits(with_ones(asked)[None])[0])), p, rtol=1e-6, atol=1e-9)
    assert stopped == [False, True, False, False]


def test_a_net_is_the_same_alone_and_among_others():
    lessons = [lesson(30, 4, seed) for seed in range(3)]
    for one, among in zip(lessons, train(lessons, 20, 0.01), strict=True):
        np.testing.assert_allclose(train([one], 20, 0.01)[0].flat, among.flat, rtol=1e-12, atol=1e-15)


def test_all_rounds_and_folds_of_an_attack_learn_in_one_call(monkeypatch):
    calls = []
    monkeypatch.setattr(mlp, "train", lambda lessons, *a: calls.append(len(lessons)) or train(lessons, *a))
    taught(mlp.MLPAttack(epochs=2), rich_world(1.0, 40, 80, rounds=3))
    assert calls == [6]


def test_one_thread_is_one_thread_and_looks_for_the_libraries_once(monkeypatch):
    looked = []

    class Counted(ThreadpoolController):
        def __init__(self) -> None:
            looked.append(1)
            super().__init__()

    monkeypatch.setattr(one_thread, "ThreadpoolController", Counted)
    one_thread._libraries.cache_clear()
    before = threadpool_info()
    for _ in range(3):
        with one_thread.one_thread():
            assert {library["num_threads"] for library in threadpool_info()} == {1}
    assert len(looked) == 1 and threadpool_info() == before
