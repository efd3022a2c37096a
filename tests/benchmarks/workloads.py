"""What the benchmarks share: federations, a loop by hand, and the timing of several ways in turn."""

from __future__ import annotations

import statistics
import time

import torch
from torch.nn.functional import cross_entropy

from fedbench.core import Defense, MemberData
from fedbench.core.federation.loop import Training
from fedbench.core.federation.setup import Setup
from fedbench.core.models.sequential import MLP, SmallCNN
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.spec.federation import FederationSpec

CLIENTS, BATCH = 10, 20
CONFIG = {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}
MODELS = {"mlp": (MLP(hidden=(256, 128)), (1, 8, 8)), "cnn-small": (SmallCNN(), (3, 32, 32))}  # with the shape of its images


def clients_of(shape, samples, clients=CLIENTS):
    g = torch.Generator().manual_seed(0)
    x, y = torch.rand(clients * samples, *shape, generator=g), torch.randint(0, 10, (clients * samples,), generator=g)
    return [MemberData(*own) for own in zip(x.split(samples), y.split(samples), strict=True)]


def training_of(module, clients, rounds, defense=None, members=(), classes=10, device="cpu", **config):
    flat = FlatModel(module, torch.device(device))
    config = {"local_epochs": 1, "batch_size": BATCH, "optimizer": CONFIG} | config
    return Training(Setup(
        config=FederationSpec(clients=len(clients), rounds=rounds, **config), seed=0, flat=flat, clients=clients,
        n_classes=classes, defense=defense or Defense(), members=members, initial=flat.params[None].clone(),
    ))  # fmt: skip


def bare(module, visits, batch=BATCH, **optimizer):
    """What one would write by hand. ``visits``: (a client's data, the order of its samples); each has a new optimiser."""
    for data, order in visits:
        steps = torch.optim.SGD(module.parameters(), **(optimizer or CONFIG))
        for pick in order.split(batch):
            steps.zero_grad()
            cross_entropy(module(data.x[pick]), data.y[pick]).backward()
            steps.step()


def in_turn(ways, n, times=1, clock=time.perf_counter, enough=lambda: False):
    """name -> n durations, fewer where it is enough: all ways in each turn, so that a drift of the machine's speed meets all.
    A first turn warms up."""
    found = {name: [] for name in ways}
    for turn in range(n + 1):
        if turn > 1 and enough():
            break
        for name, way in ways.items():
            began = clock()
            for _ in range(times):
                way()
            found[name].append(clock() - began)
    return {name: of[1:] for name, of in found.items()}


def ratio(slow, fast):
    """Median, smallest and largest ratio of a turn."""
    found = sorted(a / b for a, b in zip(slow, fast, strict=True))
    return f"{statistics.median(found):.2f} ({found[0]:.2f}-{found[-1]:.2f}, n {len(found)})"
