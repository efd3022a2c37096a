"""What a step of training asks of a device: kernels, fills of memory, and what may do without."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from fedbench.core.federation.backend import Backend
from fedbench.core.models.residual import ResNet18
from fedbench.core.models.sequential import SmallCNN
from fedbench.core.numerics import wrappers
from fedbench.core.numerics.flat import FlatModel
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


@pytest.mark.parametrize("model", [ResNet18(), SmallCNN()], ids=["resnet18", "cnn"])
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
    flat.clear_grad()
    flat.task.loss(flat.module(x), y).backward()  # into zeros, with fills
    assert torch.equal(ours, flat.grad)


class Careless(nn.Module):
    """A plugin's layer that reads memory it did not write."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.empty(x.shape)


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
    flat.clear_grad()
    flat.task.loss(flat.module(x), y).backward()
    assert torch.equal(ours, flat.grad) and float(ours[:3].abs().sum()) == 0


# -- torch.compile ---------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_compiled_step_is_the_step_to_rounding_and_evaluation_is_the_plain_models(
    precision, monkeypatch
):
    monkeypatch.setattr(wrappers, "COMPILER", "aot_eager")  # no C++ is compiled
    wrappers._compiled.cache_clear()
    torch.manual_seed(0)
    module = SmallCNN(channels=4).build(SHAPE, CLASSES)
    x, y = batch()
    gradients = []
    for compiled in (False, True):
        form = wrappers.in_training_form(module, precision, "contiguous", compiled)
        backend = backend_of(form)
        backend.examine(x)
        backend.mean_gradient(x, y)
        gradients.append(backend.flat.grad.clone())
    wrappers._compiled.cache_clear()
    close = {"rtol": 1e-4, "atol": 1e-6} if precision == "fp32" else {"rtol": 0.1, "atol": 0.02}
    torch.testing.assert_close(gradients[1], gradients[0], **close)
    assert torch.equal(form.eval()(x), module.eval()(x))
