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
from typing import Literal

import numpy as np

from fedbench.core import EXCLUDED, IFL, MEMBER, OFL, UserError
from fedbench.core.metrics.roc import covariance_of, placements
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.store.reading import Candidates, LoadedRecord
from fedbench.leaderboard.statistics.intervals import Unit
from fedbench.leaderboard.statistics.rows import Row
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
    """One row and attack on all candidates that count for it: AUC, its standard error (NaN of a
    single candidate), scores, and the contribution of each non-member to the error
    (``Measured.pulls``).
    """

    auc: float
    error: float
    sample: Sample
    pulls: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Part:
    """``own`` by row and attack; ``at``: the position of each in ``aucs`` [V], ``covariance`` [V,
    V] and ``pulls`` [V, n], which are over the candidates that count for every row (NaN where these
    are too few); ``ids`` [n] of their non-members.
    """

    fold: int
    unit: Unit
    own: Mapping[Key, CellScores]
    at: Mapping[Key, int]
    aucs: np.ndarray
    covariance: np.ndarray
    pulls: np.ndarray
    ids: np.ndarray


class SectionScores:
    """The scores of a section's ``rows`` on its ``units``, read from their files on first access.

    ``population``: the non-members that count.
    """

    def __init__(
        self, rows: Sequence[Row], units: Sequence[Unit], population: Population = "outside"
    ) -> None:
        self.rows, self.units, self.population = tuple(rows), tuple(units), population
        self._parts: dict[CandidateFilter, list[Part]] | None = None

    def parts(self, kind: CandidateFilter = "all") -> list[Part]:
        """Return the parts on candidates of one kind.

        Raises UserError where two records that should share their candidates do not.
        """
        if self._parts is None:
            self._parts = parts_of(self.rows, self.units, self.population)
        return self._parts[kind]

    def forget(self) -> None:
        """Free the memory of the scores; they are read again on access."""
        self._parts = None


def parts_of(
    rows: Sequence[Row], units: Sequence[Unit], population: Population = "outside"
) -> dict[CandidateFilter, list[Part]]:
    """All parts of all candidates, of the clean and of the mislabelled ones, in the order of the
    units; every file is opened once. ``population``: the non-members that count; no part where
    there are none.

    Raises: UserError if two records of one target have different candidates.
    """
    halves = len({seed for seed, _ in units}) == 1
    found: dict[CandidateFilter, list[Part]] = {"all": [], "clean": [], "canary": []}
    for seed, group in groupby(units, key=lambda unit: unit[0]):
        own = list(group)
        judged = {}
        for row in rows:
            for attack, entry in row.entries.items():
                if (loaded := entry.ok(seed)) is not None:
                    targets = [t.target for t in loaded.record.targets if (seed, t.target) in own]
                    found_of = {
                        t: of_population(c, population)
                        for t, c in loaded.candidates_of(targets).items()
                    }
                    judged[row.label, attack] = loaded, found_of
        for unit in own:
            for only, part in _of_unit(judged, unit, halves):
                found[only].append(part)
    return found


def of_population(c: Candidates, population: Population) -> Candidates:
    """The candidates with the non-members of a population as outside ones, and none but these. A
    mix has inside ones.
    """
    if population == "outside":
        return c
    counts = (
        (c.kind == MEMBER) | (c.kind == IFL)
        if population == "inside"
        else c.in_mix & (c.kind != EXCLUDED)
    )
    counts &= bool((c.kind == IFL).any())
    return replace(c, kind=np.where(counts, np.where(c.kind == MEMBER, MEMBER, OFL), EXCLUDED))


def _of_unit(
    judged: Mapping[Key, tuple[LoadedRecord, Mapping[int, Candidates]]], unit: Unit, halves: bool
) -> Iterator[tuple[CandidateFilter, Part]]:
    there = {key: (loaded, of[unit[1]]) for key, (loaded, of) in judged.items() if unit[1] in of}
    if not there:
        return
    first, reference = next(iter(there.values()))
    for loaded, candidates in there.values():
        if not np.array_equal(candidates.ids, reference.ids):
            raise UserError(
                f"{first.stem} and {loaded.stem}: the same setting, seed and target, but other "
                "candidates, so they "
                "cannot be compared; move one of them out of the folder, or run the suite again "
                "with --rerun always"
            )
    found = {key: candidates for key, (_, candidates) in there.items()}
    folds = {unit[0]: np.ones_like(reference.canary)}
    if halves:
        first_half = _first_half(reference.kind, unit)
        folds = {0: first_half, 1: ~first_half}
    for fold, where in folds.items():
        every = list(part_of(fold, unit, found, where))
        mislabelled = reference.canary.any()
        clean = part_of(fold, unit, found, where & ~reference.canary) if mislabelled else every
        canary = part_of(fold, unit, found, where & reference.canary) if mislabelled else ()
        yield from (("all", part) for part in every)
        yield from (("clean", part) for part in clean)
        yield from (("canary", part) for part in canary)


