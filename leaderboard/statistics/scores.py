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
class EntryScores:
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
    entries: Mapping[Key, EntryScores]
    """each row and attack on the candidates that count for it"""
    position: Mapping[Key, int]
    """of each row and attack in the arrays"""
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
        self.rows = tuple(rows)
        self.units = tuple(units)
        self.population = population
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
        records: dict[Key, LoadedRecord] = {}
        by_target: dict[int, dict[Key, Candidates]] = {target: {} for _, target in units}
        for row in self.rows:
            for attack, entry in row.entries.items():
                loaded = entry.ok(seed)
                if loaded is None:
                    continue
                key = row.label, attack
                records[key] = loaded
                targets = [t.target for t in loaded.record.targets if t.target in by_target]
                for target, c in loaded.candidates_of(targets).items():
                    by_target[target][key] = c
        halves = len({s for s, _ in self.units}) == 1
        for target, candidates in by_target.items():
            if candidates:
                _require_same(candidates, records)
                counted = {k: of_population(c, self.population) for k, c in candidates.items()}
                _add_parts((seed, target), counted, halves, parts)


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
        part = part_of(fold, unit, candidates, mask)
        by_kind = {"all": part, "clean": part, "canary": None}
        if canary.any():
            by_kind["clean"] = part_of(fold, unit, candidates, mask & ~canary)
            by_kind["canary"] = part_of(fold, unit, candidates, mask & canary)
        for kind, kind_parts in parts.items():
            if (part := by_kind[kind]) is not None:
                kind_parts.append(part)


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
    keys_by_kind: dict[bytes, list[Key]] = {}
    for key, c in candidates.items():
        counted = mask & ((c.kind == MEMBER) | (c.kind == OFL))
        kind = np.where(counted, c.kind, EXCLUDED)
        if (kind == MEMBER).any() and (kind == OFL).any():
            kinds[key] = kind
            keys_by_kind.setdefault(kind.tobytes(), []).append(key)
    parts = []
    for keys in keys_by_kind.values():
        same = {key: candidates[key] for key in keys}
        parts.append(_measured(fold, unit, same, kinds[keys[0]]))
    if len(parts) < 2:
        return parts[0] if parts else None
    stacked = np.stack(list(kinds.values()))
    agreed = (stacked == stacked[0]).all(axis=0)
    common = {key: candidates[key] for key in kinds}
    entries: dict[Key, EntryScores] = {}
    for part in parts:
        entries |= part.entries
    common_kind = np.where(agreed, stacked[0], EXCLUDED)
    return replace(_measured(fold, unit, common, common_kind), entries=entries)


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
    position = {key: i for i, key in enumerate(candidates)}
    entries: dict[Key, EntryScores] = {}
    if member.any() and len(ids):
        means, of_members, of_nonmembers = placements(scores, member)
        pulls = _pulls(of_nonmembers)
        if min(member.sum(), len(ids)) > 1:
            aucs = means
            covariance = covariance_of(of_members, of_nonmembers)
        errors = np.sqrt(np.diag(covariance))
        for key, i in position.items():
            sample = Sample(unit[0], scores[i, member], scores[i, ~member], ids)
            entries[key] = EntryScores(float(means[i]), float(errors[i]), sample, pulls[i])
    return Part(
        fold=fold,
        unit=unit,
        entries=entries,
        position=position,
        aucs=aucs,
        covariance=covariance,
        pulls=pulls,
        ids=ids,
    )


def _pulls(below: ndarray) -> ndarray:
    """Return pulls [..., n], given the shares [..., n] of members below each non-member.

    Their squares add up to DeLong's variance from the non-members.
    """
    n = below.shape[-1]
    deviations = below.mean(axis=-1, keepdims=True) - below
    return np.asarray(deviations / np.sqrt(n * max(n - 1, 1)))
