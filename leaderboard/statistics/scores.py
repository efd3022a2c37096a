"""Every row and attack of a section on the same non-members: AUCs with what each candidate adds to
their error, and the scores themselves.

A *part* is what a statistic is averaged over: a (seed, target) or, where a section has one seed
only, a random half of one. Parts belong to *folds*: seeds, or first and second halves. The sign of
a score and the strongest of several attacks are chosen on the other folds, which are federations,
or candidates, that are not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy import ndarray

from fedbench.core import EXCLUDED, IFL, MEMBER, OFL, UserError
from fedbench.core.metrics.roc import placement_counts
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
    below: ndarray
    """[m + n] as of :class:`Part`"""
    factor: float = 1.0
    """as of :meth:`SectionScores.factor`"""

    @property
    def pulls(self) -> ndarray:
        """[n] contribution of each non-member to the error (``UnitValue.pulls``)."""
        m = len(self.sample.member)
        return -self.factor * deviations(self.below[m:] / (2 * m))


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
    factors: ndarray
    """[V] of the errors (:meth:`SectionScores.factor`)"""
    aucs: ndarray
    """[V]"""
    below: ndarray
    """[V, m + n] twice the number of non-members below each member, then of members below each
    non-member, equal ones once
    """
    ids: ndarray
    """[n] of the non-members, numbered from 0 in the seed"""

    @property
    def members(self) -> int:
        """Number of members."""
        return int(self.below.shape[1]) - len(self.ids)

    def pulls(self, positions: Sequence[int]) -> ndarray:
        """Return the contributions [v, m + n] of each member and non-member to these AUCs; products
        of rows are covariances.
        """
        pulls = _pulls(self.below[positions], self.members)
        return np.asarray(self.factors[positions, None] * pulls)


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

    @property
    def base(self) -> DefenseRow | None:
        """The undefended row; None where it is refuted."""
        return next((row for row in self.rows if row.undefended and not row.refuted), None)

    @cached_property
    def targets(self) -> dict[int, list[int]]:
        """Seed -> its targets, in the order of the units."""
        targets: dict[int, list[int]] = {}
        for seed, target in self.units:
            targets.setdefault(seed, []).append(target)
        return targets

    @property
    def halves(self) -> bool:
        """Whether folds are halves of the candidates of one seed."""
        return len(self.targets) == 1

    @property
    def chooses_signs(self) -> bool:
        """Whether an adversary decides on other folds if low scores mean members."""
        return self.population == "outside"

    def factor(self, attack: str) -> float:
        """Return the factor of an attack's errors: 1 where federations do not judge each other."""
        return 1.0

    def parts(self, kind: CandidateFilter) -> list[Part]:
        """Return the parts on candidates of one kind, in the order of the units; none without
        non-members that count.

        Raises UserError where two records that should share their candidates do not.
        """
        if kind not in self._parts:
            parts: dict[CandidateFilter, list[Part]] = {"clean": [], "canary": []}
            if kind == "all":
                parts = {"all": []}
            for seed, targets in self.targets.items():
                self._read(seed, targets, parts)
            self._parts |= parts
        return self._parts[kind]

    def forget(self, but: CandidateFilter | None = None) -> None:
        """Free the memory of the scores, ``but`` that of one kind; they are read again on
        access.
        """
        self._parts = {kind: parts for kind, parts in self._parts.items() if kind == but}

    def _read(
        self, seed: int, targets: Sequence[int], parts: dict[CandidateFilter, list[Part]]
    ) -> None:
        """Add the parts of a seed."""
        by_target = self.candidates(seed, targets)
        if not by_target:
            return
        ids = numbered([next(iter(of_key.values())).ids for of_key in by_target.values()])
        for (target, candidates), of_target in zip(by_target.items(), ids, strict=True):
            counted = {}
            for key, c in candidates.items():
                counted[key] = replace(of_population(c, self.population), ids=of_target)
            self._add((seed, target), counted, parts)

    def _add(
        self,
        unit: Unit,
        candidates: Mapping[Key, Candidates],
        parts: dict[CandidateFilter, list[Part]],
    ) -> None:
        """Add the part of a unit, or one for each half of its candidates."""
        first = next(iter(candidates.values()))
        canary = first.canary
        folds = {unit[0]: np.ones_like(canary)}
        if self.halves:
            half = _first_half(first.kind, unit)
            folds = {0: half, 1: ~half}
        for fold, mask in folds.items():
            masks = {"all": mask, "clean": mask & ~canary, "canary": mask & canary}
            for kind, kind_parts in parts.items():
                part = part_of(fold, unit, candidates, masks[kind], self.factor)
                if part is not None:
                    kind_parts.append(part)

    def candidates(
        self, seed: int, targets: Sequence[int]
    ) -> Mapping[int, Mapping[Key, Candidates]]:
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


