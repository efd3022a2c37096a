"""A threshold from lessons: the one with the largest membership advantage."""

from __future__ import annotations

import numpy as np


def best_threshold(value: np.ndarray, member: np.ndarray) -> float:
    """The tau of the largest TPR - FPR of "member iff value > tau", for ``value`` [n] and ``member`` [n] bool of both kinds.

    tau lies half way between two neighbouring values, or is the largest value. Of several equally good ones the highest:
    who is in doubt is no member. Where nothing beats an advantage of 0, nobody is one.
    Source: Yeom et al., CSF 2018 (the advantage); Song & Mittal, USENIX Security 2021, section 3.2.1 (chosen on shadow data).
    """
    value, member = np.asarray(value, np.float64), np.asarray(member, bool)
    levels, at = np.unique(value, return_inverse=True)
    members = np.bincount(at[member], minlength=len(levels))
    others = np.bincount(at[~member], minlength=len(levels))
    # in whole numbers, so that equal advantages tie: what lies above each level, times the other side's size
    above = (members.sum() - members.cumsum()) * others.sum() - (others.sum() - others.cumsum()) * members.sum()
    best = int(np.flatnonzero(above == above.max())[-1])
    return float(levels[best] if best == len(levels) - 1 else levels[best] / 2 + levels[best + 1] / 2)


def class_thresholds(value: np.ndarray, member: np.ndarray, y: np.ndarray, classes: np.ndarray, least: int) -> dict[int, float]:
    """The best threshold of each of ``classes``, from its samples alone (``y`` [n]).

    A class with fewer than ``least`` members or non-members is left out: the threshold of all samples is for it.
    """
    counts = {c: (int((member & (y == c)).sum()), int((~member & (y == c)).sum())) for c in classes.tolist()}
    return {c: best_threshold(value[y == c], member[y == c]) for c, sides in counts.items() if min(sides) >= least}
