"""Cost of the gradient features beside one training step on the same samples and beside `vmap(grad)`.

Run with ``pytest -m benchmark tests/benchmarks``; the table gives median, spread and rounds. One thread.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedbench.core.numerics.gradients import gradient_features
from fedbench.core.numerics.per_sample import per_sample_gradients

pytestmark = pytest.mark.benchmark
N = 128


def conv_block(width: int, out: int) -> list[nn.Module]:
    return [nn.Conv2d(width, out, 3, padding=1), nn.GroupNorm(8, out), nn.ReLU(inplace=True), nn.MaxPool2d(2)]


def case(kind: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    if kind == "mlp":
        model = nn.Sequential(nn.Linear(600, 512), nn.ReLU(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 100))
        x = torch.randn(N, 600, generator=g)
    else:
        blocks = conv_block(3, 32) + conv_block(32, 64) + conv_block(64, 128)
        model = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(128 * 16, 100))
        x = torch.randn(N, 3, 32, 32, generator=g)
    return model, x, torch.arange(N) % 100


def updates_for(model: nn.Module, m: int) -> torch.Tensor:
    size = sum(p.numel() for p in model.parameters())
    return torch.randn(m, size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_training_step(benchmark, kind):
    model, x, y = case(kind)
    benchmark(lambda: torch.autograd.grad(cross_entropy(model(x), y), list(model.parameters())))


@pytest.mark.parametrize("m", [1, 10])
@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_features(benchmark, kind, m):
    model, x, y = case(kind)
    updates = updates_for(model, m)
    found = benchmark(gradient_features, model, x, y, updates)
    wanted = updates @ per_sample_gradients(model, x, y).T
    assert (found.dot - wanted).norm() < 1e-3 * wanted.norm()


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_oracle(benchmark, kind):
    model, x, y = case(kind)
    updates = updates_for(model, 10)
    benchmark.pedantic(lambda: updates @ per_sample_gradients(model, x, y).T, rounds=3, warmup_rounds=1)
