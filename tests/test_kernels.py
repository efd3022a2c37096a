"""What a step of training asks of a device: kernels, fills of memory, and what may do without."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from fedbench.core.federation.backend import Backend
from fedbench.core.models.residual import ResNet18
from fedbench.core.models.sequential import SmallCNN
from fedbench.core.numerics import wrappers
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.process.ask import ask
from fedbench.core.spec.federation import FederationSpec

SHAPE, CLASSES, BATCH = (3, 16, 16), 4, 2


@pytest.fixture(autouse=True)
def deterministic():
    """As every run is."""
    torch.set_deterministic_debug_mode("error")
    yield
    torch.set_deterministic_debug_mode("default")


def backend_of(module: nn.Module) -> Backend:
    config = FederationSpec(clients=1, rounds=1, batch_size=BATCH, optimizer={"lr": 0.1})
    return Backend(config, FlatModel(module.train(), torch.device("cpu")))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(BATCH, *SHAPE, generator=g)
    return x, torch.randint(0, CLASSES, (BATCH,), generator=g)


def operations(backend: Backend) -> Counter[str]:
    """name -> calls in a step's gradient, with those that kernels make."""
    x, y = batch()
    backend.examine(x)
    backend.mean_gradient(x, y)  # what a first call alone makes
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        backend.mean_gradient(x, y)
    return Counter({event.key: event.count for event in trace.key_averages()})


def apart(test: Callable[..., None]) -> Callable[..., None]:
    """The test in a process of its own: what torch's profiler and compiler start survives no fork
    of later tests.
    """

    @wraps(test)
    def run(*args: Any, **named: Any) -> None:
        ask(lambda: test(*args, **named))

    return run


@pytest.mark.parametrize("model", [ResNet18(), SmallCNN()], ids=["resnet18", "cnn"])
@apart
def test_a_step_fills_no_memory_and_adds_no_gradient(model):
    torch.manual_seed(0)
    backend = backend_of(model.build(SHAPE, CLASSES))
    flat = backend.flat
    calls = operations(backend)
    assert calls["aten::fill_"] <= 3, "of the loss alone"
    assert calls["aten::_foreach_copy_"] == 1
    assert calls["aten::add_"] <= 8, "of the branches of a residual network alone"
    ours = flat.grad.clone()
    x, y = batch()
    flat.show_own()
    flat.task.loss(flat.module(x), y).backward()  # into zeros, with fills
    assert torch.equal(ours, flat.grad)


class Careless(nn.Module):
    """A plugin's layer that reads memory it did not write."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.empty(x.shape)


@apart
def test_code_of_a_plugin_keeps_the_fills_which_show_what_it_did_not_write():
    linear = nn.Linear(3 * 16 * 16, CLASSES)
    backend = backend_of(nn.Sequential(nn.Flatten(), linear, Careless()))
    assert operations(backend)["aten::fill_"] > 3
    assert bool(backend.flat.grad.isnan().all())


def test_a_parameter_without_a_gradient_has_zeros_and_a_sparse_one_all_rows():
    class Lookup(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Parameter(torch.ones(3))
            self.table = nn.Embedding(6, CLASSES, sparse=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.table(x[:, 0, 0, 0].abs().long().clamp_max(5))

    backend = backend_of(Lookup())
    flat = backend.flat
    flat.grad.fill_(torch.nan)
    x, y = batch()
    backend.mean_gradient(x, y)
    ours = flat.grad.clone()
    flat.show_own()
    flat.task.loss(flat.module(x), y).backward()
    assert torch.equal(ours, flat.grad) and float(ours[:3].abs().sum()) == 0


# -- torch.compile ---------------------------------------------------------------------------------


@pytest.mark.slow
@apart
def test_a_compiled_step_is_the_step_to_rounding_and_evaluation_is_the_plain_models():
    wrappers.COMPILER = "aot_eager"  # no C++ is compiled
    module = SmallCNN(channels=4).build(SHAPE, CLASSES)
    for precision, rounding in (("fp32", 1e-5), ("bf16", 2e-2)):
        plain, compiled = (gradient_of(module, precision, compiled) for compiled in (False, True))
        torch.testing.assert_close(compiled, plain, rtol=rounding, atol=rounding)
    form = wrappers.in_training_form(module, "fp32", "contiguous", True)
    x, _ = batch()
    assert torch.equal(form.eval()(x), module.eval()(x))


def gradient_of(module: nn.Module, precision: str, compiled: bool) -> torch.Tensor:
    backend = backend_of(wrappers.in_training_form(module, precision, "contiguous", compiled))
    x, y = batch()
    backend.examine(x)
    backend.mean_gradient(x, y)
    return backend.flat.grad.clone()
