"""The supervised adversary: it knows the membership of one half of a target's candidates and is judged on the other half.

Each half is scored by a copy of the attack that was fitted to the other one. Two fitted models need not share a scale, and one
that learnt from more members answers higher everywhere; so a score is a candidate's rank within its half.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np

from fedbench.core.apart.channel import pass_on_interrupt
from fedbench.core.contract.attack import Attack, Observations
from fedbench.core.contract.candidates import EXCLUDED, MEMBER
from fedbench.core.contract.errors import SkipCell, UserError
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.population.target import Target
from fedbench.core.words.explain import told

NOTE = "knows the membership of half of the candidates"


def in_second_half(kind: np.ndarray, names: np.ndarray, seed: int, target: Target) -> np.ndarray:
    """[n] bool: which half each candidate is in, the same for every attack.

    ``kind``: [n] MEMBER, OFL, IFL or EXCLUDED; each is cut in two, keyed by seed and target. ``names``: [n] what the candidates
    are called: the cut does not depend on their order. Raises ``SkipCell`` where a half has not two members and two others.
    """
    rng = numpy_rng(seed, "halves", client=target.code)
    second = np.zeros(len(kind), bool)
    for one in np.unique(kind):
        mine = np.flatnonzero(kind == one)
        mine = mine[np.argsort(names[mine])]
        second[rng.permutation(mine)[: len(mine) // 2]] = True
    counted = kind != EXCLUDED
    for half in (second & counted, ~second & counted):
        members, others = int((kind[half] == MEMBER).sum()), int((kind[half] != MEMBER).sum())
        if min(members, others) < 2:
            raise SkipCell(
                f"half of the candidates of {target.words()} has {members} members and {others} non-members; an attack that "
                "knows half of them needs two of each"
            )
    return second


def fresh(attack: Attack) -> Attack:
    """A copy that has learnt nothing: what it keeps of one half never reaches the candidates of that half."""
    try:
        return deepcopy(attack)
    except Exception as error:
        pass_on_interrupt(error)
        raise UserError(
            f"it knows half of the candidates, and so is copied before each fit, but cannot be ({told(error)}); keep plain "
            "values on self before fit"
        ) from error


def part_of(seen: Observations, where: np.ndarray) -> Observations:
    """What is seen of the candidates at positions ``where``, as copies: nothing of the others is behind them."""
    signals = {name: a[:, :, where] if a.shape[2] > 1 else a.copy() for name, a in seen.signals.items()}
    models = seen.shadow_models
    if models is not None:
        models = replace(
            models, logits=models.logits[:, where], target_logits=models.target_logits[where], model_of=models.model_of[where]
        )
    return replace(seen, signals=signals, shadow_models=models)


def ranks(scores: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """[..., n]: each score's mid-rank among those that count, over their number plus one; what is not finite stays so.

    A candidate that does not count is placed among them and moves nobody.
    """
    out = np.array(scores, dtype=np.float64)
    for row in out.reshape(-1, out.shape[-1]):
        there = np.isfinite(row)
        among = np.sort(row[there & counted])
        below, upto = np.searchsorted(among, row[there]), np.searchsorted(among, row[there], side="right")
        row[there] = (below + upto + 1) / 2 / (len(among) + 1)
    return out
