"""Every row and attack of a section on the same outside non-members: AUCs with their covariance, and the scores themselves.

A *part* is what a statistic is averaged over: a (seed, target) or, where a section has one seed only, a half of one. Parts
belong to *folds*: seeds, or first and second halves. Whatever an adversary has to choose (the sign of a score, the best of
several attacks) is chosen on the other folds, which are federations, or candidates, that are not judged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Literal

import numpy as np

from fedbench.core import EXCLUDED, MEMBER, OFL, UserError
from fedbench.core.metrics import auc, auc_covariance
from fedbench.core.metrics.delong import covariance_of, placements
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.store.reading import Candidates, LoadedRecord
from fedbench.leaderboard.statistics.row import Row
from fedbench.leaderboard.statistics.sample import Sample, align_all
from fedbench.leaderboard.statistics.spread import Unit

Key = tuple[str, str]
"""(row label, attack)"""
Kept = Literal["all", "clean", "canary"]
"""which candidates: all, or those that are (not) deliberately mislabelled"""


@dataclass(frozen=True)
class Own:
    """One row and attack on all candidates that count for it: AUC, its standard error (NaN of a single candidate), scores,
    and what each non-member contributes to the error (``Measured.pulls``)."""

    auc: float
    error: float
    sample: Sample
    pulls: np.ndarray

    def signed(self, sign: int) -> Sample:
        """The scores with that sign."""
        return self.sample if sign > 0 else self._negated

    @cached_property
    def _negated(self) -> Sample:
        return self.sample.negated()


@dataclass(frozen=True, kw_only=True)
class Part:
    """``own`` by row and attack; ``at``: the position of each in ``aucs`` [V], ``covariance`` [V, V] and ``pulls`` [V, n],
    which are over the candidates that count for every row (NaN where these are too few); ``ids`` [n] of their non-members."""

    fold: int
    unit: Unit
    own: Mapping[Key, Own]
    at: Mapping[Key, int]
    aucs: np.ndarray
    covariance: np.ndarray
    pulls: np.ndarray
    ids: np.ndarray

    @cached_property
    def on_one_scale(self) -> Mapping[Key, Own]:
        """``own``, all of whose samples were aligned at once."""
        align_all(own.sample for own in self.own.values())
        return self.own


def parts_of(rows: Sequence[Row], units: Sequence[Unit], only: Kept = "all") -> list[Part]:
    """All parts, in the order of the units, of the candidates that are ``only`` clean or mislabelled (canaries). UserError when
    two records that should share their candidates do not."""
    return parts_of_kinds(rows, units, (only,))[only]


def parts_of_kinds(rows: Sequence[Row], units: Sequence[Unit], kinds: Sequence[Kept]) -> dict[Kept, list[Part]]:
    """The same of several kinds of candidates; every file is opened once."""
    halves = len({seed for seed, _ in units}) == 1
    found: dict[Kept, list[Part]] = {only: [] for only in kinds}
    for seed, group in groupby(units, key=lambda unit: unit[0]):
        own = list(group)
        judged = _judged(rows, seed, {target for _, target in own})
        for only, parts in found.items():
            parts += [part for unit in own for part in _of_unit(judged, unit, halves, only)]
    return found


Judged = Mapping[Key, tuple[LoadedRecord, Mapping[int, Candidates]]]


def _judged(rows: Sequence[Row], seed: int, targets: Collection[int]) -> Judged:
    """What was said of one seed's targets: every file is opened once."""
    found = {}
    for row in rows:
        for attack, entry in row.entries.items():
            if (loaded := entry.ok(seed)) is not None:
                own = [t.target for t in loaded.record.targets if t.target in targets]
                found[row.label, attack] = loaded, loaded.candidates_of(own)
    return found


def _of_unit(judged: Judged, unit: Unit, halves: bool, only: Kept) -> Iterator[Part]:
    there = {key: (loaded, of[unit[1]]) for key, (loaded, of) in judged.items() if unit[1] in of}
    if not there:
        return
    first, reference = next(iter(there.values()))
    for loaded, candidates in there.values():
        if not np.array_equal(candidates.ids, reference.ids):
            raise UserError(
                f"{first.path} and {loaded.path}: the same setting, seed and target, but other candidates, so they "
                "cannot be compared; move one of them out of the folder, or run the suite again with --rerun always"
            )
    found = {key: candidates for key, (_, candidates) in there.items()}
    every = np.ones(len(reference.ids), bool)
    kept = {"all": every, "clean": ~reference.canary, "canary": reference.canary}[only]
    if not halves:
        yield from part_of(unit[0], unit, found, kept)
        return
    first_half = _first_half(reference.kind, unit)
    yield from part_of(0, unit, found, kept & first_half)
    yield from part_of(1, unit, found, kept & ~first_half)


