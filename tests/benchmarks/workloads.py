"""The federation that the benchmarks of training share."""

from __future__ import annotations

import torch

from fedbench.core import Defense, MemberData
from fedbench.core.federation.setup import Setup
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.spec.federation import FederationSpec, Optimizer

CLIENTS, BATCH = 10, 20
CONFIG = {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}


def clients_of(shape, samples):
    g = torch.Generator().manual_seed(0)
    return [
        MemberData(torch.rand(samples, *shape, generator=g), torch.randint(0, 10, (samples,), generator=g))
        for _ in range(CLIENTS)
    ]


def setup_of(model, shape, clients, rounds, epochs, defense=None, members=()):
    flat = FlatModel(model.build(shape, 10), torch.device("cpu"))
    config = FederationSpec(
        clients=len(clients), rounds=rounds, local_epochs=epochs, batch_size=BATCH, optimizer=Optimizer(**CONFIG)
    )
    return Setup(
        config=config, seed=0, flat=flat, clients=clients, n_classes=10, defense=defense or Defense(), members=members,
        initial=flat.params[None].clone(),
    )  # fmt: skip
