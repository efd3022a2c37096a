"""Kernels of a chain beside other ways to compute the same."""

from __future__ import annotations

import pytest
import torch
from workloads import BATCH, MODELS

from fedbench.core.numerics.chain import Chain
from fedbench.core.numerics.flat import FlatModel

pytestmark = pytest.mark.benchmark(group="kernels")

TURNS = {"rounds": 11, "times": 50}


@pytest.fixture(autouse=True)
def deterministic():
    """As every run trains."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("backward", [False, True])
def test_maxima(beside, backward):
    first = torch.randn(BATCH, 16, 32, 32)

    def pooled(x):
        out, where = torch.ops.aten.max_pool2d_with_indices(x, [2, 2], [2, 2])
        if backward:
            torch.ops.aten.max_pool2d_with_indices_backward(
                out, x, [2, 2], [2, 2], [0, 0], [1, 1], False, where
            )

    last = first.to(memory_format=torch.channels_last)
    ways = {"channels first": lambda: pooled(first), "channels last": lambda: pooled(last)}
    beside(ways, **TURNS)


@pytest.mark.parametrize("backward", [False, True])
def test_convolutions_of_ten_clients(beside, backward):
    x, w = torch.randn(10, BATCH, 16, 16, 16), torch.randn(10, 32, 16, 3, 3)
    side = x.transpose(0, 1).reshape(BATCH, 160, 16, 16), w.flatten(0, 1)

    def convolved(x, w, groups=1):
        out = torch.convolution(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], groups)
        if backward:
            options = None, [1, 1], [1, 1], [1, 1], False, [0, 0], groups, [True, True, False]
            torch.ops.aten.convolution_backward(out, x, w, *options)

    ways = {
        "one by one": lambda: [convolved(a, b) for a, b in zip(x, w, strict=True)],
        "ten groups": lambda: convolved(*side, groups=10),
    }
    beside(ways, **TURNS)


def test_forward_passes_of_ten_models(beside):
    model, shape = MODELS["mlp"]
    flat, x = FlatModel(model.build(shape, 10), torch.device("cpu")), torch.randn(1400, *shape)
    rows = flat.params.repeat(10, 1)
    one, many = Chain.of(flat, x), Chain.of(flat, x).of_clients(flat, rows, torch.empty_like(rows))
    alike = x.expand(10, *x.shape)
    ways = {
        "one by one": lambda: [one.forward(x) for _ in rows],
        "at once": lambda: many.forward(alike),
    }
    beside(ways, **TURNS)
