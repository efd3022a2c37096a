"""The code of GPUs, as far as a machine without one can tell: devices are not mixed, noise of the
size of the model is drawn on the device, kernels without a deterministic form are not called.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from running import suite
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from fedbench.core import Defense, MemberData, Model, Selection
from fedbench.core.cli.run import build_plan
from fedbench.core.contract.contexts import Randomness
from fedbench.core.contract.task import one_hot_product
from fedbench.core.federation import stacked
from fedbench.core.federation.guard import PhaseError, call
from fedbench.core.federation.turn import Turn
from fedbench.core.models.sequential import MLP, SmallCNN
from fedbench.core.numerics.chain import Chain
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.numerics.gpu import DeviceFault, fault_of, raise_fault
from fedbench.core.process.ask import ask
from fedbench.core.run import worker
from fedbench.core.run.local_executor import Places
from fedbench.core.spec.federation import FederationSpec
from fedbench.core.store.results import Results

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


def stacked_steps() -> list[list[list[int]]]:
    """[client, size of its batch] in the steps of three stacked clients on a GPU, of which tensors
    have no numbers.
    """
    stacked.random_state = lambda device: None
    stacked.set_random_state = lambda state: None
    with FakeTensorMode(), NoTensorScatter() as mode:
        flat = on_gpu(MLP(hidden=(6,)), SHAPE)
        config = FederationSpec(clients=3, rounds=1, batch_size=5, optimizer={"lr": 0.1})
        backend = stacked.Backend(config, flat, 3)
        turns = [turn_of(flat, n) for n in (12, 7, 5)]
        ((group, members),) = backend.groups(turns)
        group.turns = members
        group.receive()
        drawn = [list(torch.arange(n, device=GPU).split(5)) for n in (12, 7, 5)]
        sizes = []
        for step in group.steps(drawn):
            sizes.append(list(map(list, step.items())))
            group.fill({})
        assert group.params.device == group.grads.device == GPU and mode.calls > 50
    return sizes


def chains() -> list[bool]:
    """Whether an MLP and a CNN are chains on a GPU."""
    with FakeTensorMode():
        rows = torch.zeros(2, *SHAPE, device=GPU)
        images = torch.zeros(2, 3, 8, 8, device=GPU)
        mlp = Chain.of(on_gpu(MLP(hidden=(6,)), SHAPE), rows)
        cnn = Chain.of(on_gpu(SmallCNN(channels=4), (3, 8, 8)), images)
    return [mlp is not None, cnn is not None]


def test_a_stacked_step_mixes_no_devices_and_scatters_no_tensor():
    # in a process of its own: torch's threads for a GPU that is not there survive no fork
    assert ask(stacked_steps) == [[[0, 5], [1, 5], [2, 5]], [[0, 5], [1, 2]], [[0, 2]]]


def test_a_gpu_has_chains_of_the_layers_alone_that_are_stacked():
    assert ask(chains) == [True, False]


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


def test_a_one_hot_product_is_what_scatter_gives():
    g = torch.Generator().manual_seed(0)
    outputs = torch.randn(3, 5, CLASSES, generator=g)
    target = torch.randint(0, CLASSES, (3, 5), generator=g)
    weight = torch.rand(3, 5, generator=g)
    scattered = torch.zeros_like(outputs).scatter_(-1, target[..., None], -weight[..., None])
    assert torch.equal(one_hot_product(outputs, target, -weight[..., None]), scattered)


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


# -- faults ----------------------------------------------------------------------------------------

NO_ROOM = torch.OutOfMemoryError(
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of "
    "which 1.50 GiB is free. Including non-PyTorch memory, this process has 77.60 GiB in use."
)
LOST = torch.AcceleratorError("CUDA error: unspecified launch failure\nCUDA kernel errors", 719)
ASSERT = torch.AcceleratorError("CUDA error: device-side assert triggered\nCUDA kernel", 710)


class Failing(Defense):
    """Meets an error of the GPU in a phase."""

    error: Exception = NO_ROOM

    def protect(self, update, ctx):
        raise self.error


def phase_error(error: Exception) -> Exception:
    """The error as the engine sees it, raised in a phase."""
    defense = Failing()
    defense.error = error
    with pytest.raises(PhaseError) as raised:
        call(defense, "protect", None, None, where="client 0, round 1")
    return raised.value


def test_a_gpus_fault_is_told_from_a_components_and_says_what_was_asked_what_fits_and_the_setting():
    told = fault_of(phase_error(NO_ROOM))
    assert told.startswith("out of GPU memory: 2.00 GiB were asked for, 1.50 GiB of 79.10 GiB were")
    assert "--workers" in told and "federation.batch_size" in told
    told = fault_of(phase_error(LOST))
    assert told.startswith("the GPU was lost in mid-run (CUDA error: unspecified launch failure)")
    assert fault_of(phase_error(ASSERT)) == fault_of(phase_error(ValueError("x"))) == ""


@pytest.mark.parametrize(
    ("place", "error"), [("train_run", LOST), pytest.param("ask", NO_ROOM, marks=pytest.mark.slow)]
)
def test_a_run_with_a_fault_of_the_gpu_is_missing(error, place, tmp_path):
    with pytest.MonkeyPatch.context() as patch:  # forks have it too

        def failing(*args, **options):
            raise RuntimeError("the training") from error

        patch.setattr(worker, place, failing)
        patch.setattr(worker, "log_failure", lambda error: None)  # there is no log here
        (job,) = build_plan(str(suite(tmp_path)), (), tmp_path / "r", "cpu").jobs
        Results.create(tmp_path / "r", "tiny")
        with pytest.raises(DeviceFault, match=r"out of GPU memory: 2|was lost in mid-run"):
            worker.run_job(job, lambda kind, value: None)
    assert not Results(tmp_path / "r").path(job.stem).exists()


def test_a_signal_without_room_on_the_gpu_is_not_dropped():
    with pytest.raises(DeviceFault):
        raise_fault(phase_error(NO_ROOM))
    raise_fault(phase_error(ASSERT))


# -- runs side by side -----------------------------------------------------------------------------


class Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def numbers(rates: list[float], most: int = 16, held: int = 2) -> list[int]:
    """Runs at once before and after each set of runs, of which the GPU makes this many rounds a
    second together and each holds ``held`` of 80 GiB.
    """
    clock = Clock()
    places = Places(most, 1, clock)
    found = [places.number]
    for rate in rates:
        n = places.number
        clock.now += 100.0
        for _ in range(n):
            places.ended(round(100 * rate / n), held, 80)
        found.append(places.number)
    return found


def test_runs_side_by_side_grow_while_that_pays_and_the_memory_has_room():
    assert numbers([10, 20, 40, 80, 160]) == [1, 2, 4, 8, 16, 16]
    assert numbers([10, 10, 10]) == [1, 2, 1, 1], "a second run gained nothing"
    assert numbers([10, 20, 21, 20]) == [1, 2, 4, 2, 2]
    assert numbers([10, 20, 40, 80], held=20) == [1, 2, 3, 3, 3], "three fit in nine tenths"
    assert numbers([10, 20], held=70) == [1, 1, 1]
    assert numbers([10, 20, 40], most=3) == [1, 2, 3, 3]
