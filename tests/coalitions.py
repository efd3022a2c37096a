"""A coalition and its members with CoFedMID, made by hand."""

from __future__ import annotations

import torch
from parties import CPU, facts_of, member_context
from torch import nn

from fedbench.core import CoalitionContext, Federation, MemberContext, MemberData
from fedbench.plugins.defenses.cofedmid import CoFedMID

CLASSES = 5
ONLY_PARTITION = dict(compensation=False, perturbation=False)
ONLY_NOISE = dict(partition=False, compensation=False)


def facts(**given) -> Federation:
    return facts_of(50, **{"rounds": 20, "n_classes": CLASSES, **given})


def coalition(members=(0, 2), weights=None, t=0, key=1, present=None, **given) -> CoalitionContext:
    weights = weights or (1 / 4,) * len(members)
    sizes = tuple(round(400 * w) for w in weights)
    return CoalitionContext(
        key=key,
        device=CPU,
        federation=facts(**given),
        members=members,
        present=present or members,
        sizes=sizes,
        weights=weights,
        round=t,
    )


def own_data(n: int = 100, seed: int = 0) -> MemberData:
    g = torch.Generator().manual_seed(seed)
    return MemberData(torch.randn(n, 3, generator=g), torch.randint(0, CLASSES, (n,), generator=g))


def member(data: MemberData, *, client=0, round=1, key=1, memory=None, seed=0, **given) -> MemberContext:
    memory = {} if memory is None else memory
    return member_context(
        nn.Linear(3, CLASSES), data, facts(**given), weights=seed, key=key, client=client, round=round, epoch=round - 1,
        memory=memory,
    )  # fmt: skip


def begun(given=None, **params) -> CoFedMID:
    defense = CoFedMID(**params)
    defense.begin(coalition(**(given or {})))
    return defense


def started(data: MemberData, **params) -> tuple[CoFedMID, MemberData]:
    defense = begun(**params)
    return defense, defense.prepare(data, member(data))
