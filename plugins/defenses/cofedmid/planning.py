"""What can be settled before the first round: how many classes, which ones, from when on samples are recycled."""

from __future__ import annotations

import math

import numpy as np

from fedbench.core import CoalitionContext, Federation, UserError
from fedbench.plugins.defenses.cofedmid import partition
from fedbench.plugins.defenses.cofedmid.params import CoFedMIDParams

_RECYCLE_FROM = 10  # the paper's t', of 100 rounds


def class_count(given: float, n_classes: int) -> int:
    """How many of ``n_classes`` classes ``given`` stands for: up to 1 a share, rounded half up (C4), at least one class."""
    return max(1, math.floor(round(given * n_classes, 9) + 0.5)) if given <= 1 else int(given)


def class_limits(p: CoFedMIDParams, n_classes: int) -> tuple[int, int]:
    """(m_max, m_min) in classes; ``UserError`` where there are fewer classes, or where members would get more and more."""
    m_max, m_min = class_count(p.m_max, n_classes), class_count(p.m_min, n_classes)
    for name, given, found in (("m_max", p.m_max, m_max), ("m_min", p.m_min, m_min)):
        if found > n_classes:
            raise UserError(
                f"cofedmid: {name} {given:g} asks for {found} classes, and there are {n_classes}: ask for at most {n_classes}, "
                "or for a share of them (up to 1)"
            )
    if m_min > m_max:
        raise UserError(
            f"cofedmid: of {n_classes} classes m_min {p.m_min:g} is {m_min} and m_max {p.m_max:g} is {m_max}, so that members "
            "would get more classes over the rounds: lower m_min or raise m_max"
        )
    return m_max, m_min


def sizes(p: CoFedMIDParams, federation: Federation) -> list[int]:
    """[T]: m^t, classes a member has in each round."""
    limits = class_limits(p, federation.n_classes)
    rounds = federation.rounds
    return [partition.subset_size(t, rounds, *limits, p.decay, p.m_round) for t in range(1, rounds + 1)]


def plan_classes(p: CoFedMIDParams, ctx: CoalitionContext) -> np.ndarray:
    """[T, d, N] bool: the classes of each of the d members in each round, drawn anew every round (C3: no fixed mapping).

    C1: where d m^t < N no plan covers all classes (a pair on CIFAR-100 from round 3 on, and algorithm 1 would not end):
    as many as possible, or ``UserError`` (``coverage: strict``).
    """
    n, d = ctx.federation.n_classes, len(ctx.members)
    assign = partition.assign_balanced if p.assign == "balanced" else partition.assign_random
    plan = []
    for t, m in enumerate(sizes(p, ctx.federation), 1):
        if p.coverage == "strict" and d * m < n:
            members = "1 member" if d == 1 else f"{d} members"
            raise UserError(
                f"cofedmid: from round {t} on, {members} x {m} classes cannot cover all {n} classes, which coverage strict "
                "demands: raise m_min, let more clients defend, or set coverage max_if_infeasible"
            )
        plan.append(assign(n, d, m, ctx.rng))
    return np.stack(plan)


def first_recycling(p: CoFedMIDParams, rounds: int) -> int:
    """t', the first round that recycles, itself included (C12); ``UserError`` if it is after the last of ``rounds``."""
    if p.recycle_from is None:
        return min(_RECYCLE_FROM, rounds)
    if p.recycle_from > rounds:
        raise UserError(
            f"cofedmid: recycle_from {p.recycle_from} is after the last round, {rounds}: start earlier, or set compensation false"
        )
    return p.recycle_from


def thirds(p: CoFedMIDParams, rounds: int) -> tuple[range, range]:
    """The first and the last third of the rounds that recycle: early and late; at least one round each."""
    first = first_recycling(p, rounds)
    third = max(1, (rounds - first + 1) // 3)
    return range(first, first + third), range(rounds - third + 1, rounds + 1)
