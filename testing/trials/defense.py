"""A defense in a federation of five clients and two rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import nn

from fedbench.core.contract.defense import Defense
from fedbench.core.contract.errors import UserError
from fedbench.core.contract.samples import MemberData
from fedbench.core.federation.answering import answered, answers
from fedbench.core.federation.guard import remarks_of
from fedbench.core.federation.loop import Training
from fedbench.core.federation.setup import Setup
from fedbench.core.numerics.flat import FlatModel
from fedbench.testing.tiny import tiny_federation

SHAPE, CLASSES = (1, 8, 8), 3
_SIZES, _LARGER = (8,) * 5, (120,) * 5


def images(sizes: Sequence[int], shape: tuple[int, ...] = SHAPE, classes: int = CLASSES) -> list[MemberData]:
    """Each client's samples: noise around a picture of the class, in 0..1 as normalised images are."""
    g = torch.Generator().manual_seed(11)
    pictures = torch.rand(classes, *shape, generator=g)
    out = []
    for n in sizes:
        y = torch.randint(0, classes, (n,), generator=g)
        out.append(MemberData((pictures[y] + 0.2 * torch.randn(n, *shape, generator=g)).clamp(0, 1), y))
    return out


def network(seed: int = 0, shape: tuple[int, ...] = SHAPE, classes: int = CLASSES, normed: bool = False) -> nn.Module:
    """Two layers without dropout, reproducible; ``normed``: with batch statistics between them."""
    width = 6
    middle = [nn.BatchNorm1d(width)] if normed else []
    into, out = nn.Linear(prod(shape), width), nn.Linear(width, classes)
    module = nn.Sequential(nn.Flatten(), into, *middle, nn.ReLU(), out)
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in module.named_parameters():
            if not (normed and name.startswith("2.")):
                p.copy_(torch.randn(p.shape, generator=g) * 0.3)
    return module


@dataclass(frozen=True, kw_only=True)
class Federated:
    """What a trial varies. ``sizes``: samples of each client; ``members``: who defends; ``double``: float64 throughout."""

    sizes: tuple[int, ...] = _SIZES
    members: tuple[int, ...] = (0, 1, 2)
    seed: int = 0
    rounds: int = 2
    participation: float = 1.0
    batch_size: int = 4
    classes: int = CLASSES
    normed: bool = False
    double: bool = False
    device: str = "cpu"
    thresholds: bool = True
    expected_malicious: int = 0


def setup_of(made: Defense, how: Federated) -> Setup:
    """The federation of a trial."""
    device = torch.device(how.device)
    dtype = torch.float64 if how.double else torch.float32
    models = made.n_models or len(how.sizes)

    def flat(seed: int) -> FlatModel:
        return FlatModel(network(seed, classes=how.classes, normed=how.normed).to(dtype), device)

    asked = made.root_samples
    clients = [MemberData(d.x.to(device, dtype), d.y.to(device)) for d in images((*how.sizes, asked), classes=how.classes)]
    root = clients.pop()
    return Setup(
        seed=how.seed, flat=flat(0), clients=clients, n_classes=how.classes, defense=made, members=how.members,
        config=tiny_federation(
            len(how.sizes), rounds=how.rounds, local_epochs=1, batch_size=how.batch_size, participation=how.participation
        ),
        initial=torch.stack([flat(j).params.clone() for j in range(models)]),
        root=root if asked else None,
        thresholds=tuple(0.5 + 0.1 * (k % 5) for k in range(len(how.sizes))) if how.thresholds else None,
        expected_malicious=how.expected_malicious,
    )  # fmt: skip


def begun(made: Defense, how: Federated, kind: Callable[[Setup], Training] = Training) -> Training:
    """A training before its first round. A defense that refuses the usual few samples a client, since it needs more to validate,
    is asked again with many."""
    try:
        return kind(setup_of(made, how))
    except UserError:
        if how.sizes != _SIZES:
            raise
        return kind(setup_of(made, replace(how, sizes=_LARGER)))


def asked(training: Training, j: int, how: Federated) -> torch.Tensor:
    """[n, C] logits of global model ``j`` on samples of the clients and of nobody, before any answer."""
    start = training.setup.clients[0].x
    strangers = images((16,), classes=how.classes)[0].x.to(start)
    x = torch.cat([*(data.x[:3] for data in training.clients), strangers])
    return training.setup.flat.logits(training.models[j], training.buffers[j], x)


def _answers(training: Training, how: Federated) -> dict[str, torch.Tensor]:
    """What somebody who asks each of the global models is given; nothing where the defense leaves that alone."""
    if not answers(training.setup):
        return {}
    return {
        f"the answers of global model {j} after round {training.round}": answered(training, j, asked(training, j, how)).cpu()
        for j in range(len(training.models))
    }


def run(
    made: Defense, how: Federated | None = None, asking: bool = True, kind: Callable[[Setup], Training] = Training
) -> dict[str, Any]:
    """Every upload, every global model, what it answers and the facts. Raises whatever the engine makes of a mistake.
    ``asking``: whether somebody asks the global models; ``kind``: what makes the training."""
    how = how or Federated()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if how.double else torch.float32)
    try:
        training, said = begun(made, how, kind), dict[str, Any]()
        remarks_of(made, training.setup.facts)  # as planning asks, which takes texts alone
        for result in training.rounds():
            t = result.uploads.round
            for k, row in zip(result.uploads.participants, result.uploads.updates, strict=True):
                said[f"the upload of client {k} in round {t}"] = row.clone().cpu()
            said[f"the global models after round {t}"] = result.models.clone().cpu()
            said[f"the clients' models in round {t}"] = result.assignment
            said |= _answers(training, how) if asking else {}
        said["its facts"] = training.facts()
        return said
    finally:
        torch.set_default_dtype(before)
