"""What a results folder says, cell by cell: its values a seed, and what makes them comparable. A baseline is one in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fedbench.core import UserError
from fedbench.core.store.reading import LoadedRecord
from fedbench.leaderboard.document import source_of
from fedbench.leaderboard.gate.identity import Identity, of_cell
from fedbench.leaderboard.gate.measures import ACCURACY, Values, accuracy_of, definitions, values_of
from fedbench.leaderboard.statistics.rows import adversary_of


class Key(NamedTuple):
    """A cell over all its seeds. ``attack`` and ``view`` are empty for the run itself, which has an accuracy and no scores; a run
    that an active attack was trained inside of is that ``adversary``'s."""

    setting: str
    coalition: str
    defense: str
    attack: str
    view: str
    adversary: str = ""

    def __str__(self) -> str:
        inside = f" under {self.adversary}" if self.adversary else ""
        against = f" vs {self.attack} ({self.view})" if self.attack else ""
        return f"{self.setting}/{self.coalition} {self.defense}{inside}{against}"


@dataclass(frozen=True)
class Cell:
    """``identities`` by seed: see ``gate/identity.py``."""

    key: Key
    identities: Mapping[int, Identity]
    values: Values


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """``made``: versions and machines behind it; ``definitions`` of the measures; ``unscored``: why a cell has no scores, by
    seed (of a folder; a file holds none)."""

    suite: str
    made: Mapping[str, Sequence[str]]
    definitions: Mapping[str, str]
    cells: Mapping[Key, Cell]
    unscored: Mapping[Key, Mapping[int, str]] = field(default_factory=dict)

    @property
    def seeds(self) -> list[int]:
        """All of them."""
        return sorted({seed for cell in self.cells.values() for seed in cell.identities})


def snapshot_of(results: Path) -> Snapshot:
    """Of the records of the folder's last plan, whose numbers are counted again from their scores first.

    Raises ``UserError`` for records that cannot be used, that have no identity, or of several suites.
    """
    records = source_of(results).newest[0]
    suites = sorted({r.record.suite for r in records})
    if len(suites) > 1:
        raise UserError(f"{results}: holds records of the suites {', '.join(suites)}; a baseline is of one")
    scored = _by_key((r for r in records if r.record.outcome == "ok"), _key)
    cells = {key: Cell(key, _identities(own), values_of(own)) for key, own in scored.items()}
    runs = _by_key((r for own in scored.values() for r in own.values()), _run_key)
    cells |= {key: _run_cell(key, own) for key, own in runs.items()}
    unscored = _by_key((r for r in records if r.record.outcome != "ok"), _key)
    return Snapshot(
        suite=suites[0], made=_made(records), definitions=definitions(), cells=dict(sorted(cells.items())),
        unscored={key: {s: _why(r) for s, r in own.items()} for key, own in unscored.items()},
    )  # fmt: skip


def failures(snapshot: Snapshot) -> list[str]:
    """Cells that ought to have scores: not those that an attack does not apply to, nor those that diverged."""
    return [
        f"{key} seed {seed} {why}"
        for key, seeds in snapshot.unscored.items() for seed, why in seeds.items() if why.startswith(("failed", "timeout"))
    ]  # fmt: skip


def _key(loaded: LoadedRecord) -> Key:
    r = loaded.record
    return Key(r.setting, r.coalition, r.defense.label, r.attack.label, r.view, adversary_of(loaded) or "")


def _run_key(loaded: LoadedRecord) -> Key:
    return _key(loaded)._replace(attack="", view="")


def _by_key(records: Iterable[LoadedRecord], key_of: Callable[[LoadedRecord], Key]) -> dict[Key, dict[int, LoadedRecord]]:
    found: dict[Key, dict[int, LoadedRecord]] = {}
    for loaded in records:
        found.setdefault(key_of(loaded), {}).setdefault(loaded.record.seed, loaded)
    return found


def _identities(records: Mapping[int, LoadedRecord]) -> dict[int, Identity]:
    return {seed: of_cell(loaded.record.identity.model_dump()) for seed, loaded in records.items()}


def _run_cell(key: Key, records: Mapping[int, LoadedRecord]) -> Cell:
    identities = {seed: {"run": identity["run"]} for seed, identity in _identities(records).items()}
    return Cell(key, identities, {ACCURACY: {seed: accuracy_of(loaded) for seed, loaded in sorted(records.items())}})


def _why(loaded: LoadedRecord) -> str:
    return f"{loaded.record.outcome}: {loaded.record.reason or 'no reason given'}"


def _made(records: Sequence[LoadedRecord]) -> dict[str, list[str]]:
    facts = ("fedbench", "python", "torch", "numpy", "cpu_type", "device", "dtype", "threads", "deterministic")
    return {name: sorted({str(getattr(r.record.provenance, name)) for r in records}) for name in facts}
