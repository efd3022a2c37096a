"""What the benchmarks share: federations, a loop by hand, and the timing of several ways in
turn.
"""

from __future__ import annotations

import statistics
import time
from typing import NamedTuple

import torch
from torch.nn.functional import cross_entropy

from fedbench.core import Defense, MemberData, Model
from fedbench.core.federation.loop import Training
from fedbench.core.federation.setup import Setup
from fedbench.core.models.sequential import MLP, SmallCNN
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.registry.components import Registry
from fedbench.core.spec.federation import FederationSpec
from fedbench.core.spec.resolve import load_and_check

CLIENTS, BATCH = 10, 20
CONFIG = {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}
# with the shape of its images
MODELS = {"mlp": (MLP(hidden=(256, 128)), (1, 8, 8)), "cnn-small": (SmallCNN(), (3, 32, 32))}


# suite, setting -> shape of a sample, classes, samples that a client trains on, what is less than
# there
SUITES = {
    ("partial_defense", "digits"): ((1, 8, 8), 10, 90, {}),
    ("partial_defense_cifar10", "cifar10"): ((3, 32, 32), 10, 120, {}),
    ("partial_defense_location30", "location30"): ((446,), 30, 300, {}),
    ("poisoning", "location30"): ((446,), 30, 250, {}),
    # one batch a round, of however many samples
    ("papers/fedpoisonmia_table2", "texas100-iid"): ((6169,), 100, 200, {}),
    ("overfitting", "location30"): ((446,), 30, 526, {}),
    # of 26,000, and of 10
    ("papers/membershield_purchase100", "mlp4-beta1"): ((600,), 100, 1000, {"local_epochs": 2}),
}


class Work(NamedTuple):
    """``federation``: the fields of a federation but for its clients and rounds."""

    model: Model
    shape: tuple[int, ...]
    classes: int
    clients: list[MemberData]
    federation: dict

    def training(self, rounds, defense=None, members=()):
        module = self.model.build(self.shape, self.classes)
        return training_of(
            module, self.clients, rounds, defense, members, self.classes, **self.federation
        )


def of_suite(suite, setting):
    """A suite's model, optimiser, batches and number of clients, with random samples of its data's
    shape.
    """
    shape, classes, samples, less = SUITES[suite, setting]
    _, resolved = load_and_check(suite, Registry.discover())
    found = next(s for s in resolved.settings if s.spec.name == setting)
    federation = found.spec.federation.model_dump(exclude={"recipe", "clients", "rounds"})
    clients = clients_of(shape, samples, found.spec.federation.clients, classes)
    return Work(found.model.make()[0], shape, classes, clients, federation | less)


def clients_of(shape, samples, clients=CLIENTS, classes=10):
    g = torch.Generator().manual_seed(0)
    x, y = (
        torch.rand(clients * samples, *shape, generator=g),
        torch.randint(0, classes, (clients * samples,), generator=g),
    )
    return [MemberData(*own) for own in zip(x.split(samples), y.split(samples), strict=True)]


def training_of(
    module, clients, rounds, defense=None, members=(), classes=10, device="cpu", **config
):
    flat = FlatModel(module, torch.device(device))
    config = {"local_epochs": 1, "batch_size": BATCH, "optimizer": CONFIG} | config
    return Training(
        Setup(
            config=FederationSpec(clients=len(clients), rounds=rounds, **config),
            seed=0,
            flat=flat,
            clients=clients,
            n_classes=classes,
            defense=defense or Defense(),
            members=members,
            initial=flat.params[None].clone(),
        )
    )


def bare(module, visits, config):
    """What one would write by hand. ``visits``: (a client's data, the orders of its samples, one an
    epoch); each has a new optimiser, unless its state is kept.
    """
    kept = {}
    for data, orders in visits:
        steps = kept.get(id(data)) or optimiser(module, config.optimizer)
        if config.optimizer.keep_state:
            kept[id(data)] = steps
        for pick in (pick for order in orders for pick in order.split(config.batch_size)):
            steps.zero_grad()
            cross_entropy(module(data.x[pick]), data.y[pick]).backward()
            steps.step()


def optimiser(module, of):
    more = {"lr": of.lr, "weight_decay": of.weight_decay}
    if of.name == "adam":
        return torch.optim.Adam(module.parameters(), betas=of.betas or (0.9, 0.999), **more)
    return torch.optim.SGD(module.parameters(), momentum=of.momentum, **more)


def one_pass_a_sample_and_client(module, x, y, updates):
    """[K, n] <g_i, u_k>, as FedMIA's released code computes it: for every client, a Python loop
    with one backward pass a sample.
    """
    products = torch.empty(len(updates), len(x), device=x.device)
    parameters = list(module.parameters())
    for k, update in enumerate(updates):
        for i in range(len(x)):
            loss = cross_entropy(module(x[i : i + 1]), y[i : i + 1])
            gradients = torch.autograd.grad(loss, parameters)
            products[k, i] = torch.cat([g.reshape(-1) for g in gradients]) @ update
    return products


def clock_of(device):
    """Return a clock that waits until what was handed to the device is done."""
    device = torch.device(device)

    def now():
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    return now


def in_turn(ways, n, times=1, clock=time.perf_counter, enough=lambda: False):
    """name -> n durations, fewer where it is enough: all ways in each turn, so that a drift of the
    machine's speed meets all. A first turn warms up.
    """
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


def quotients(slow, fast):
    """Ratio of each turn."""
    return [a / b for a, b in zip(slow, fast, strict=True)]


def summary(values):
    """Median, smallest and largest of some ratios or rates, and their number."""
    median = statistics.median(values)
    return {"median": median, "low": min(values), "high": max(values), "n": len(values)}


def shown(of):
    """A summary as text."""
    return f"{of['median']:.3g} ({of['low']:.3g}-{of['high']:.3g}, n {of['n']})"
