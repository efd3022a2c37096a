"""Steps of local training on one device: ours and a bare PyTorch loop, each as it is and captured, over the same samples."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedbench.core import Defense, MemberData
from fedbench.core.federation.captured import CapturedSteps
from fedbench.core.federation.loop import Training
from fedbench.core.federation.setup import Setup
from fedbench.core.models.cnn_small import SmallCNN
from fedbench.core.models.resnet18 import ResNet18
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.numerics.memory_format import in_memory_format
from fedbench.core.numerics.normalise import Normalised
from fedbench.core.numerics.precision import in_precision
from fedbench.core.numerics.replay import CpuOperations, CudaGraphs, Recorder
from fedbench.core.spec.federation import FederationSpec

OPTIMIZER = {"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4}
MEAN, STD = (0.507, 0.487, 0.441), (0.267, 0.256, 0.276)


class Workload:
    """The paper's scale (ten clients, 50,000 images, batches of 100, ResNet18 with 100 classes), or a toy of it."""

    def __init__(self, device: torch.device, tiny: bool, precision: str = "fp32", memory_format: str = "contiguous") -> None:
        self.device, self.precision, self.memory_format = device, precision, memory_format
        self.clients, self.samples, self.batch, side, classes = (2, 24, 8, 8, 4) if tiny else (10, 5000, 100, 32, 100)
        self._model, self._shape, self._classes = SmallCNN() if tiny else ResNet18(), (3, side, side), classes
        g = torch.Generator().manual_seed(0)
        self.data = [MemberData(*(t.to(device) for t in self._drawn(g))) for _ in range(self.clients)]

    def _drawn(self, g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randint(0, 256, (self.samples, *self._shape), generator=g, dtype=torch.uint8)
        return x, torch.randint(0, self._classes, (self.samples,), generator=g)

    @property
    def steps(self) -> int:
        """Of one round."""
        return self.clients * (self.samples // self.batch)

    def module(self) -> nn.Module:
        """As the engine trains it."""
        torch.manual_seed(0)
        built = in_precision(self._model.build(self._shape, self._classes), self.precision)
        return Normalised(in_memory_format(built, self.memory_format), MEAN, STD).to(self.device).train()

    def setup(self) -> Setup:
        """Of a federation without a defense."""
        flat = FlatModel(self.module(), self.device)
        config = FederationSpec(
            clients=self.clients, rounds=100_000, local_epochs=1, batch_size=self.batch, precision=self.precision,
            memory_format=self.memory_format, optimizer=OPTIMIZER,
        )  # fmt: skip
        return Setup(
            config=config, seed=0, flat=flat, clients=self.data, n_classes=self._classes, defense=Defense(), members=(),
            initial=flat.params[None].clone(),
        )  # fmt: skip


def recorder_for(device: torch.device) -> Recorder:
    """A CUDA graph where there is CUDA, its twin elsewhere."""
    return CudaGraphs(device) if device.type == "cuda" else CpuOperations()


def ours(work: Workload, captured: bool) -> tuple[Training, Iterator[Any]]:
    """Our round loop and its rounds, captured or not."""
    training = Training(work.setup())
    steps = CapturedSteps(training.setup, training.trainer.optimizer, recorder_for(work.device)) if captured else None
    training.trainer.captured = steps
    return training, training.rounds()


def bare(work: Workload, captured: bool) -> Callable[[], None]:
    """What one would write by hand: a round of torch.optim.SGD over every client's shuffled batches; captured, its whole step."""
    module = work.module()
    optimizer = torch.optim.SGD(module.parameters(), **OPTIMIZER)
    x, y = (t[: work.batch].clone() for t in (work.data[0].x, work.data[0].y))

    def step(x: torch.Tensor = x, y: torch.Tensor = y) -> None:
        optimizer.zero_grad(set_to_none=not captured)
        cross_entropy(module(x), y).backward()
        optimizer.step()

    replay = None
    if captured:
        recorder = recorder_for(work.device)
        step()  # what is moved to the device once is moved before
        for _ in range(3):
            recorder.warm_up(step)
        replay = recorder.record(step)

    def round_() -> None:
        for data in work.data:
            for pick in torch.randperm(work.samples).to(work.device).split(work.batch):
                if replay is None:
                    step(data.x[pick], data.y[pick])
                else:
                    x.copy_(data.x[pick])
                    y.copy_(data.y[pick])
                    replay()

    return round_


def seconds(work: Callable[[], Any], device: torch.device) -> float:
    """Until the device is done."""
    wait(device)
    began = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - began


def wait(device: torch.device) -> None:
    """For what was handed to the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measured(work: Workload, repeats: int, enough: Callable[[], bool]) -> dict[str, Any]:
    """Steps a second of the four loops, timed in turn in this process: median, range and n; ratios of the same turn."""
    trainings = {name: ours(work, captured) for name, captured in (("ours", False), ("ours captured", True))}
    loops: dict[str, Callable[[], Any]] = {name: (lambda rounds=rounds: next(rounds)) for name, (_, rounds) in trainings.items()}
    loops |= {name: bare(work, captured) for name, captured in (("bare", False), ("bare captured", True))}
    for name, loop in loops.items():
        with deterministic(name.startswith("ours")):
            loop()  # warm
    times: dict[str, list[float]] = {name: [] for name in loops}
    for i in range(repeats):
        if i and enough():
            break
        for name, loop in loops.items():
            with deterministic(name.startswith("ours")):
                times[name].append(seconds(loop, work.device))
    captured = trainings["ours captured"][0].trainer.captured
    pairs = {"ours / bare": ("bare", "ours"), "ours captured / bare": ("bare", "ours captured"),
             "ours captured / bare captured": ("bare captured", "ours captured")}  # fmt: skip
    a, b = (t.models for t, _ in trainings.values())
    return {
        "steps_per_s": {name: spread([work.steps / t for t in found]) for name, found in times.items()},
        "ratios": {
            name: spread([s / t for s, t in zip(times[slow], times[fast], strict=True)]) for name, (slow, fast) in pairs.items()
        },
        "replays": captured.replays if captured else 0, "note": captured.note if captured else "",
        "captured_bits_equal": bool(torch.equal(a, b)),
    }  # fmt: skip


@contextmanager
def deterministic(on: bool) -> Iterator[None]:
    """torch's deterministic mode, as every run of fedbench has it; a loop written by hand has it off."""
    torch.set_deterministic_debug_mode("error" if on else "default")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode("default")


def spread(values: list[float]) -> dict[str, float]:
    """Median, range and how many."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values)}