def _first_half(kind: np.ndarray, unit: Unit) -> np.ndarray:
    """[n] bool: one random half of each kind of candidates, the same for every row and attack."""
    rng = numpy_rng(unit[0], f"halves/{unit[1]}")
    half = np.zeros(len(kind), bool)
    for value in np.unique(kind):
        mine = rng.permutation(np.flatnonzero(kind == value))
        half[mine[: len(mine) // 2]] = True
    return half


def part_of(fold: int, unit: Unit, found: Mapping[Key, Candidates], where: np.ndarray) -> Iterator[Part]:
    """The part of these candidates (``where`` [n] bool) of one unit; nothing where none has members and outside ones."""
    kinds = {key: np.where(where, c.kind, EXCLUDED) for key, c in found.items()}
    kinds = {key: kind for key, kind in kinds.items() if (kind == MEMBER).any() and (kind == OFL).any()}
    if not kinds:
        return
    every, at = np.stack(list(kinds.values())), {key: i for i, key in enumerate(kinds)}
    outside = (every == MEMBER) | (every == OFL)
    counted = outside.all(axis=0) & (every == every[0]).all(axis=0)
    scores, member = np.stack([found[key].scores[counted] for key in kinds]), every[0, counted] == MEMBER
    ids = found[next(iter(at))].ids[counted][~member]
    if min(member.sum(), (~member).sum()) < 2:
        aucs, covariance = np.full(len(at), np.nan), np.full((len(at), len(at)), np.nan)
        pulls = np.full((len(at), len(ids)), np.nan)
        own = {key: _own(unit[0], found[key], kind) for key, kind in kinds.items()}
    else:
        aucs, *placed = placements(scores, member)
        covariance, pulls = covariance_of(*placed), _pulls(placed[1])
        errors = np.sqrt(np.diag(covariance))
        of_members, of_others = (np.ascontiguousarray(scores[:, mask]) for mask in (member, ~member))
        alike = (outside == counted).all(axis=1)
        own = {
            key: Own(
                float(aucs[i]), float(errors[i]), Sample(unit[0], of_members[i], of_others[i], ids), pulls[i],
            ) if alike[i] else _own(unit[0], found[key], kinds[key])
            for key, i in at.items()
        }  # fmt: skip
    yield Part(fold=fold, unit=unit, own=own, at=at, aucs=aucs, covariance=covariance, pulls=pulls, ids=ids)


def _own(seed: int, candidates: Candidates, kind: np.ndarray) -> Own:
    """Over all candidates that count for one row and attack."""
    outside = (kind == MEMBER) | (kind == OFL)
    scores, member = candidates.scores[outside], kind[outside] == MEMBER
    sample = Sample(seed, scores[member], scores[~member], candidates.ids[outside][~member])
    pulls = pulls_of(sample.member, sample.nonmember)
    if min(len(sample.member), len(sample.nonmember)) == 1:
        return Own(auc(scores, member), float("nan"), sample, pulls)
    aucs, covariance = auc_covariance(scores[None], member)
    return Own(float(aucs[0]), float(np.sqrt(covariance[0, 0])), sample, pulls)


def pulls_of(member: np.ndarray, nonmember: np.ndarray) -> np.ndarray:
    """[n] share of members above each non-member less the mean; their squares add up to DeLong's variance of these."""
    ordered = np.sort(member)
    below = (np.searchsorted(ordered, nonmember, "left") + np.searchsorted(ordered, nonmember, "right")) / (2 * len(member))
    return _pulls(below)


def _pulls(below: np.ndarray) -> np.ndarray:
    """[..., n] of the shares [..., n] of members below each non-member."""
    n = below.shape[-1]
    pulls: np.ndarray = (below.mean(axis=-1, keepdims=True) - below) / np.sqrt(n * max(n - 1, 1))
    return pulls