def _first_half(kind: np.ndarray, unit: Unit) -> np.ndarray:
    """[n] bool: one random half of each kind of candidates, the same for every row and attack."""
    rng = numpy_rng(unit[0], f"halves/{unit[1]}")
    half = np.zeros(len(kind), bool)
    for value in np.unique(kind):
        mine = rng.permutation(np.flatnonzero(kind == value))
        half[mine[: len(mine) // 2]] = True
    return half


def part_of(
    fold: int, unit: Unit, found: Mapping[Key, Candidates], where: np.ndarray
) -> Iterator[Part]:
    """The part of these candidates (``where`` [n] bool) of one unit; nothing where none has members
    and outside ones.
    """
    kinds = {
        key: np.where(where & ((c.kind == MEMBER) | (c.kind == OFL)), c.kind, EXCLUDED)
        for key, c in found.items()
    }
    kinds = {
        key: kind for key, kind in kinds.items() if (kind == MEMBER).any() and (kind == OFL).any()
    }
    alike: dict[bytes, list[Key]] = {}
    for key, kind in kinds.items():
        alike.setdefault(kind.tobytes(), []).append(key)
    parts = [
        _measured(fold, unit, {key: found[key] for key in keys}, kinds[keys[0]])
        for keys in alike.values()
    ]
    if len(parts) > 1:
        every = np.stack(list(kinds.values()))
        of_all = np.where((every == every[0]).all(axis=0), every[0], EXCLUDED)
        common = _measured(fold, unit, {key: found[key] for key in kinds}, of_all)
        parts = [replace(common, own={key: own for part in parts for key, own in part.own.items()})]
    yield from parts


def _measured(fold: int, unit: Unit, found: Mapping[Key, Candidates], kind: np.ndarray) -> Part:
    """All rows and attacks on the same candidates; ``kind`` [n]: of each, or that it does not
    count.
    """
    counted, at = kind != EXCLUDED, {key: i for i, key in enumerate(found)}
    member = kind[counted] == MEMBER
    scores, ids = (
        np.stack([c.scores[counted] for c in found.values()]),
        next(iter(found.values())).ids[counted][~member],
    )
    aucs, covariance, pulls = (
        np.full((len(at), *shape), np.nan) for shape in ((), (len(at),), (len(ids),))
    )
    own = {}
    if member.any() and len(ids):
        means, *placed = placements(scores, member)
        pulls = _pulls(placed[1])
        if min(member.sum(), len(ids)) > 1:
            aucs, covariance = means, covariance_of(*placed)
        errors = np.sqrt(np.diag(covariance))
        for key, i in at.items():
            sample = Sample(unit[0], scores[i, member], scores[i, ~member], ids)
            own[key] = CellScores(float(means[i]), float(errors[i]), sample, pulls[i])
    return Part(
        fold=fold, unit=unit, own=own, at=at, aucs=aucs, covariance=covariance, pulls=pulls, ids=ids
    )


def pulls_of(member: np.ndarray, nonmember: np.ndarray) -> np.ndarray:
    """[n] share of members above each non-member less the mean; their squares add up to DeLong's
    variance of these.
    """
    return _pulls(
        placements(
            np.concatenate([member, nonmember]),
            np.arange(len(member) + len(nonmember)) < len(member),
        )[2][0]
    )


def _pulls(below: np.ndarray) -> np.ndarray:
    """[..., n] of the shares [..., n] of members below each non-member."""
    n = below.shape[-1]
    pulls: np.ndarray = (below.mean(axis=-1, keepdims=True) - below) / np.sqrt(n * max(n - 1, 1))
    return pulls
