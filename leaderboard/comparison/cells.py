"""Cells of a set of records as they are compared: values by seed, and identities that make them
comparable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fedbench.core.run.resume import differences
from fedbench.core.store.reading import LoadedRecord
from fedbench.core.store.record import Utility
from fedbench.core.store.run_file import digest_of_arrays
from fedbench.leaderboard.comparison.measures import (
    ACCURACY,
    LOSS,
    OF_THE_GATE,
    UTILITY,
    Values,
    accuracy_of,
    values_of,
)
from fedbench.leaderboard.statistics.grouping import build_sections
from fedbench.leaderboard.statistics.rows import adversary_of

Identity = dict[str, Any]
"""``run``, ``attack`` and ``signals`` of a record's identity, as JSON values; of a run ``run``
alone
"""
_PROVENANCE = (
    "fedbench",
    "python",
    "torch",
    "numpy",
    "scipy",
    "scikit_learn",
    "cpu_type",
    "device",
    "dtype",
    "threads",
    "deterministic",
)


class Key(NamedTuple):
    """A cell over all its seeds."""

    setting: str
    coalition: str
    defense: str
    attack: str
    """empty, as ``view``, of the run itself, which has an accuracy and no scores"""
    view: str
    adversary: str = ""
    """the active attack inside of the training"""

    def __str__(self) -> str:
        inside = f" under {self.adversary}" if self.adversary else ""
        against = f" vs {self.attack} ({self.view})" if self.attack else ""
        return f"{self.setting}/{self.coalition} {self.defense}{inside}{against}"


@dataclass(frozen=True)
class Cell:
    """Everything that is compared of a cell, by seed."""

    key: Key
    identities: Mapping[int, Identity]
    digests: Mapping[int, str]
    """of the candidates and their scores, or of a run's test answers"""
    values: Values


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The cells of one side."""

    suite: str
    made: Mapping[str, Sequence[str]]
    """versions and machines"""
    cells: Mapping[Key, Cell]
    unscored: Mapping[Key, Mapping[int, str]] = field(default_factory=dict)
    """why a cell has no scores, by seed; files hold none"""
    refuted: Mapping[Key, str] = field(default_factory=dict)
    """runs that claim a smaller epsilon than their coins show, with both; files hold none"""

    @property
    def seeds(self) -> list[int]:
        """Return the seeds of all cells."""
        return sorted(set().union(*(cell.identities for cell in self.cells.values())))


Seeds = dict[int, LoadedRecord]


def snapshot_of(records: Sequence[LoadedRecord]) -> Snapshot:
    """Return the cells of the records of one suite, with the measures of the gate."""
    scored: dict[Key, Seeds] = {}
    runs: dict[Key, Seeds] = {}
    unscored: dict[Key, dict[int, str]] = {}
    for loaded in records:
        r, key = loaded.record, key_of(loaded)
        if r.outcome == "ok":
            scored.setdefault(key, {}).setdefault(r.seed, loaded)
            runs.setdefault(run_of(key), {}).setdefault(r.seed, loaded)
        else:
            reason = f"{r.outcome}: {r.reason or 'no reason given'}"
            unscored.setdefault(key, {}).setdefault(r.seed, reason)
    cells = [scored_cell(key, seeds) for key, seeds in scored.items()]
    cells += [run_cell(key, seeds) for key, seeds in runs.items()]
    return Snapshot(
        suite=records[0].record.suite,
        made={name: _versions(records, name) for name in _PROVENANCE},
        cells={cell.key: cell for cell in cells},
        unscored=unscored,
        refuted=_refuted(records),
    )


def _refuted(records: Sequence[LoadedRecord]) -> dict[Key, str]:
    refuted = {}
    for section in build_sections(records):
        for label, audit in section.privacy_audits.items():
            if audit.refuted:
                key = Key(section.setting, section.coalition, label, "", "")
                refuted[key] = f"claims {audit}"
    return refuted


def _versions(records: Sequence[LoadedRecord], name: str) -> list[str]:
    return sorted({str(getattr(loaded.record.provenance, name)) for loaded in records})


def run_of(key: Key) -> Key:
    """Return the key of the run that a cell is of."""
    return key._replace(attack="", view="")


def failures(snapshot: Snapshot) -> list[str]:
    """Return the cells that ought to have scores: not those that an attack does not apply to, nor
    those that diverged.
    """
    lines = []
    for key, reasons in snapshot.unscored.items():
        for seed, reason in reasons.items():
            if reason.startswith(("failed", "timeout")):
                lines.append(f"{key} seed {seed} {reason}")
    return lines


def key_of(loaded: LoadedRecord) -> Key:
    """Return the names of a record's cell."""
    r = loaded.record
    adversary = adversary_of(loaded) or ""
    return Key(r.setting, r.coalition, r.defense.label, r.attack.label, r.view, adversary)


