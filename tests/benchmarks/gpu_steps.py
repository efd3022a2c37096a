"""Local steps on one device: their cost here and in a bare PyTorch loop, and what bounds them."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
from peers import Workload, data_of, peak_gib
from pydantic import ValidationError
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode
from workloads import clock_of, in_turn, quotients, summary, training_of

from fedbench.core import MemberData
from fedbench.core.numerics.wrappers import Normalised, in_training_form, matmuls

OPTIMIZER = {"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4}
CASES = {
    "resnet18": Workload("resnet18", 2, 2, 1000, batch=100, epochs=1, classes=100),
    "cnn": Workload(clients=10, cohort=10, epochs=1),
    "mlp": Workload("mlp", 10, 10, 400, batch=20, epochs=1, shape=(1, 8, 8)),
}
PRECISIONS = {
    "fp32": {},
    "tf32": {"precision": "tf32"},
    "bf16": {"precision": "bf16"},
    "bf16 channels_last": {"precision": "bf16", "memory_format": "channels_last"},
}
VARIANTS = {
    "ours": {},
    "ours, stacked": {"backend": "stacked"},
    "ours, recorded": {"backend": "recorded"},
}
"""settings of a federation; in an earlier fedbench some are not available"""
COMPILED = {"resnet18 bf16", "cnn fp32"}
"""with a variant that torch compiles, which takes a minute"""


def variants_of(name):
    """Our variants for a configuration."""
    return VARIANTS | ({"ours, compiled": {"compile": True}} if name in COMPILED else {})


def tiny(case):
    """A case of two steps."""
    return replace(case, clients=1, cohort=1, samples=8, batch=4)


def configurations():
    """Names of (case, precision); an MLP has fp32 alone."""
    return [
        (case, precision)
        for case in CASES
        for precision in PRECISIONS
        if case != "mlp" or precision == "fp32"
    ]


class Steps:
    """A case with its images as bytes, in one precision and memory format."""

    def __init__(self, workload, precision="fp32", memory_format="contiguous"):
        self.workload, self.precision = workload, precision
        self.settings = {"precision": precision, "memory_format": memory_format}
        data = (data_of(workload, client) for client in range(workload.clients))
        self.clients = [MemberData((255 * x).byte(), y) for x, y in data]

    def module(self, compiled=False):
        """As the engine trains it."""
        channels = self.workload.shape[0]
        module = in_training_form(self.workload.module(), **self.settings, compiled=compiled)
        return Normalised(module, (0.5,) * channels, (0.25,) * channels)

    def training(self, **settings):
        """Our training; raises ``ValidationError`` for settings that there are not."""
        return training_of(
            self.module(settings.get("compile", False)).train(),
            self.clients,
            100_000,
            classes=self.workload.classes,
            device=self.workload.device,
            batch_size=self.workload.batch,
            optimizer=OPTIMIZER,
            **self.settings | settings,
        )

    def ours(self, rounds):
        """A round in torch's deterministic mode, as every run is."""
        with deterministic():
            next(rounds)

    def bare(self, module, optimizer):
        """A round of a loop written by hand over every client's shuffled batches."""
        for data in self.clients:
            for pick in torch.randperm(len(data.y)).to(data.y.device).split(self.workload.batch):
                optimizer.zero_grad(set_to_none=True)
                cross_entropy(module(data.x[pick]), data.y[pick]).backward()
                optimizer.step()

    def bare_loop(self, ours):
        """The loop with PyTorch's defaults, or with ``ours``: deterministic, in our precision."""
        module = self.module().train()
        optimizer = torch.optim.SGD(module.parameters(), **OPTIMIZER)

        def way():
            mode = deterministic() if ours else nullcontext()
            arithmetic = matmuls(self.precision) if ours else nullcontext()
            with mode, arithmetic:
                self.bare(module, optimizer)

        return way


@contextmanager
def deterministic():
    """torch's deterministic mode."""
    torch.set_deterministic_debug_mode("error")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode("default")


def flops_of(steps):
    """Floating-point operations of a step's forward and backward pass."""
    module = steps.workload.module()
    x, y = data_of(steps.workload, 0)
    with FlopCounterMode(display=False) as counter:
        cross_entropy(module(x[:2]), y[:2]).backward()
    return counter.get_total_flops() * steps.workload.batch / 2


def measured(steps, variants, turns, enough):
    """Steps a second of ours, by settings, and of bare loops, in turn; their ratios, TFLOP/s, equal
    bits of two trainings, peak memory, and the profile of a round of each of ours.
    """
    trainings, absent = {}, {}
    for name, settings in variants.items():
        try:
            trainings[name] = steps.training(**settings)
        except ValidationError as error:
            absent[name] = f"not available: {error.errors()[0]['msg']}"
    rounds = {name: training.rounds() for name, training in trainings.items()}
    ways = {name: lambda r=r: steps.ours(r) for name, r in rounds.items()}
    ways["bare, our settings"] = steps.bare_loop(ours=True)
    ways["bare, defaults"] = steps.bare_loop(ours=False)
    device = steps.workload.device
    times = in_turn(ways, turns, clock=clock_of(device), enough=enough)
    rates = {name: summary([steps.workload.steps / s for s in times[name]]) for name in times}
    flops = flops_of(steps)
    return {
        "steps_per_s": rates | absent,
        "tflop_per_s": {name: of["median"] * flops / 1e12 for name, of in rates.items()},
        "ratios": {
            f"{name} / {bare}": summary(quotients(times[bare], times[name]))
            for name in trainings
            for bare in times
            if bare.startswith("bare")
        },
        "notes": {name: training.trainer.note for name, training in trainings.items()},
        "equal_bits": equal_bits(steps),
        "peak_memory_gib": peak_gib(device),
        "profiles": {name: profiled(steps, ways[name]) for name in trainings},
    }


def equal_bits(steps):
    """Whether two trainings of a round give the same model."""
    models = []
    for _ in range(2):
        training = steps.training()
        steps.ours(training.rounds())
        models.append(training.models[0])
    return torch.equal(*models)


def profiled(steps, way):
    """What a round of a way launches, by torch's profiler: counts a step, the GPU's busy share and
    its longest kernels in ms.
    """
    cuda = steps.workload.device.startswith("cuda")
    now = clock_of(steps.workload.device)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as profiler:
        began = now()
        way()
        seconds = now() - began
    events = profiler.key_averages()

    def a_step(*names):
        counts = (e.count for e in events if any(name in e.key for name in names))
        return sum(counts) / steps.workload.steps

    longest = sorted(events, key=lambda e: -e.self_device_time_total)[:8] if cuda else []
    return {
        "operations": a_step("aten::"),
        "fills": a_step("aten::fill_"),
        "kernels": a_step("cudaLaunchKernel", "cuLaunchKernel"),
        "graph_launches": a_step("cudaGraphLaunch"),
        "synchronisations": a_step("Synchronize"),
        "gpu_busy": sum(e.self_device_time_total for e in events) / 1e6 / seconds if cuda else None,
        "longest_kernels": {e.key[:80]: e.self_device_time_total / 1e3 for e in longest},
    }
