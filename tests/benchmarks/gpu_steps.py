"""Steps of local training on one device: ours and a bare PyTorch loop over the same samples."""

from __future__ import annotations

import time

import torch
from torch.nn.functional import cross_entropy
from workloads import in_turn, ratio, training_of

from fedbench.core import MemberData
from fedbench.core.models.residual import ResNet18
from fedbench.core.models.sequential import SmallCNN
from fedbench.core.numerics.wrappers import Normalised, in_training_form

OPTIMIZER = {"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4}
MEAN, STD = (0.507, 0.487, 0.441), (0.267, 0.256, 0.276)


class Workload:
    """The paper's scale (ten clients, 50,000 images, batches of 100, ResNet18 with 100 classes), or
    a toy of it.
    """

    def __init__(self, device, tiny, precision="fp32", memory_format="contiguous"):
        self.device, self.settings = (
            device,
            {"precision": precision, "memory_format": memory_format},
        )
        clients, self.samples, self.batch, side, self.classes = (
            (2, 24, 8, 8, 4) if tiny else (10, 5000, 100, 32, 100)
        )
        self._model, self._shape = SmallCNN() if tiny else ResNet18(), (3, side, side)
        g = torch.Generator().manual_seed(0)
        self.data = [
            MemberData(
                torch.randint(
                    0, 256, (self.samples, *self._shape), generator=g, dtype=torch.uint8
                ).to(device),
                torch.randint(0, self.classes, (self.samples,), generator=g).to(device),
            )
            for _ in range(clients)
        ]
        self.steps = clients * (self.samples // self.batch)  # of a round

    def module(self):
        """As the engine trains it."""
        torch.manual_seed(0)
        built = self._model.build(self._shape, self.classes)
        return (
            Normalised(in_training_form(built, **self.settings), MEAN, STD).to(self.device).train()
        )


def ours(work):
    """Our round loop without a defense, and its rounds."""
    training = training_of(
        work.module(),
        work.data,
        100_000,
        classes=work.classes,
        device=work.device,
        batch_size=work.batch,
        optimizer=OPTIMIZER,
        **work.settings,
    )
    return training, training.rounds()


def bare(work):
    """A loop written by hand: a round of torch.optim.SGD over every client's shuffled batches."""
    module = work.module()
    optimizer = torch.optim.SGD(module.parameters(), **OPTIMIZER)

    def round_():
        for data in work.data:
            for pick in torch.randperm(work.samples).to(work.device).split(work.batch):
                optimizer.zero_grad(set_to_none=True)
                cross_entropy(module(data.x[pick]), data.y[pick]).backward()
                optimizer.step()

    return round_


def now(device):
    """Seconds, when what was handed to the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def deterministic(way):
    """In torch's deterministic mode, as every run of fedbench is; a loop written by hand has it
    off.
    """

    def under():
        torch.set_deterministic_debug_mode("error")
        try:
            way()
        finally:
            torch.set_deterministic_debug_mode("default")

    return under


def measured(work, repeats, enough):
    """Steps a second of the two loops, timed in turn in this process, and the ratio of the same
    turn: median, range and n.
    """
    _, rounds = ours(work)
    loops = {"ours": deterministic(lambda: next(rounds)), "bare": bare(work)}
    times = in_turn(loops, repeats, clock=lambda: now(work.device), enough=enough)
    return {
        "steps_per_s": {name: ratio([work.steps] * len(of), of) for name, of in times.items()},
        "ratios": {"ours / bare": ratio(times["bare"], times["ours"])},
    }
