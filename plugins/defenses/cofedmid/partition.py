"""Class-guided partition: which classes each member trains on, planned for all rounds before the first."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

Decay = Literal["linear", "cosine", "exponential", "polynomial", "constant"]
Rounding = Literal["nearest", "floor", "ceil"]


def subset_size(t: int, rounds: int, m_max: int, m_min: int, decay: Decay, rounding: Rounding) -> int:
    """m^t, classes per member in round ``t`` (from 1 to ``rounds``): m_max at first, m_min at last.

    Source: CoFedMID section 4.1, linear; its table 13 names the other shapes without formulas, those here are the
    usual ones (half cosine, geometric, quadratic). C4: ``nearest`` rounds a half up.
    """
    s = (t - 1) / (rounds - 1) if rounds > 1 else 0.0
    span = m_max - m_min
    size = {
        "linear": m_max - span * s,
        "cosine": m_min + span * (1 + math.cos(math.pi * s)) / 2,
        "exponential": m_max * (m_min / m_max) ** s,
        "polynomial": m_min + span * (1 - s) ** 2,
        "constant": float(m_max),
    }[decay]
    size = max(float(m_min), round(size, 9))  # 9 digits: 3.5000000001 is 3.5 and rounds like it
    return {"nearest": math.floor(size + 0.5), "floor": math.floor(size), "ceil": math.ceil(size)}[rounding]


def assign_balanced(classes: int, members: int, m: int, rng: np.random.Generator) -> np.ndarray:
    """[members, classes] bool, ``m`` classes a member, of least total overlap.

    C2: the paper's objective, sum over pairs of |S_i & S_j|, is sum over classes of q_c (q_c - 1) / 2 with q_c the members
    that hold class c: least exactly when the q_c differ by at most one. Then every class is held if members * m >=
    classes, and all subsets are disjoint if not. A class goes to the members with most capacity left; ties go to the
    smallest resulting pairwise overlap, then to chance. C5: no assignment keeps every pair's overlap below lambda_theo =
    ceil((d m^2 - N m) / (N (d - 1))); this one stays near it.
    """
    held = np.zeros((members, classes), bool)
    overlap = np.zeros((members, members), int)
    capacity = np.full(members, m)
    low, extra = divmod(members * m, classes)
    for i, c in enumerate(rng.permutation(classes)):
        chosen = _holders(low + (i < extra), capacity, overlap, rng)
        held[chosen, c] = True
        overlap[np.ix_(chosen, chosen)] += 1
        capacity[chosen] -= 1
    return held


def _holders(count: int, capacity: np.ndarray, overlap: np.ndarray, rng: np.random.Generator) -> list[int]:
    chosen: list[int] = []
    tie = rng.permutation(len(capacity))
    for _ in range(count):
        with_chosen = overlap[:, chosen]
        worst, total = with_chosen.max(1, initial=0), with_chosen.sum(1)
        order = np.lexsort((tie, total, worst, -capacity))  # last key first
        chosen.append(next(int(k) for k in order if k not in chosen))
    return chosen


def assign_random(classes: int, members: int, m: int, rng: np.random.Generator) -> np.ndarray:
    """[members, classes] bool: each member's ``m`` classes drawn on their own (CoFedMID table 6, ablation)."""
    held = np.zeros((members, classes), bool)
    for row in held:
        row[rng.choice(classes, m, replace=False)] = True
    return held


def hold_out(y: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """[n] bool: ``count`` samples, in each class its share of them to within one (largest remainders)."""
    labels, sizes = np.unique(y, return_counts=True)
    share = count * sizes / max(1, len(y))
    quota = np.floor(share).astype(int)
    ties = rng.permutation(len(labels))
    for i in np.lexsort((ties, quota - share))[: count - quota.sum()]:
        quota[i] += 1
    held = np.zeros(len(y), bool)
    for label, q in zip(labels, quota, strict=True):
        held[rng.choice(np.flatnonzero(y == label), q, replace=False)] = True
    return held
