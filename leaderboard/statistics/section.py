"""Records sorted into the tables of a board: one for each setting, coalition and view; nothing is formatted here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from fedbench.core.metrics import Interval, combined_interval
from fedbench.core.store.reading import LoadedRecord
from fedbench.core.store.record import Group, Score

UNDEFENDED = "none"
MISSING = "missing"  # no record at all: not run yet
_COALITIONS = ("none", "pair", "half", "uniform")

Metric = Literal["auc", "tf01"]
Unit = tuple[int, int]
"""(seed, target): what one value of a cell was measured on"""


@dataclass(frozen=True)
class Cell:
    """One defense against one attack: a record for each seed that has one."""

    attack: str
    records: dict[int, LoadedRecord]
    targets: dict[int, tuple[int, ...]]
    """the table's targets by seed; a record's other targets do not count"""

    @cached_property
    def outcomes(self) -> Counter[str]:
        """How many seeds ended how; a seed without a record is ``missing``."""
        return Counter(self.records[s].record.outcome if s in self.records else MISSING for s in self.targets)

    @property
    def complete(self) -> bool:
        """Every seed and every target of the table has a score."""
        return len(self.units("mix")) == sum(map(len, self.targets.values()))

    @property
    def skipped(self) -> bool:
        """The attack does not apply to this defense, as opposed to having failed on it."""
        return self.outcomes["skipped"] == len(self.targets)

    def ok(self, seed: int) -> LoadedRecord | None:
        """The seed's record, where it has scores."""
        loaded = self.records.get(seed)
        return loaded if loaded is not None and loaded.record.outcome == "ok" else None

    def units(self, group: Group) -> dict[Unit, Score]:
        """The scores over seeds x targets."""
        return {
            (seed, t.target): t.groups[group]
            for seed, targets in self.targets.items()
            if (loaded := self.ok(seed)) is not None
            for t in loaded.record.targets
            if t.target in targets and group in t.groups
        }

    def interval(self, metric: Metric, group: Group = "mix") -> Interval | None:
        """Mean over seeds x targets with its 95 % interval; None where the metric does not apply to any of them."""
        scores = list(self.units(group).values())
        pairs = [(v, getattr(s, f"{metric}_se")) for s in scores if (v := getattr(s, metric)) is not None]
        return interval_of([v for v, _ in pairs], [se for _, se in pairs])


def interval_of(values: Sequence[float], ses: Sequence[float | None]) -> Interval | None:
    """``combined_interval``, or a NaN half-width where a value has no standard error; None of nothing."""
    if not values:
        return None
    known = [se for se in ses if se is not None]
    if len(known) < len(values):
        return Interval(float(np.mean(values)), float("nan"), len(values), between=False)
    return combined_interval(values, known)


@dataclass(frozen=True)
class Row:
    """One defense of a table."""

    label: str
    name: str
    cells: dict[str, Cell]

    @property
    def undefended(self) -> bool:
        """Whether this is the plain federation everything is compared with."""
        return self.name == UNDEFENDED

    @property
    def complete(self) -> bool:
        """Every attack that applies has all its scores; only such a row has a rank."""
        cells = [c for c in self.cells.values() if not c.skipped]
        return bool(cells) and all(c.complete for c in cells)

    @property
    def outcomes(self) -> Counter[str]:
        """How many of the row's (attack, seed) cells ended how."""
        return sum((c.outcomes for c in self.cells.values()), start=Counter())

    @property
    def coalition(self) -> str | None:
        """The coalition its records were trained with (``none``: a server's rule or no defense); None without records."""
        return next((r.record.coalition for c in self.cells.values() for r in c.records.values()), None)

    def means(self, metric: Metric, group: Group = "mix") -> dict[str, float]:
        """Attack -> mean over seeds x targets, for the attacks that have one."""
        found = {a: c.interval(metric, group) for a, c in self.cells.items()}
        return {a: i.mean for a, i in found.items() if i is not None}

    def mean(self, metric: Metric, group: Group = "mix") -> float | None:
        """Mean over attacks."""
        means = list(self.means(metric, group).values())
        return float(np.mean(means)) if means else None

    def worst(self, metric: Metric, group: Group = "mix") -> tuple[str, float] | None:
        """The attack that does best against this defense, and how well it does."""
        means = self.means(metric, group)
        return max(sorted(means.items()), key=lambda item: item[1]) if means else None


@dataclass(frozen=True)
class Table:
    """All defenses of one setting, coalition and view, ranked: complete rows first, lowest worst-case AUC first."""

    suite: str
    setting: str
    coalition: str
    view: str
    attacks: tuple[str, ...]
    rows: tuple[Row, ...]
    targets: dict[int, tuple[int, ...]]

    @property
    def units(self) -> list[Unit]:
        """All (seed, target) of the table."""
        return [(seed, t) for seed, targets in sorted(self.targets.items()) for t in targets]

    @property
    def base(self) -> Row | None:
        """The undefended row."""
        return next((r for r in self.rows if r.undefended), None)

    @property
    def records(self) -> list[LoadedRecord]:
        """Every record that the table shows."""
        return [c.records[s] for r in self.rows for c in r.cells.values() for s in sorted(c.records)]


