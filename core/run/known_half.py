"""Halves of a target's candidates, for attacks that know the membership of one of them."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np

from fedbench.core.contract.attack import EXCLUDED, MEMBER, Attack, Observations
from fedbench.core.contract.errors import SkipCell, UserError
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.population.audit import Target
from fedbench.core.process.channel import pass_on_interrupt
from fedbench.core.words import describe_error

NOTE = "knows the membership of half of the candidates"


def in_second_half(
    kind: np.ndarray,
    names: np.ndarray,
    seed: int,
    target: Target,
) -> np.ndarray:
    """Return [n] bool: which half each candidate is in, the same for every attack.

    Args:
        kind: [n] MEMBER, OFL, IFL or EXCLUDED; each is cut in two, keyed by seed and target.
        names: [n] the candidates' names: the cut does not depend on their order.

    Raises:
        SkipCell: where a half has not two members and two non-members.
    """
    rng = numpy_rng(seed, "halves", client=target.code)
    second = np.zeros(len(kind), bool)
    for value in np.unique(kind):
        positions = np.flatnonzero(kind == value)
        positions = positions[np.argsort(names[positions])]
        second[rng.permutation(positions)[: len(positions) // 2]] = True
    counted = kind != EXCLUDED
    for half in (second & counted, ~second & counted):
        members = int((kind[half] == MEMBER).sum())
        nonmembers = int(half.sum()) - members
        if min(members, nonmembers) < 2:
            raise SkipCell(
                f"half of the candidates of {target.words()} has {members} members and "
                f"{nonmembers} non-members; an attack that knows half of them needs two of each"
            )
    return second


def fresh(attack: Attack) -> Attack:
    """Return a copy that has learnt nothing: what it keeps of one half never reaches the candidates
    of that half.
    """
    try:
        return deepcopy(attack)
    except Exception as error:
        pass_on_interrupt(error)
        raise UserError(
            "it knows half of the candidates, and so is copied before each fit, but cannot be "
            f"({describe_error(error)}); keep plain values on self before fit"
        ) from error


def part_of(observed: Observations, positions: np.ndarray) -> Observations:
    """Return the observations of the candidates at these positions, as copies."""
    signals = {
        name: a[:, :, positions] if a.shape[2] > 1 else a.copy()
        for name, a in observed.signals.items()
    }
    models = observed.shadow_models
    if models is not None:
        models = replace(
            models,
            logits=models.logits[:, positions],
            target_logits=models.target_logits[positions],
            model_of=models.model_of[positions],
        )
    return replace(observed, signals=signals, shadow_models=models)


def ranks(scores: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """Return [..., n] each score's mid-rank among those that count, over their number plus one;
    what is not finite stays so. A candidate that does not count gets a rank and changes none.
    """
    result = np.array(scores, dtype=np.float64)
    for row in result.reshape(-1, result.shape[-1]):
        finite = np.isfinite(row)
        reference = np.sort(row[finite & counted])
        below = np.searchsorted(reference, row[finite])
        upto = np.searchsorted(reference, row[finite], side="right")
        row[finite] = (below + upto + 1) / 2 / (len(reference) + 1)
    return result
