"""Where a small model's step spends its time: the graph, and maxima with the channels first. Reported, not asserted.

    pytest -m benchmark -s tests/benchmarks/test_bench_chain.py
"""

from __future__ import annotations

import statistics
import time

import pytest
import torch
from torch.nn.functional import cross_entropy
from workloads import BATCH

from fedbench.core.models.cnn_small import SmallCNN
from fedbench.core.models.mlp import MLP
from fedbench.core.numerics.chain import Chain, unfilled
from fedbench.core.numerics.flat import FlatModel

pytestmark = pytest.mark.benchmark

N = 11
MODELS = {"mlp": (MLP(), (1, 8, 8)), "cnn-small": (SmallCNN(), (3, 32, 32))}


@pytest.fixture(autouse=True)
def deterministic():
    """As every run trains."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def seconds(call, times):
    began = time.perf_counter()
    for _ in range(times):
        call()
    return time.perf_counter() - began


def report(what, slow, fast, times):
    slow(), fast()
    ratios = sorted(seconds(slow, times) / seconds(fast, times) for _ in range(N))  # in turn
    print(f"\n{what}: {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f}, n {N})")


@pytest.mark.parametrize("name", MODELS)
def test_a_gradient_by_autograd_over_one_by_the_chain(name):
    model, shape = MODELS[name]
    torch.manual_seed(0)
    flat = FlatModel(model.build(shape, 10), torch.device("cpu"))
    x, y = torch.randn(BATCH, *shape), torch.randint(0, 10, (BATCH,))
    chain = Chain.of(flat)

    def by_autograd():
        flat.grad.zero_()
        cross_entropy(flat.module(x), y).backward()

    def by_chain():
        with unfilled():
            chain.gradient(x, y)

    report(f"{name}, gradient of a batch of {BATCH}, autograd / chain", by_autograd, by_chain, 50)


@pytest.mark.parametrize("backward", [False, True])
def test_maxima_with_the_channels_first_over_channels_last(backward):
    first = torch.randn(BATCH, 16, 32, 32)
    last = first.to(memory_format=torch.channels_last)

    def pooled(x):
        def call():
            out, where = torch.ops.aten.max_pool2d_with_indices(x, [2, 2], [2, 2])
            if backward:
                torch.ops.aten.max_pool2d_with_indices_backward(out, x, [2, 2], [2, 2], [0, 0], [1, 1], False, where)

        return call

    what = "forward and backward" if backward else "forward"
    report(f"maxima of {BATCH} x 16 x 32 x 32, {what}, channels first / last", pooled(first), pooled(last), 50)
