"""Gradient features of all clients at once beside the published way."""

from __future__ import annotations

import pytest
import torch
from workloads import CLIENTS, MODELS, one_pass_a_sample_and_client

from fedbench.core.numerics.gradients import gradient_features

pytestmark = pytest.mark.benchmark(group="audit")

SAMPLES = 64


@pytest.mark.parametrize("name", MODELS)
def test_gradient_features(beside, name):
    model, shape = MODELS[name]
    module = model.build(shape, 10).eval()
    g = torch.Generator().manual_seed(0)
    x, y = torch.rand(SAMPLES, *shape, generator=g), torch.randint(0, 10, (SAMPLES,), generator=g)
    updates = torch.randn(CLIENTS, sum(p.numel() for p in module.parameters()), generator=g)
    work = module, x, y, updates
    naive = one_pass_a_sample_and_client
    torch.testing.assert_close(gradient_features(*work).dot, naive(*work), rtol=1e-3, atol=1e-3)
    beside({"naive": lambda: naive(*work), "features": lambda: gradient_features(*work)}, 5)
