"""The largest AUC and advantage of many looks (rounds, and attacks), and what the same looking finds in shuffled memberships.

Papers report it (MemberShield: Ahmed et al., Neural Networks 2025, section 6.3: "the maximum attacker's advantage and the
highest auR obtained throughout all attacks across all FL rounds"). The maximum of many looks is above one half without any
leak, so it is never to be shown without its null.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedbench.core.contract.candidates import EXCLUDED, MEMBER, OFL
from fedbench.core.metrics.counts import checked
from fedbench.core.metrics.kept import Kept

SHUFFLES = 200
_CHUNK = 200_000  # shuffled memberships held at once: bounds memory, changes no number


@dataclass(frozen=True, kw_only=True)
class Maximum:
    """The largest ``auc`` and, for itself, the largest signed ``advantage`` (max over thresholds of TPR - FPR) of ``looks``
    rounds; ``null_auc`` and ``null_advantage`` [B]: the same under each of B shuffled memberships."""

    auc: float
    advantage: float
    looks: int
    null_auc: np.ndarray
    null_advantage: np.ndarray


def maximum(
    scores: np.ndarray, kind: np.ndarray, rng: np.random.Generator, shuffles: int = SHUFFLES, kept: Kept | None = None
) -> Maximum | None:
    """Over the rounds of ``scores`` [R, n]: members against outside non-members or, where there are none, against all others.

    ``kind``: [n] int, 0 member, 1 outside the federation, 2 another client's, negative excluded. ``rng`` draws one order of all
    n candidates a shuffle, of which the first that count are called members: a generator of one key gives one membership
    whatever the attack, its scores and its rounds are, so that maxima over attacks can be taken shuffle by shuffle; ``kept``
    holds them for the other attacks.
    A row of NaN is a round without the target and no look. None without members or without non-members. Raises ValueError on
    partly non-finite rounds, and when no round is left.
    """
    counts = who_counts(kind)
    member = kind[counts] == MEMBER
    if member.all() or not member.any():
        return None
    rounds = np.atleast_2d(np.asarray(scores, np.float64))[:, counts]
    there = rounds[~np.isnan(rounds).all(axis=1)]
    if len(there) == 0:
        raise ValueError("no round has scores")
    for row in there:
        checked(row, member)
    asked = counts, int(member.sum()), rng, shuffles
    (chance,) = (kept or Kept(0)).draw(rng, (counts.tobytes(), *asked[1::2]), lambda: (shuffled(*asked),))
    flags = np.concatenate([member[None], chance])
    aucs, advantages = _largest(there, flags)
    return Maximum(
        auc=float(aucs[0]), advantage=float(advantages[0]), looks=len(there), null_auc=aucs[1:], null_advantage=advantages[1:]
    )


def who_counts(kind: np.ndarray) -> np.ndarray:
    """[n] bool: members and outside non-members; all that are not excluded where nobody is from outside."""
    kind = np.asarray(kind)
    counts: np.ndarray = (kind == MEMBER) | (kind == OFL) if (kind == OFL).any() else kind != EXCLUDED
    return counts


def shuffled(counts: np.ndarray, members: int, rng: np.random.Generator, n: int = SHUFFLES) -> np.ndarray:
    """[n, m] bool: shuffled memberships of the m candidates that count, ``members`` in each.

    Every shuffle orders all candidates, counting or not: where a defense excludes some, the others keep their order.
    """
    found = np.zeros((n, len(counts)), bool)
    for row in found:
        order = rng.permutation(len(counts))
        row[order[counts[order]][:members]] = True
    return found[:, counts]


def _largest(rounds: np.ndarray, flags: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(AUC [S], advantage [S]): the largest over ``rounds`` [R, m] under each of the memberships ``flags`` [S, m], all of one
    size."""
    members, m = int(flags[0].sum()), flags.shape[1]
    others = m - members
    whole = np.dtype(np.int32 if m * m < 2**31 else np.int64)  # half the memory, where it holds the largest product
    looked = [_descending(row) for row in rounds]
    sums, bests = np.zeros(len(flags)), np.zeros(len(flags), np.int64)
    for rows in _chunks(flags):
        for order, called, weights in looked:
            found: np.ndarray = np.cumsum(flags[rows].take(order, axis=1), axis=1, dtype=whole)  # [s, m] true positives
            if len(called) < m:
                found = found[:, called - 1]
            ranks = found.sum(axis=1, dtype=np.int64) if len(called) == m else np.einsum("sg,g->s", found, weights)
            np.maximum(sums[rows], ranks, out=sums[rows])
            # (TPR - FPR) x members x others = m x true positives - members x all that are called members
            np.multiply(found, m, out=found)
            np.subtract(found, (members * called).astype(whole), out=found)
            np.maximum(bests[rows], found.max(axis=1), out=bests[rows])
    return (sums - members * (members + 1) / 2) / (members * others), bests / (members * others)


def _descending(row: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(order [m] from the largest score down; called [g]: how many a threshold at each distinct score calls members; weights [g]
    of the true positives there: they add up to the members' rank sum, 1 the lowest, ties in the middle).

    A member of rank r (no ties) is a true positive at r thresholds, so that without ties every weight is 1.
    """
    order = np.argsort(-row, kind="stable")
    values = row[order]
    called = np.flatnonzero(np.concatenate([values[1:] != values[:-1], [True]])) + 1
    middle = len(row) + 0.5 - (np.concatenate([[0], called[:-1]]) + called) / 2
    return order, called, middle - np.concatenate([middle[1:], [0.0]])


def _chunks(flags: np.ndarray) -> Iterator[slice]:
    size = max(1, _CHUNK // flags.shape[1])
    for start in range(0, len(flags), size):
        yield slice(start, start + size)
