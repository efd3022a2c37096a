"""Per-sample gradients as rows of one walk, and the adversary's bench that takes them, beside the slow ways to the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_module, tiny_setup
from torch import nn
from torch.nn.functional import cross_entropy

from fedbench.core.federation import bench
from fedbench.core.federation.bench import Bench
from fedbench.core.federation.optimizer import make_optimizer
from fedbench.core.federation.setup import Setup
from fedbench.core.models.cnn_small import SmallCNN
from fedbench.core.models.leaf_cnn import LeafCNN
from fedbench.core.models.mlp import MLP
from fedbench.core.numerics import instances
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.numerics.instances import gradient_rows
from fedbench.core.numerics.normalise import Normalised

C = 5
SERVED = {
    "mlp": ((1, 4, 4), lambda: MLP(hidden=(9, 7)).build((1, 4, 4), C)),
    "cnn-small": ((3, 8, 8), lambda: SmallCNN(channels=4, hidden=8).build((3, 8, 8), C)),
    "leaf-cnn": ((1, 8, 8), lambda: LeafCNN().build((1, 8, 8), C)),
    "normalised": ((3, 8, 8), lambda: Normalised(SmallCNN(channels=4).build((3, 8, 8), C), (0.5, 0.4, 0.3), (0.2, 0.3, 0.1))),
    "no bias, groups and a norm": ((2, 9, 9), lambda: nn.Sequential(
        nn.Conv2d(2, 6, 3, stride=2, groups=2, bias=False), nn.GroupNorm(3, 6), nn.Tanh(), nn.Flatten(), nn.Linear(96, C),
    )),
}  # fmt: skip
NOT_SERVED = {
    "a layer of another kind": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.GELU(), nn.Linear(4, C)),
    "a layer norm": lambda: nn.Sequential(nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, C)),
}


def one_by_one(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """[B, P]: a backward pass a sample."""
    rows = []
    for sample, label in zip(x.split(1), y.split(1), strict=True):
        loss = cross_entropy(model(sample), label)
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]))
    return torch.stack(rows)


@given(st.sampled_from(sorted(SERVED)), st.integers(1, 6), st.integers(0, 10**6))
def test_the_rows_are_those_of_a_backward_pass_a_sample(name, n, seed):
    shape, build = SERVED[name]
    torch.manual_seed(seed)
    model = build().eval()
    x = torch.randint(0, 256, (n, *shape), dtype=torch.uint8) if name == "normalised" else torch.randn(n, *shape)
    y = torch.randint(0, C, (n,))
    wanted = one_by_one(model, x, y)
    torch.testing.assert_close(gradient_rows(model, x, y), wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", SERVED)
def test_known_layers_need_no_vmap(name, monkeypatch):
    shape, build = SERVED[name]
    monkeypatch.setattr(instances, "per_sample_gradients", lambda *a: pytest.fail("vmap"))
    x = torch.randint(0, 256, (3, *shape), dtype=torch.uint8) if name == "normalised" else torch.randn(3, *shape)
    assert len(gradient_rows(build().eval(), x, torch.arange(3))) == 3


@pytest.mark.parametrize("name", NOT_SERVED)
def test_other_layers_are_left_to_vmap(name):
    torch.manual_seed(0)
    model, x, y = NOT_SERVED[name]().eval(), torch.randn(4, 1, 4, 4), torch.arange(4)
    torch.testing.assert_close(gradient_rows(model, x, y), one_by_one(model, x, y), rtol=1e-4, atol=1e-6)


def test_of_no_samples_there_are_no_rows():
    model = SERVED["mlp"][1]()
    assert gradient_rows(model, torch.zeros(0, 1, 4, 4), torch.zeros(0, dtype=torch.int64)).shape == (0, 263)


# --- the bench -------------------------------------------------------------------------------------------------------


def chained(name: str = "sgd") -> tuple[Setup, Bench]:
    """A federation of a plain chain of layers, and its adversary's bench."""
    setup = tiny_setup(name=name, momentum=0.0 if name == "adam" else 0.9)
    setup = replace(setup, flat=FlatModel(nn.Sequential(nn.Flatten(), tiny_module()), torch.device("cpu")))
    return setup, Bench(setup, setup.initial[0].clone(), setup.flat.buffers.clone(), 1)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_bench_steps_as_autograd_would_bit_by_bit(name, monkeypatch):
    setup, made = chained(name)
    data = setup.clients[1]
    found = made.step(data.x, data.y), made.train(data.x, data.y, epochs=2)
    monkeypatch.setattr(bench.Chain, "of", lambda flat: None)
    assert all(torch.equal(a, b) for a, b in zip(found, (made.step(data.x, data.y), made.train(data.x, data.y, 2)), strict=True))


def test_a_bench_needs_no_graph_for_a_chain_of_layers(monkeypatch):
    setup, made = chained()
    data = setup.clients[1]
    monkeypatch.setattr(bench, "cross_entropy", lambda *a: pytest.fail("autograd"))
    monkeypatch.setattr(instances, "per_sample_gradients", lambda *a: pytest.fail("vmap"))
    assert made.step(data.x, data.y).any() and made.sample_steps(data.x, data.y).any()


@pytest.mark.parametrize("chunk", [1, 3, 128])
def test_sample_steps_do_not_depend_on_how_many_are_taken_at_once(chunk, monkeypatch):
    setup, made = chained("adam")
    data = setup.clients[0]
    wanted = torch.stack([made.step(x, y) for x, y in zip(data.x.split(1), data.y.split(1), strict=True)])
    monkeypatch.setattr(bench, "_CHUNK", chunk)
    torch.testing.assert_close(made.sample_steps(data.x, data.y), wanted, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_adams_first_steps_in_slices_are_those_of_all_rows(rows, monkeypatch):
    setup = tiny_setup(name="adam", momentum=0.0)
    optimizer, gradients = make_optimizer(setup.flat, setup.config.optimizer), torch.randn(rows, len(setup.flat.params))
    decayed = gradients + setup.config.optimizer.weight_decay * setup.flat.params
    monkeypatch.setattr("fedbench.core.federation.optimizer._IN_CACHE", 2 * len(setup.flat.params))
    torch.testing.assert_close(optimizer.first_steps(gradients, 0.1), -0.1 * decayed / (decayed.abs() + 1e-8))