def scored_cell(
    key: Key,
    seeds: Seeds,
    measures: Iterable[str] = OF_THE_GATE,
    only_target: int | None = None,
) -> Cell:
    """Return the cell of an attack. ``only_target``: without the other targets."""
    targets, digests, identities = {}, {}, {}
    for seed, loaded in seeds.items():
        candidates = loaded.candidates_of([t.target for t in loaded.record.targets])
        # neither analyses nor test answers are part of the scores
        arrays: dict[str, np.ndarray] = {}
        for target, c in candidates.items():
            arrays |= {f"{target}/{name}": array for name, array in vars(c).items()}
        digests[seed] = digest_of_arrays(arrays)[:16]
        identities[seed] = _identity(loaded)
        targets[seed] = [c for t, c in candidates.items() if only_target in (None, t)]
    return Cell(key, identities, digests, values_of(targets, measures))


def run_cell(key: Key, seeds: Seeds) -> Cell:
    """Return the cell of the runs themselves: their accuracy, or another task's utility."""
    identities, digests, utilities = {}, {}, {}
    for seed, loaded in sorted(seeds.items()):
        identities[seed] = {"run": _identity(loaded)["run"]}
        digests[seed] = digest_of_arrays({"test_correct": loaded.test_correct()})[:16]
        utilities[seed] = accuracy_of(loaded)
    name = _measure_name(next(iter(seeds.values())).record.utility)
    return Cell(run_of(key), identities, digests, {name: utilities})


def _measure_name(utility: Utility | None) -> str:
    """Return the name of the measure of a run's utility."""
    if utility is None or utility.name == "accuracy":
        return ACCURACY
    return LOSS if utility.direction == "lower" else UTILITY


def _identity(loaded: LoadedRecord) -> Identity:
    return loaded.record.identity.model_dump(exclude={"analyses"})


# -- differences of identities ---------------------------------------------------------------------

_CODE = {"digest", "target", "distribution", "contract", "engine"}
# what it holds is protocol, whatever its names
_PROTOCOL = ("params", "setting")
_NO_ATTACK = {"name": "", "params": {}, "digest": "", "target": "", "distribution": ""}


def changes(old: Identity, new: Identity) -> tuple[list[str], list[str]]:
    """Return (protocol and data, code) that differ, in words. The machine is not compared."""
    before, now = _comparable(old), _comparable(new)
    if before == now:
        return [], []
    protocol = differences(_without_code(before), _without_code(now))
    return protocol, [text for text in differences(before, now) if text not in protocol]


def _comparable(identity: Identity) -> Identity:
    run = {**identity["run"], "device": ""}
    run["provenance"] = {"dtype": run["provenance"]["dtype"]}
    return {"attack": _NO_ATTACK, "signals": {}, **identity, "run": run, "analyses": {}}


def _without_code(part: Any) -> Any:
    if isinstance(part, list):
        return [_without_code(value) for value in part]
    if not isinstance(part, dict):
        return part
    blank = dict.fromkeys(_CODE & part.keys(), "")
    fields = {n: v if n in _PROTOCOL else _without_code(v) for n, v in part.items()}
    return fields | blank
