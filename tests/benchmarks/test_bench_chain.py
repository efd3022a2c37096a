"""Kernels of a chain beside other ways to compute the same. Reported, not asserted.

pytest -m benchmark -s tests/benchmarks/test_bench_chain.py
"""

from __future__ import annotations

import pytest
import torch
from workloads import BATCH, MODELS, in_turn, ratio

from fedbench.core.numerics.chain import Chain
from fedbench.core.numerics.flat import FlatModel

pytestmark = pytest.mark.benchmark


@pytest.fixture(autouse=True)
def deterministic():
    """As every run trains."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def report(what, slow, fast):
    print(f"\n{what}: {ratio(*in_turn({'slow': slow, 'fast': fast}, 11, times=50).values())}")


@pytest.mark.parametrize("backward", [False, True])
def test_maxima_with_the_channels_first_over_channels_last(backward):
    first = torch.randn(BATCH, 16, 32, 32)

    def pooled(x):
        out, where = torch.ops.aten.max_pool2d_with_indices(x, [2, 2], [2, 2])
        if backward:
            torch.ops.aten.max_pool2d_with_indices_backward(
                out, x, [2, 2], [2, 2], [0, 0], [1, 1], False, where
            )

    last = first.to(memory_format=torch.channels_last)
    ways = "forward and backward" if backward else "forward"
    what = f"maxima of {BATCH} x 16 x 32 x 32, {ways}, channels first / last"
    report(what, lambda: pooled(first), lambda: pooled(last))


@pytest.mark.parametrize("backward", [False, True])
def test_convolutions_of_ten_clients_one_by_one_over_one_of_ten_groups(backward):
    x, w = torch.randn(10, BATCH, 16, 16, 16), torch.randn(10, 32, 16, 3, 3)
    side = x.transpose(0, 1).reshape(BATCH, 160, 16, 16), w.flatten(0, 1)

    def convolved(x, w, groups=1):
        out = torch.convolution(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], groups)
        if backward:
            options = None, [1, 1], [1, 1], [1, 1], False, [0, 0], groups, [True, True, False]
            torch.ops.aten.convolution_backward(out, x, w, *options)

    ways = "forward and backward" if backward else "forward"
    what = f"convolutions of ten clients, {ways}, one by one / as groups"
    report(
        what,
        lambda: [convolved(a, b) for a, b in zip(x, w, strict=True)],
        lambda: convolved(*side, groups=10),
    )


def test_forward_passes_of_ten_models_one_by_one_over_all_at_once():
    model, shape = MODELS["mlp"]
    flat, x = FlatModel(model.build(shape, 10), torch.device("cpu")), torch.randn(1400, *shape)
    rows = flat.params.repeat(10, 1)
    one, many = Chain.of(flat, x), Chain.of(flat, x).of_clients(flat, rows, torch.empty_like(rows))
    alike, what = x.expand(10, *x.shape), "MLP, 1,400 samples, ten models one by one / at once"
    report(what, lambda: [one.forward(x) for _ in rows], lambda: many.forward(alike))
