"""Every row and attack of a section on the same outside non-members: AUCs with their covariance, and the scores themselves.

A *part* is what a statistic is averaged over: a (seed, target) or, where a section has one seed only, a half of one. Parts
belong to *folds*: seeds, or first and second halves. Whatever an adversary has to choose (the sign of a score, the best of
several attacks) is chosen on the other folds, which are federations, or candidates, that are not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedbench.core import MEMBER, OFL, UserError
from fedbench.core.metrics import auc, auc_covariance
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.store.reading import Candidates, LoadedRecord
from fedbench.leaderboard.statistics.pooled import Sample
from fedbench.leaderboard.statistics.row import Row
from fedbench.leaderboard.statistics.spread import Unit

Key = tuple[str, str]
"""(row label, attack)"""


@dataclass(frozen=True)
class Own:
    """One row and attack on all candidates that count for it: AUC, its standard error (NaN of a single candidate), scores."""

    auc: float
    error: float
    sample: Sample


@dataclass(frozen=True, kw_only=True)
class Part:
    """``own`` by row and attack; ``at``: the position of each in ``aucs`` [V] and ``covariance`` [V, V], which are over the
    candidates that count for every row (NaN where these are too few)."""

    fold: int
    unit: Unit
    own: Mapping[Key, Own]
    at: Mapping[Key, int]
    aucs: np.ndarray
    covariance: np.ndarray


def parts_of(rows: Sequence[Row], units: Sequence[Unit]) -> list[Part]:
    """All parts, in the order of the units. UserError when two records that should share their candidates do not."""
    halves = len({seed for seed, _ in units}) == 1
    return [part for unit in units for part in _of_unit(rows, unit, halves)]


def _of_unit(rows: Sequence[Row], unit: Unit, halves: bool) -> Iterator[Part]:
    judged = dict(_judged(rows, unit))
    if not judged:
        return
    first, reference = next(iter(judged.values()))
    for loaded, candidates in judged.values():
        if not np.array_equal(candidates.ids, reference.ids):
            raise UserError(
                f"{first.path} and {loaded.path}: the same setting, seed and target, but other candidates, so they "
                "cannot be compared; move one of them out of the folder, or run the suite again with --rerun always"
            )
    found = {key: candidates for key, (_, candidates) in judged.items()}
    if not halves:
        yield from _part(unit[0], unit, found, np.ones(len(reference.ids), bool))
        return
    first_half = _first_half(reference.kind, unit)
    yield from _part(0, unit, found, first_half)
    yield from _part(1, unit, found, ~first_half)


def _judged(rows: Sequence[Row], unit: Unit) -> Iterator[tuple[Key, tuple[LoadedRecord, Candidates]]]:
    seed, target = unit
    for row in rows:
        for attack, entry in row.entries.items():
            loaded = entry.ok(seed)
            if loaded is not None and any(t.target == target for t in loaded.record.targets):
                yield (row.label, attack), (loaded, loaded.candidates(target))


def _first_half(kind: np.ndarray, unit: Unit) -> np.ndarray:
    """[n] bool: one random half of each kind of candidates, the same for every row and attack."""
    rng = numpy_rng(unit[0], f"halves/{unit[1]}")
    half = np.zeros(len(kind), bool)
    for value in np.unique(kind):
        mine = rng.permutation(np.flatnonzero(kind == value))
        half[mine[: len(mine) // 2]] = True
    return half


def _part(fold: int, unit: Unit, found: Mapping[Key, Candidates], where: np.ndarray) -> Iterator[Part]:
    kinds = {key: np.where(where, c.kind, -1) for key, c in found.items()}
    own = {key: o for key, c in found.items() if (o := _own(unit[0], c, kinds[key])) is not None}
    if not own:
        return
    every = np.stack([kinds[key] for key in own])
    counted = ((every == MEMBER) | (every == OFL)).all(axis=0) & (every == every[0]).all(axis=0)
    scores, member = np.stack([found[key].scores[counted] for key in own]), every[0, counted] == MEMBER
    if min(member.sum(), (~member).sum()) < 2:
        aucs, covariance = np.full(len(own), np.nan), np.full((len(own), len(own)), np.nan)
    else:
        aucs, covariance = auc_covariance(scores, member)
    at = {key: i for i, key in enumerate(own)}
    yield Part(fold=fold, unit=unit, own=own, at=at, aucs=aucs, covariance=covariance)


def _own(seed: int, candidates: Candidates, kind: np.ndarray) -> Own | None:
    outside = (kind == MEMBER) | (kind == OFL)
    scores, member = candidates.scores[outside], kind[outside] == MEMBER
    few = min(int(member.sum()), int((~member).sum()))
    if few == 0:
        return None
    sample = Sample(seed, scores[member], scores[~member], candidates.ids[outside][~member])
    if few == 1:
        return Own(auc(scores, member), float("nan"), sample)
    aucs, covariance = auc_covariance(scores[None], member)
    return Own(float(aucs[0]), float(np.sqrt(covariance[0, 0])), sample)
