"""Every row and attack of a section on the same non-members: AUCs with their covariance, and the
scores themselves.

A *part* is what a statistic is averaged over: a (seed, target) or, where a section has one seed
only, a random half of one. Parts belong to *folds*: seeds, or first and second halves. The sign of
a score and the strongest of several attacks are chosen on the other folds, which are federations,
or candidates, that are not judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

import numpy as np
from numpy import ndarray

from fedbench.core import EXCLUDED, IFL, MEMBER, OFL, UserError
from fedbench.core.metrics.roc import covariance_of, placements
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.store.reading import Candidates, LoadedRecord
from fedbench.leaderboard.statistics.intervals import Unit
from fedbench.leaderboard.statistics.rows import DefenseRow
from fedbench.leaderboard.statistics.tf01 import Sample

Key = tuple[str, str]
"""(row label, attack)"""
Population = Literal["outside", "inside", "mix"]
"""which non-members: outside the federation, of other clients, or both in equal shares of all
owners
"""
CandidateFilter = Literal["all", "clean", "canary"]
"""which candidates: all, or those that are (not) deliberately mislabelled"""


@dataclass(frozen=True)
class CellScores:
    """Row and attack on all candidates that count for it."""

    auc: float
    error: float
    """standard error of the AUC, NaN of a single candidate"""
    sample: Sample
    pulls: ndarray
    """contribution of each non-member to the error (``UnitValue.pulls``)"""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Scores of a part; arrays are over the candidates that count for every row, NaN where these
    are too few.
    """

    fold: int
    unit: Unit
    own: Mapping[Key, CellScores]
    """each row and attack on the candidates that count for it"""
    at: Mapping[Key, int]
    """position of each row and attack in the arrays"""
    aucs: ndarray
    """[V]"""
    covariance: ndarray
    """[V, V]"""
    pulls: ndarray
    """[V, n]"""
    ids: ndarray
    """[n] of the non-members"""


class SectionScores:
    """Scores of a section's ``rows`` on its ``units``, read from their files on first access.

    ``population``: the non-members that count.
    """

    def __init__(
        self, rows: Sequence[DefenseRow], units: Sequence[Unit], population: Population = "outside"
    ) -> None:
        self.rows, self.units, self.population = tuple(rows), tuple(units), population
        self._parts: dict[CandidateFilter, list[Part]] | None = None

    def parts(self, kind: CandidateFilter = "all") -> list[Part]:
        """Return the parts on candidates of one kind, in the order of the units; none without
        non-members that count.

        Raises UserError where two records that should share their candidates do not.
        """
        if self._parts is None:
            self._parts = {"all": [], "clean": [], "canary": []}
            for seed, units in groupby(self.units, key=lambda unit: unit[0]):
                self._read(seed, list(units), self._parts)
        return self._parts[kind]

    def forget(self) -> None:
        """Free the memory of the scores; they are read again on access."""
        self._parts = None

    def _read(self, seed: int, units: list[Unit], parts: dict[CandidateFilter, list[Part]]) -> None:
        """Add the parts of a seed, for which every file is opened once."""
        judged: dict[Key, tuple[LoadedRecord, dict[int, Candidates]]] = {}
        for row in self.rows:
            for attack, entry in row.entries.items():
                if (loaded := entry.ok(seed)) is not None:
                    targets = [t.target for t in loaded.record.targets if (seed, t.target) in units]
                    judged[row.label, attack] = loaded, loaded.candidates_of(targets)
        halves = len({seed for seed, _ in self.units}) == 1
        for unit in units:
            records = {key: loaded for key, (loaded, of) in judged.items() if unit[1] in of}
            candidates = {key: judged[key][1][unit[1]] for key in records}
            if candidates:
                _require_same(candidates, records)
                counted = {key: of_population(c, self.population) for key, c in candidates.items()}
                _add_parts(unit, counted, halves, parts)


def of_population(c: Candidates, population: Population) -> Candidates:
    """Turn the non-members of a population into outside ones, and exclude the others. A mix has
    inside ones.
    """
    if population == "outside":
        return c
    member, inside = c.kind == MEMBER, c.kind == IFL
    counts = member | inside
    if population == "mix":
        counts = c.in_mix & (c.kind != EXCLUDED)
    counts &= bool(inside.any())
    return replace(c, kind=np.where(counts, np.where(member, MEMBER, OFL), EXCLUDED))


def _require_same(
    candidates: Mapping[Key, Candidates], records: Mapping[Key, LoadedRecord]
) -> None:
    first = next(iter(candidates))
    for key, of_key in candidates.items():
        if not np.array_equal(of_key.ids, candidates[first].ids):
            raise UserError(
                f"{records[first].stem} and {records[key].stem}: the same setting, seed and "
                "target, but other candidates, so they cannot be compared; move one of them out "
                "of the folder, or run the suite again with --rerun always"
            )


