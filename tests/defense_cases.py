"""Defenses by name, and contexts in which a test calls one of their phases."""

from __future__ import annotations

import functools
from typing import Any

import torch
from parties import CPU, facts_of, generator, member_context
from torch import nn

from fedbench.core import CoalitionContext, Defense, MemberContext, MemberData, ServerContext
from fedbench.core.registry.components import Registry


@functools.cache
def installed(name: str) -> type[Defense]:
    """The class of an installed defense."""
    return Registry.discover().get("defense", name).load()


def made(name: str, **params: Any) -> Defense:
    """An installed defense with these parameters."""
    return installed(name)(**params)


def member(
    module: nn.Module,
    data: MemberData | None = None,
    *,
    weights: int | None = 7,
    classes: int = 4,
    facts=None,
    **fields,
):
    """The context of client 0 in round 1; ``facts``: changes of the federation, ``fields``: of the
    context.
    """
    data = data or MemberData(torch.zeros(0, 6), torch.zeros(0, dtype=torch.int64))
    known = facts_of(
        sum(p.numel() for p in module.parameters()), **{"n_classes": classes, **(facts or {})}
    )
    return member_context(module, data, known, weights=weights, **fields)


def two_layers(inputs: int = 6, classes: int = 4) -> nn.Sequential:
    """Tensors of 5 x inputs, 5, classes x 5 and classes elements."""
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 5), nn.Tanh(), nn.Linear(5, classes))


def server(
    rows: torch.Tensor, f: int = 0, *, assumed: int | None = None, classes: int = 10, **fields: Any
) -> ServerContext:
    """The context of a round with these rows [K, P], ``f`` of them expected to be malicious;
    ``assumed``: of the federation.
    """
    assumed = f if assumed is None else assumed
    federation = facts_of(
        rows.shape[1], clients=len(rows), n_classes=classes, assumed_malicious=assumed
    )
    usual = {
        "key": 0,
        "device": CPU,
        "federation": federation,
        "round": 1,
        "params": torch.zeros(rows.shape[1]),
        "participants": tuple(range(len(rows))),
        "memory": {},
        "assumed_malicious": f,
    }
    return ServerContext(**{**usual, **fields})


CLASSES = 5  # of the coalition's federation; its model is a linear layer on three inputs
ONLY_PARTITION = {"compensation": False, "perturbation": False}
ONLY_NOISE = {"partition": False, "compensation": False}


def coalition_facts(**changes: Any):
    """4 clients, 20 rounds, 5 classes, 50 parameters."""
    return facts_of(50, **{"rounds": 20, "n_classes": CLASSES, **changes})


def coalition(
    members=(0, 2), weights=None, t=0, key=1, present=None, **changes
) -> CoalitionContext:
    """What the coordinator knows in round ``t``; in ``begin`` it is 0."""
    weights = weights or (1 / 4,) * len(members)
    return CoalitionContext(
        key=key,
        device=CPU,
        federation=coalition_facts(**changes),
        members=members,
        present=present or members,
        sizes=tuple(round(400 * w) for w in weights),
        weights=weights,
        round=t,
    )


def own_data(n: int = 100) -> MemberData:
    """Samples of three inputs and five classes."""
    g = generator(0)
    return MemberData(torch.randn(n, 3, generator=g), torch.randint(0, CLASSES, (n,), generator=g))


def in_coalition(
    data: MemberData, *, t: int = 1, memory=None, weights: int = 0, **fields: Any
) -> MemberContext:
    """The context of a member of that coalition in round ``t``."""
    changes = {
        "facts": {"rounds": 20},
        "round": t,
        "epoch": t - 1,
        "memory": {} if memory is None else memory,
    }
    return member(
        nn.Linear(3, CLASSES), data, weights=weights, classes=CLASSES, **changes, **fields
    )


def begun(changes=None, **params: Any) -> Defense:
    """CoFedMID after ``begin``; ``changes`` of the coalition."""
    defense = made("cofedmid", **params)
    defense.begin(coalition(**(changes or {})))
    return defense


def started(data: MemberData, **params: Any) -> tuple[Defense, MemberData]:
    """CoFedMID after ``begin``, and a member's data after ``prepare``."""
    defense = begun(**params)
    return defense, defense.prepare(data, in_coalition(data))