def build_tables(records: Iterable[LoadedRecord]) -> list[Table]:
    """The tables of a board, in the order of suite, setting, coalition, view.

    A table of coalition C holds the rows of C and, restricted to the targets of C, those that no client defends in: the
    undefended federation and the server's rules, trained once for all coalitions. With such rows alone, the one table is
    that of coalition ``none``.
    """
    current, _ = newest(records)
    tables = []
    for (suite, setting), group in _grouped(current, lambda r: (r.record.suite, r.record.setting)):
        shared, own_rows = _coalition_free(group)
        coalitions = _grouped(own_rows, lambda r: _coalition_order(r.record.coalition)) or [(("", "none"), [])]
        for (_, coalition), own in coalitions:
            targets = _targets(own or shared)
            shown = own + [r for r in shared if r.record.seed in targets]
            views = _views(shown)
            for view in sorted(set(views.values())):
                seen = [r for r in shown if views[r.record.attack.label] == view]
                tables.append(_table(suite, setting, coalition, view, seen, targets))
    return tables


def _coalition_free(group: Sequence[LoadedRecord]) -> tuple[list[LoadedRecord], list[LoadedRecord]]:
    """(rows of every table, rows of their coalition's): the former are of coalition ``none`` and were trained in no other."""
    defending = {r.record.defense.label for r in group if r.record.coalition != "none"}

    def free(r: LoadedRecord) -> bool:
        return r.record.coalition == "none" and (
            r.record.defense.name == UNDEFENDED or r.record.defense.label not in defending
        )

    return [r for r in group if free(r)], [r for r in group if not free(r)]


def newest(records: Iterable[LoadedRecord]) -> tuple[list[LoadedRecord], list[LoadedRecord]]:
    """(current, superseded): of several records of one cell, as a change of code leaves them, the latest counts."""
    by_cell = _grouped(records, _cell_name)
    ordered = [sorted(group, key=lambda r: (r.record.measured.started, r.record.key)) for _, group in by_cell]
    return [g[-1] for g in ordered], [r for g in ordered for r in g[:-1]]


def _cell_name(loaded: LoadedRecord) -> tuple[Any, ...]:
    r = loaded.record
    return r.suite, r.setting, r.coalition, r.defense.label, r.attack.label, r.seed


def _views(records: list[LoadedRecord]) -> dict[str, str]:
    """Attack label -> view. A cell that failed before its attack was made does not know; one with scores does."""
    ordered = sorted(records, key=lambda r: (r.record.outcome == "ok", r.record.utility is not None))
    return {r.record.attack.label: r.record.view for r in ordered}


def _coalition_order(name: str) -> tuple[str, str]:
    return (str(_COALITIONS.index(name)) if name in _COALITIONS else "9"), name


def _targets(records: list[LoadedRecord]) -> dict[int, tuple[int, ...]]:
    """Targets by seed: those that were judged or, where no cell of a seed has scores, the members."""
    found: dict[int, set[int]] = {}
    for loaded in records:
        found.setdefault(loaded.record.seed, set()).update(t.target for t in loaded.record.targets)
    for loaded in records:
        if not found[loaded.record.seed]:
            found[loaded.record.seed] = set(loaded.record.members)
    return {seed: tuple(sorted(targets)) for seed, targets in sorted(found.items())}


def _table(
    suite: str, setting: str, coalition: str, view: str, records: list[LoadedRecord], targets: dict
) -> Table:
    attacks = tuple(sorted({r.record.attack.label for r in records}))
    rows = []
    for label, group in _grouped(records, lambda r: r.record.defense.label):
        by_attack: dict[str, dict[int, LoadedRecord]] = {a: {} for a in attacks}
        for loaded in group:
            by_attack[loaded.record.attack.label][loaded.record.seed] = loaded
        cells = {a: Cell(a, found, targets) for a, found in by_attack.items()}
        rows.append(Row(label, group[0].record.defense.name, cells))
    return Table(suite, setting, coalition, view, attacks, tuple(sorted(rows, key=_rank_key)), targets)


def _rank_key(row: Row) -> tuple:
    worst, mean = row.worst("auc"), row.mean("auc")
    return not row.complete, worst[1] if worst else 2.0, mean if mean is not None else 2.0, row.label


def _grouped(records: Iterable[LoadedRecord], key: Callable[[LoadedRecord], tuple | str]) -> list:
    groups: dict = {}
    for loaded in records:
        groups.setdefault(key(loaded), []).append(loaded)
    return sorted(groups.items(), key=lambda item: item[0])