def _add_parts(
    unit: Unit,
    candidates: Mapping[Key, Candidates],
    halves: bool,
    parts: dict[CandidateFilter, list[Part]],
) -> None:
    """Add the part of a unit, or one for each half of its candidates."""
    first = next(iter(candidates.values()))
    canary = first.canary
    folds = {unit[0]: np.ones_like(canary)}
    if halves:
        half = _first_half(first.kind, unit)
        folds = {0: half, 1: ~half}
    for fold, mask in folds.items():
        every = part_of(fold, unit, candidates, mask)
        clean, mislabelled = every, None
        if canary.any():
            clean = part_of(fold, unit, candidates, mask & ~canary)
            mislabelled = part_of(fold, unit, candidates, mask & canary)
        parts["all"] += [every] if every else []
        parts["clean"] += [clean] if clean else []
        parts["canary"] += [mislabelled] if mislabelled else []


def _first_half(kind: ndarray, unit: Unit) -> ndarray:
    """[n] bool: a random half of each kind of candidates, the same for every row and attack."""
    rng = numpy_rng(unit[0], f"halves/{unit[1]}")
    half = np.zeros(len(kind), bool)
    for value in np.unique(kind):
        of_kind = rng.permutation(np.flatnonzero(kind == value))
        half[of_kind[: len(of_kind) // 2]] = True
    return half


def part_of(
    fold: int, unit: Unit, candidates: Mapping[Key, Candidates], mask: ndarray
) -> Part | None:
    """Part of these candidates (``mask`` [n] bool) of one unit; None without members or without
    outside non-members.
    """
    kinds: dict[Key, ndarray] = {}
    alike: dict[bytes, list[Key]] = {}
    for key, c in candidates.items():
        counted = mask & ((c.kind == MEMBER) | (c.kind == OFL))
        kind = np.where(counted, c.kind, EXCLUDED)
        if (kind == MEMBER).any() and (kind == OFL).any():
            kinds[key] = kind
            alike.setdefault(kind.tobytes(), []).append(key)
    parts = [
        _measured(fold, unit, {key: candidates[key] for key in keys}, kinds[keys[0]])
        for keys in alike.values()
    ]
    if len(parts) > 1:
        every = np.stack(list(kinds.values()))
        of_all = np.where((every == every[0]).all(axis=0), every[0], EXCLUDED)
        common = _measured(fold, unit, {key: candidates[key] for key in kinds}, of_all)
        own: dict[Key, CellScores] = {}
        for part in parts:
            own |= part.own
        return replace(common, own=own)
    return parts[0] if parts else None


def _measured(fold: int, unit: Unit, candidates: Mapping[Key, Candidates], kind: ndarray) -> Part:
    """Part of all rows and attacks on the same candidates; ``kind`` [n]: of each, or that it does
    not count.
    """
    counted = kind != EXCLUDED
    member = kind[counted] == MEMBER
    scores = np.stack([c.scores[counted] for c in candidates.values()])
    ids = next(iter(candidates.values())).ids[counted][~member]
    rows = len(candidates)
    aucs = np.full(rows, np.nan)
    covariance = np.full((rows, rows), np.nan)
    pulls = np.full((rows, len(ids)), np.nan)
    at = {key: i for i, key in enumerate(candidates)}
    own: dict[Key, CellScores] = {}
    if member.any() and len(ids):
        means, of_members, of_nonmembers = placements(scores, member)
        pulls = _pulls(of_nonmembers)
        if min(member.sum(), len(ids)) > 1:
            aucs, covariance = means, covariance_of(of_members, of_nonmembers)
        errors = np.sqrt(np.diag(covariance))
        for key, i in at.items():
            sample = Sample(unit[0], scores[i, member], scores[i, ~member], ids)
            own[key] = CellScores(float(means[i]), float(errors[i]), sample, pulls[i])
    return Part(
        fold=fold, unit=unit, own=own, at=at, aucs=aucs, covariance=covariance, pulls=pulls, ids=ids
    )


def pulls_of(member: ndarray, nonmember: ndarray) -> ndarray:
    """[n] share of members above each non-member less the mean; their squares add up to DeLong's
    variance of these.
    """
    scores = np.concatenate([member, nonmember])
    return _pulls(placements(scores, np.arange(len(scores)) < len(member))[2][0])


def _pulls(below: ndarray) -> ndarray:
    """[..., n] of the shares [..., n] of members below each non-member."""
    n = below.shape[-1]
    return np.asarray((below.mean(axis=-1, keepdims=True) - below) / np.sqrt(n * max(n - 1, 1)))
