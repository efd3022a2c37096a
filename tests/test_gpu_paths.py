"""The code of GPUs, as far as a machine without one can tell: devices are not mixed, noise of the
size of the model is drawn on the device, kernels without a deterministic form are not called.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from fedbench.core import MemberData, Model, Selection
from fedbench.core.contract.contexts import Randomness
from fedbench.core.contract.task import DEFAULT_TASK, one_hot_product
from fedbench.core.federation import stacked
from fedbench.core.federation.turn import Turn
from fedbench.core.models.sequential import MLP, SmallCNN
from fedbench.core.numerics.chain import Chain
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.spec.federation import FederationSpec

CPU = torch.device("cpu")
GPU = torch.device("cuda:0")
SHAPE, CLASSES = (1, 8, 8), 4


class NoTensorScatter(TorchDispatchMode):
    """Refuses what is not deterministic on CUDA."""

    calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        assert func is not torch.ops.aten.scatter_.src
        return func(*args, **(kwargs or {}))


def test_a_stacked_step_mixes_no_devices_and_scatters_no_tensor(monkeypatch):
    monkeypatch.setattr(stacked, "random_state", lambda device: None)
    monkeypatch.setattr(stacked, "set_random_state", lambda state: None)
    with FakeTensorMode(), NoTensorScatter() as mode:  # tensors of a GPU without their numbers
        flat = on_gpu(MLP(hidden=(6,)), SHAPE)
        config = FederationSpec(clients=3, rounds=1, batch_size=5, optimizer={"lr": 0.1})
        backend = stacked.Backend(config, flat, 3)
        turns = [turn_of(flat, n) for n in (12, 7, 5)]
        ((group, members),) = backend.groups(turns)
        group.turns = members
        group.receive()
        group.optimizer.reset([0, 1, 2])
        drawn = [list(torch.arange(n, device=GPU).split(5)) for n in (12, 7, 5)]
        sizes = []
        for step in group.steps(drawn):
            sizes.append(step)
            group.fill({})
            group.optimizer.step(0.1, list(step))
        assert group.params.device == group.grads.device == GPU
    assert sizes == [{0: 5, 1: 5, 2: 5}, {0: 5, 1: 2}, {0: 2}] and mode.calls > 50


def on_gpu(model: Model, shape: tuple[int, ...]) -> FlatModel:
    with GPU:
        module = model.build(shape, CLASSES)
    module.to = lambda device: module  # it is there; tensors without numbers cannot be moved
    return FlatModel(module, GPU)


def turn_of(flat: FlatModel, n: int) -> Turn:
    data = MemberData(torch.zeros(n, *SHAPE, device=GPU), torch.zeros(n, dtype=int, device=GPU))
    turn = Turn(round=1, row=0, client=0, data=data, start=flat.state)
    turn.selection = Selection(data.trainable)
    return turn


def test_a_gpu_has_chains_of_the_layers_alone_that_are_stacked():
    with FakeTensorMode():
        assert Chain.of(on_gpu(MLP(hidden=(6,)), SHAPE), torch.zeros(2, *SHAPE, device=GPU))
        images = torch.zeros(2, 3, 8, 8, device=GPU)
        assert Chain.of(on_gpu(SmallCNN(channels=4), (3, 8, 8)), images) is None


def test_a_one_hot_product_is_what_scatter_gives():
    g = torch.Generator().manual_seed(0)
    outputs = torch.randn(3, 5, CLASSES, generator=g)
    target = torch.randint(0, CLASSES, (3, 5), generator=g)
    weight = torch.rand(3, 5, generator=g)
    scattered = torch.zeros_like(outputs).scatter_(-1, target[..., None], -weight[..., None])
    assert torch.equal(one_hot_product(outputs, target, -weight[..., None]), scattered)
    one_hot = torch.nn.functional.one_hot(target, CLASSES)
    expected = (outputs.softmax(-1) - one_hot) * weight[..., None]
    torch.testing.assert_close(DEFAULT_TASK.output_gradient(outputs, target, weight), expected)


@dataclass(frozen=True)
class Draws(Randomness):
    key: int = 5
    device: torch.device = CPU


@pytest.mark.parametrize("draw", ["randn", "randn_like"])
def test_noise_is_drawn_by_the_devices_own_generator(draw):
    def numbers(ctx: Draws) -> torch.Tensor:
        return ctx.randn(4) if draw == "randn" else ctx.randn_like(torch.zeros(4))

    on_cpu = numbers(Draws())
    assert torch.equal(on_cpu, torch.randn(4, generator=torch.Generator().manual_seed(5)))
    ctx = Draws()
    ctx.__dict__["device_generator"] = torch.Generator().manual_seed(6)  # as a GPU has another one
    expected = torch.randn(4, generator=torch.Generator().manual_seed(6))
    assert torch.equal(numbers(ctx), expected)
    assert torch.equal(ctx.randperm(4), torch.randperm(4, generator=Draws().generator))
