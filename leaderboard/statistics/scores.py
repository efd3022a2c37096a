"""Every row and attack of a section on the same non-members: AUCs with their covariance, and the
scores themselves.

A *part* is what a statistic is averaged over: a (seed, target) or, where a section has one seed
only, a random half of one. Parts belong to *folds*: seeds, or first and second halves. The sign of
a score and the strongest of several attacks are chosen on the other folds, which are federations,
or candidates, that are not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal, NamedTuple

import numpy as np
from numpy import ndarray

from fedbench.core import EXCLUDED, IFL, MEMBER, OFL, UserError
from fedbench.core.metrics.roc import placements
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.store.reading import Candidates, LoadedRecord
from fedbench.leaderboard.statistics.intervals import Unit, numbered
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
    """[n] contribution of each non-member to the error (``UnitValue.pulls``)"""


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
    pulls: ndarray
    """[V, m + n] contribution of each member, then of each non-member: ``pulls @ pulls.T`` is the
    covariance of the AUCs
    """
    ids: ndarray
    """[n] of the non-members, numbered from 0 in the seed"""


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
        self._parts: dict[CandidateFilter, list[Part]] = {}

    def parts(self, kind: CandidateFilter = "all") -> list[Part]:
        """Return the parts on candidates of one kind, in the order of the units; none without
        non-members that count.

        Raises UserError where two records that should share their candidates do not.
        """
        if kind not in self._parts:
            parts: dict[CandidateFilter, list[Part]] = {"clean": [], "canary": []}
            if kind == "all":
                parts = {"all": []}
            for seed, units in groupby(self.units, key=lambda unit: unit[0]):
                self._read(seed, list(units), parts)
            self._parts |= parts
        return self._parts[kind]

    def forget(self) -> None:
        """Free the memory of the scores; they are read again on access."""
        self._parts = {}

    def _read(self, seed: int, units: list[Unit], parts: dict[CandidateFilter, list[Part]]) -> None:
        """Add the parts of a seed."""
        by_target = self.candidates(seed, [target for _, target in units])
        if not by_target:
            return
        halves = len({s for s, _ in self.units}) == 1
        ids = numbered([next(iter(of_key.values())).ids for of_key in by_target.values()])
        for (target, candidates), of_target in zip(by_target.items(), ids, strict=True):
            counted = {}
            for key, c in candidates.items():
                counted[key] = replace(of_population(c, self.population), ids=of_target)
            _add_parts((seed, target), counted, halves, parts)

    def candidates(self, seed: int, targets: Sequence[int]) -> dict[int, Mapping[Key, Candidates]]:
        """Return target -> row and attack -> scored candidates, of the targets with any; every file
        is opened once.
        """
        records: dict[Key, LoadedRecord] = {}
        by_target: dict[int, dict[Key, Candidates]] = {target: {} for target in targets}
        for row in self.rows:
            for attack, entry in row.entries.items():
                loaded = entry.ok(seed)
                if loaded is None:
                    continue
                key = row.label, attack
                records[key] = loaded
                scored = [t.target for t in loaded.record.targets if t.target in by_target]
                for target, c in loaded.candidates_of(scored).items():
                    by_target[target][key] = c
        judged = {target: of_target for target, of_target in by_target.items() if of_target}
        for of_target in judged.values():
            _require_same(of_target, records)
        return judged


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
        masks = {"all": mask, "clean": mask & ~canary, "canary": mask & canary}
        for kind, kind_parts in parts.items():
            if (part := part_of(fold, unit, candidates, masks[kind])) is not None:
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
    if not kinds:
        return None
    entries: dict[Key, EntryScores] = {}
    for keys in keys_by_kind.values():
        placed = _placed([candidates[key] for key in keys], kinds[keys[0]])
        entries |= zip(keys, _entries(unit[0], placed), strict=True)
    keys = list(kinds)
    if len(keys_by_kind) > 1:
        stacked = np.stack(list(kinds.values()))
        agreed = (stacked == stacked[0]).all(axis=0)
        common_kind = np.where(agreed, stacked[0], EXCLUDED)
        placed = _placed([candidates[key] for key in keys], common_kind)
    return Part(
        fold=fold,
        unit=unit,
        entries=entries,
        position={key: i for i, key in enumerate(keys)},
        aucs=np.full(len(keys), np.nan) if placed.few else placed.aucs,
        pulls=placed.pulls,
        ids=placed.ids,
    )


class _Placed(NamedTuple):
    """V rows and attacks on the same candidates."""

    scores: ndarray
    """[V, m + n]"""
    member: ndarray
    """[m + n] bool"""
    ids: ndarray
    """[n] of the non-members"""
    aucs: ndarray
    """[V]"""
    pulls: ndarray
    """[V, m + n] as of :class:`Part`"""

    @property
    def few(self) -> bool:
        """Whether there is a single candidate of a class, so that no error is known, or none."""
        return min(self.member.sum(), len(self.ids)) < 2


def _placed(candidates: Sequence[Candidates], kind: ndarray) -> _Placed:
    """Place scores among each other; ``kind`` [n]: of each candidate, or that it does not count."""
    counted = kind != EXCLUDED
    member = kind[counted] == MEMBER
    scores = np.stack([c.scores[counted] for c in candidates])
    ids = candidates[0].ids[counted][~member]
    if not member.any() or not len(ids):
        nothing = np.full_like(scores, np.nan)
        return _Placed(scores, member, ids, nothing[:, :0], nothing)
    aucs, of_members, of_nonmembers = placements(scores, member)
    return _Placed(scores, member, ids, aucs, _pulls(of_members, of_nonmembers))


def _entries(seed: int, placed: _Placed) -> Iterator[EntryScores]:
    members = placed.scores[:, placed.member]
    nonmembers = placed.scores[:, ~placed.member]
    errors = np.linalg.norm(placed.pulls, axis=1)
    if placed.few:
        errors[:] = np.nan
    of_nonmembers = placed.pulls[:, members.shape[1] :]
    for i, auc in enumerate(placed.aucs):
        sample = Sample(seed, members[i], nonmembers[i], placed.ids)
        yield EntryScores(float(auc), float(errors[i]), sample, of_nonmembers[i])


def _pulls(of_members: ndarray, of_nonmembers: ndarray) -> ndarray:
    """Return pulls [..., m + n] of an AUC, given the shares [..., m] of non-members below each
    member and [..., n] of members below each non-member.

    Their squares add up to DeLong's variance.
    """
    m, n = of_members.shape[-1], of_nonmembers.shape[-1]
    gains = of_members - of_members.mean(axis=-1, keepdims=True)
    losses = of_nonmembers.mean(axis=-1, keepdims=True) - of_nonmembers
    scaled = gains / np.sqrt(m * max(m - 1, 1)), losses / np.sqrt(n * max(n - 1, 1))
    return np.concatenate(scaled, axis=-1)
