"""Gradient features of all clients at once next to the published way: per client, a Python loop per
sample. Reported.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy
from workloads import CLIENTS, MODELS, in_turn, ratio

from fedbench.core.numerics.gradients import gradient_features

pytestmark = pytest.mark.benchmark

SAMPLES = 64


def naive(model, x, y, updates):
    """<g_i, u_k>: for every client, one backward pass a sample, as the released code's loop over
    batches does.
    """
    out = torch.empty(len(updates), len(x))
    parameters = list(model.parameters())
    for k, update in enumerate(updates):
        for i in range(len(x)):
            grads = torch.autograd.grad(
                cross_entropy(model(x[i : i + 1]), y[i : i + 1]), parameters
            )
            out[k, i] = torch.cat([g.reshape(-1) for g in grads]) @ update
    return out


@pytest.mark.parametrize("name", MODELS)
def test_features_next_to_the_naive_loop(name):
    model, shape = MODELS[name]
    module = model.build(shape, 10).eval()
    g = torch.Generator().manual_seed(0)
    x, y = torch.rand(SAMPLES, *shape, generator=g), torch.randint(0, 10, (SAMPLES,), generator=g)
    updates = torch.randn(CLIENTS, sum(p.numel() for p in module.parameters()), generator=g)
    work = module, x, y, updates
    torch.testing.assert_close(gradient_features(*work).dot, naive(*work), rtol=1e-3, atol=1e-3)
    taken = in_turn(
        {"naive": lambda: naive(*work), "features": lambda: gradient_features(*work)}, 5
    )
    print(f"\n{name}, a naive loop / features: {ratio(taken['naive'], taken['features'])}")
