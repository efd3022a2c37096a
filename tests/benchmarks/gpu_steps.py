"""Steps of local training on one device: ours and a bare PyTorch loop, each as it is and captured, over the same samples."""

from __future__ import annotations

import time

import torch
from torch.nn.functional import cross_entropy
from workloads import in_turn, ratio, training_of

from fedbench.core import MemberData
from fedbench.core.federation.captured import CapturedSteps
from fedbench.core.models.cnn_small import SmallCNN
from fedbench.core.models.resnet18 import ResNet18
from fedbench.core.numerics.memory_format import in_memory_format
from fedbench.core.numerics.normalise import Normalised
from fedbench.core.numerics.precision import in_precision
from fedbench.core.numerics.replay import CpuOperations, CudaGraphs

OPTIMIZER = {"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4}
MEAN, STD = (0.507, 0.487, 0.441), (0.267, 0.256, 0.276)


class Workload:
    """The paper's scale (ten clients, 50,000 images, batches of 100, ResNet18 with 100 classes), or a toy of it."""

    def __init__(self, device, tiny, precision="fp32", memory_format="contiguous"):
        self.device, self.settings = device, {"precision": precision, "memory_format": memory_format}
        clients, self.samples, self.batch, side, self.classes = (2, 24, 8, 8, 4) if tiny else (10, 5000, 100, 32, 100)
        self._model, self._shape = SmallCNN() if tiny else ResNet18(), (3, side, side)
        g = torch.Generator().manual_seed(0)
        self.data = [
            MemberData(
                torch.randint(0, 256, (self.samples, *self._shape), generator=g, dtype=torch.uint8).to(device),
                torch.randint(0, self.classes, (self.samples,), generator=g).to(device),
            )
            for _ in range(clients)
        ]
        self.steps = clients * (self.samples // self.batch)  # of a round

    def module(self):
        """As the engine trains it."""
        torch.manual_seed(0)
        built = in_precision(self._model.build(self._shape, self.classes), self.settings["precision"])
        return Normalised(in_memory_format(built, self.settings["memory_format"]), MEAN, STD).to(self.device).train()


def recorder_for(device):
    """A CUDA graph where there is CUDA, its twin elsewhere."""
    return CudaGraphs(device) if device.type == "cuda" else CpuOperations()


def ours(work, captured):
    """Our round loop without a defense and its rounds, captured or not."""
    training = training_of(
        work.module(), work.data, 100_000, classes=work.classes, device=work.device, batch_size=work.batch, optimizer=OPTIMIZER,
        **work.settings,
    )  # fmt: skip
    steps = CapturedSteps(training.setup, training.trainer.optimizer, recorder_for(work.device)) if captured else None
    training.trainer.captured = steps
    return training, training.rounds()


def bare(work, captured):
    """What one would write by hand: a round of torch.optim.SGD over every client's shuffled batches; captured, its whole step."""
    module = work.module()
    optimizer = torch.optim.SGD(module.parameters(), **OPTIMIZER)
    x, y = (t[: work.batch].clone() for t in (work.data[0].x, work.data[0].y))

    def step(x=x, y=y):
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

    def round_():
        for data in work.data:
            for pick in torch.randperm(work.samples).to(work.device).split(work.batch):
                if replay is None:
                    step(data.x[pick], data.y[pick])
                else:
                    x.copy_(data.x[pick])
                    y.copy_(data.y[pick])
                    replay()

    return round_


def now(device):
    """Seconds, when what was handed to the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def deterministic(way):
    """In torch's deterministic mode, as every run of fedbench is; a loop written by hand has it off."""

    def under():
        torch.set_deterministic_debug_mode("error")
        try:
            way()
        finally:
            torch.set_deterministic_debug_mode("default")

    return under


def measured(work, repeats, enough):
    """Steps a second of the four loops, timed in turn in this process, and ratios of the same turn: median, range and n."""
    (plain, one), (graphs, other) = ours(work, captured=False), ours(work, captured=True)
    loops = {
        "ours": deterministic(lambda: next(one)), "ours captured": deterministic(lambda: next(other)),
        "bare": bare(work, captured=False), "bare captured": bare(work, captured=True),
    }  # fmt: skip
    times = in_turn(loops, repeats, clock=lambda: now(work.device), enough=enough)
    pairs = (("ours", "bare"), ("ours captured", "bare"), ("ours captured", "bare captured"))
    captured = graphs.trainer.captured
    return {
        "steps_per_s": {name: ratio([work.steps] * len(of), of) for name, of in times.items()},
        "ratios": {f"{fast} / {slow}": ratio(times[slow], times[fast]) for fast, slow in pairs},
        "replays": captured.replays if captured else 0, "note": captured.note if captured else "",
        "captured_bits_equal": torch.equal(plain.models, graphs.models),
    }  # fmt: skip
