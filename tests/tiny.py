"""Tiny federations: seconds become milliseconds, every phase still runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from fedbench.core import ActiveAttack, Defense, MemberData, Signal
from fedbench.core.contract.attack import KnowledgeLevel
from fedbench.core.federation.loop import Training
from fedbench.core.federation.setup import Insider, RoundResult, Setup
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.signals.measure import Recorder
from fedbench.core.spec.federation import FederationSpec, Optimizer

OPTIMIZER = tuple(Optimizer.model_fields)


def tiny_module(width: int = 6, classes: int = 3, seed: int = 0) -> nn.Module:
    """A two-layer network with reproducible weights."""
    return drawn(nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, classes)), seed)


def drawn(module: nn.Module, seed: int = 0, scale: float = 0.3) -> nn.Module:
    """The module with normal weights of that standard deviation."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=g) * scale)
    return module


def normed() -> nn.Module:
    """The tiny module with batch statistics."""
    inner = tiny_module()
    return nn.Sequential(inner[0], nn.BatchNorm1d(6), inner[1], inner[2])


def tiny_clients(clients: int = 4, samples: int = 12, classes: int = 3) -> list[MemberData]:
    """Random separable-ish data, a different one for every client."""
    g = torch.Generator().manual_seed(7)
    out = []
    for _ in range(clients):
        x = torch.randn(samples, 4, generator=g)
        out.append(MemberData(x, torch.randint(0, classes, (samples,), generator=g)))
    return out


def tiny_setup(
    defense: Defense | None = None,
    members: tuple[int, ...] = (0, 1),
    n_models: int = 1,
    module: nn.Module | None = None,
    clients: list[MemberData] | None = None,
    **changes: Any,
) -> Setup:
    """A federation of 4 clients, 3 rounds, 2 local epochs, batches of 5; ``changes`` reach Setup or
    the suite's federation."""
    device = torch.device("cpu")
    flat = FlatModel(module or tiny_module(), device)
    initial = [flat.params.clone()] + [
        FlatModel(tiny_module(seed=j), device).params for j in range(1, n_models)
    ]
    clients = clients or tiny_clients()
    fields = {
        k: changes.pop(k)
        for k in ("insider", "root", "keep_unprotected", "expected_malicious")
        if k in changes
    }
    return Setup(
        seed=changes.pop("seed", 0),
        config=tiny_federation(len(clients), **changes),
        flat=flat,
        clients=clients,
        n_classes=3,
        defense=defense or Defense(),
        members=members,
        initial=torch.stack(initial),
        **fields,
    )


def tiny_federation(clients: int = 4, **changes: Any) -> FederationSpec:
    """3 rounds, 2 local epochs, batches of 5, SGD at 0.1 with momentum and decay; ``changes`` reach
    the federation or its optimiser.
    """
    given = (
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}
        if changes.get("name", "sgd") == "sgd"
        else {"lr": 0.1}
    )
    optimizer = given | {k: changes.pop(k) for k in OPTIMIZER if k in changes}
    return FederationSpec(
        **{
            "clients": clients,
            "rounds": 3,
            "local_epochs": 2,
            "batch_size": 5,
            "optimizer": optimizer,
            **changes,
        }
    )


def tiny_insider(
    attack: ActiveAttack,
    malicious: int = 1,
    knowledge: KnowledgeLevel | None = None,
    start_round: int = 1,
) -> Insider:
    """The last clients under one attacker, which gets to know what it needs; attack and mask set of
    3 samples each.
    """
    x, y = torch.randn(6, 4, generator=torch.Generator().manual_seed(3)), torch.arange(6) % 3
    return Insider(
        attack=attack,
        malicious=malicious,
        knowledge=knowledge or attack.knowledge,
        start_round=start_round,
        x=x[:3].clone(),
        y=y[:3].clone(),
        mask_x=x[3:].clone(),
        mask_y=y[3:].clone(),
    )


def train_all(
    setup: Setup, each: Callable[[RoundResult], None] = lambda result: None
) -> tuple[Training, list[RoundResult]]:
    """Run every round, and ``each`` after it; the uploads are copied, since the engine uses their
    matrix again.
    """
    federation, results = Training(setup), []
    for result in federation.rounds():
        each(result)
        result.uploads.updates = result.uploads.updates.clone()
        results.append(result)
    return federation, results


def record_all(
    setup: Setup,
    x: torch.Tensor,
    y: torch.Tensor,
    signals: Mapping[str, Signal],
    rows: list[int],
    gradients: bool = False,
    sizes: Sequence[float] = (12,) * 4,
    **fields: Any,
) -> tuple[Recorder, list[RoundResult]]:
    """Run every round and measure the samples in it; the members are one coalition."""
    recorder = Recorder(
        setup.flat,
        x,
        y,
        signals,
        gradients,
        rows,
        (setup.members,),
        sizes,
        n_rounds=setup.config.rounds,
        **fields,
    )
    return recorder, train_all(setup, recorder.record)[1]
