"""Gradient features of all clients at once next to the published way: per client, a Python loop per sample. Reported."""

from __future__ import annotations

import statistics
import time

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedbench.core.models.cnn_small import SmallCNN
from fedbench.core.models.mlp import MLP
from fedbench.core.numerics.gradients import gradient_features

pytestmark = pytest.mark.benchmark

CLIENTS, SAMPLES = 10, 64


def naive(model, x, y, updates):
    """<g_i, u_k>: for every client, one backward pass a sample, as the released code's loop over batches does."""
    out = torch.empty(len(updates), len(x))
    parameters = list(model.parameters())
    for k, update in enumerate(updates):
        for i in range(len(x)):
            grads = torch.autograd.grad(cross_entropy(model(x[i : i + 1]), y[i : i + 1]), parameters)
            out[k, i] = torch.cat([g.reshape(-1) for g in grads]) @ update
    return out


@pytest.mark.parametrize("name", ["mlp", "cnn-small"])
def test_features_next_to_the_naive_loop(benchmark, name):
    model, shape = {"mlp": (MLP(), (1, 8, 8)), "cnn-small": (SmallCNN(), (3, 32, 32))}[name]
    module = model.build(shape, 10).eval()
    g = torch.Generator().manual_seed(0)
    x, y = torch.rand(SAMPLES, *shape, generator=g), torch.randint(0, 10, (SAMPLES,), generator=g)
    updates = torch.randn(CLIENTS, sum(p.numel() for p in module.parameters()), generator=g)
    torch.testing.assert_close(gradient_features(module, x, y, updates).dot, naive(module, x, y, updates), rtol=1e-3, atol=1e-3)
    ratios = []
    for _ in range(5):
        began = time.perf_counter()
        naive(module, x, y, updates)
        middle = time.perf_counter()
        gradient_features(module, x, y, updates)
        ratios.append((middle - began) / (time.perf_counter() - middle))
    benchmark.pedantic(gradient_features, (module, x, y, updates), rounds=3)
    benchmark.extra_info |= {
        "naive_over_features_median": round(statistics.median(ratios), 1), "min": round(min(ratios), 1),
        "max": round(max(ratios), 1), "n": len(ratios), "clients": CLIENTS, "samples": SAMPLES, "threads": 1,
    }  # fmt: skip
    print(f"\n{name}: {benchmark.extra_info}")