def _first_half(kind: ndarray, unit: Unit) -> ndarray:
    """[n] bool: a random half of each kind of candidates, the same for every row and attack."""
    rng = numpy_rng(unit[0], f"halves/{unit[1]}")
    half = np.zeros(len(kind), bool)
    for value in np.unique(kind):
        of_kind = rng.permutation(np.flatnonzero(kind == value))
        half[of_kind[: len(of_kind) // 2]] = True
    return half


def part_of(
    fold: int,
    unit: Unit,
    candidates: Mapping[Key, Candidates],
    mask: ndarray,
    factor: Callable[[str], float],
) -> Part | None:
    """Part of these candidates (``mask`` [n] bool) of one unit; None without members or without
    outside non-members. ``factor``: of the errors of an attack.
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
        factors = [factor(attack) for _, attack in keys]
        entries |= zip(keys, _entries(unit[0], placed, factors), strict=True)
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
        factors=np.array([factor(attack) for _, attack in keys]),
        aucs=np.full(len(keys), np.nan) if placed.few else placed.aucs,
        below=placed.below,
        ids=placed.ids,
    )


class _Placed(NamedTuple):
    """V rows and attacks on the same candidates."""

    scores: ndarray
    """[V, m + n], members first"""
    ids: ndarray
    """[n] of the non-members"""
    aucs: ndarray
    """[V], NaN without members or non-members"""
    below: ndarray
    """[V, m + n] as of :class:`Part`"""

    @property
    def few(self) -> bool:
        """Whether there is a single candidate of a class, so that no error is known, or none."""
        n = len(self.ids)
        return bool(min(n, self.scores.shape[1] - n) < 2)


def _placed(candidates: Sequence[Candidates], kind: ndarray) -> _Placed:
    """Place scores among each other; ``kind`` [n]: of each candidate, or that it does not count."""
    members, nonmembers = np.flatnonzero(kind == MEMBER), np.flatnonzero(kind == OFL)
    counted = np.concatenate([members, nonmembers])
    scores = np.stack([c.scores[counted] for c in candidates])
    ids = candidates[0].ids[nonmembers]
    m, n = len(members), len(nonmembers)
    if not m or not n:
        nothing = np.full(len(scores), np.nan)
        return _Placed(scores, ids, nothing, np.zeros(scores.shape, np.uint8))
    counts = placement_counts(scores, np.arange(m + n) < m)
    aucs = counts[0].sum(axis=1) / (2 * m * n)
    # a board has many: as few bytes as hold them
    below = np.concatenate(counts, axis=1).astype(np.min_scalar_type(2 * max(m, n)))
    return _Placed(scores, ids, aucs, below)


def _entries(seed: int, placed: _Placed, factors: Sequence[float]) -> Iterator[EntryScores]:
    m = placed.scores.shape[1] - len(placed.ids)
    errors = factors * np.linalg.norm(_pulls(placed.below, m), axis=1)
    if placed.few:
        errors[:] = np.nan
    for i, auc in enumerate(placed.aucs):
        scores = placed.scores[i]
        sample = Sample(seed, scores[:m], scores[m:], placed.ids)
        yield EntryScores(float(auc), float(errors[i]), sample, placed.below[i], factors[i])


def _pulls(below: ndarray, m: int) -> ndarray:
    """Return pulls [..., m + n] of an AUC, given twice the numbers of the other class below each
    member and non-member. Their squares add up to DeLong's variance.
    """
    n = below.shape[-1] - m
    gains = deviations(below[..., :m] / (2 * n))
    losses = deviations(below[..., m:] / (2 * m))
    return np.concatenate([gains, -losses], axis=-1)


def deviations(values: ndarray) -> ndarray:
    """[..., n] values minus their mean, in the scale of its standard error."""
    n = values.shape[-1]
    distances = values - values.mean(axis=-1, keepdims=True)
    return np.asarray(distances / np.sqrt(n * max(n - 1, 1)))
