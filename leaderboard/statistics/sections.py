"""Sections of a board, one for each setting, coalition and view, and what their rows cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, filterfalse
from typing import Any, TypeVar

import numpy as np

from fedbench.core import UserError
from fedbench.core.contract.section import ClientGroup, RowDifference, RowSummary, Sweep
from fedbench.core.metrics import Group, Interval, Score, delta_accuracy, hypervolume, t_interval
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.store.reading import LoadedRecord
from fedbench.core.store.record import Utility
from fedbench.leaderboard.statistics.intervals import Unit, bounded, smallest_shown
from fedbench.leaderboard.statistics.rows import (
    FREE_RIDER,
    PLACEBO,
    UNDEFENDED,
    AttackEntry,
    DefenseRow,
    groups_in,
)
from fedbench.leaderboard.statistics.scores import Population, SectionScores
from fedbench.leaderboard.statistics.verdict import LeakStatistics

_COALITIONS = ("none", "pair", "half", "uniform")
# wall time over CPU time of a training, from which on its machine had something else to do
BUSY = 1.25
Refuted = Callable[[LoadedRecord], bool] | None
"""whether a record was run again here and not reproduced; None: no record"""
RunPairs = list[tuple[LoadedRecord, LoadedRecord]]
Item = TypeVar("Item")
Key = TypeVar("Key", bound=str | int | tuple[Any, ...])


def family(label: str) -> str:
    """Return the common name of the rows of a sweep: ``grad-noise`` for ``grad-noise[sigma=0.1]``
    and for ``grad-noise-0.5``.
    """
    base = label.partition("[")[0]
    head, dash, tail = base.rpartition("-")
    return head if dash and tail.replace(".", "", 1).isdigit() else base


@dataclass(frozen=True, kw_only=True)
class BoardSection:
    """All defenses of one setting, coalition and view."""

    suite: str
    setting: str
    coalition: str
    view: str
    attacks: tuple[str, ...]
    found: tuple[DefenseRow, ...]
    """rows in any order"""
    targets: dict[int, tuple[int, ...]]
    """by seed"""
    comparison: LeakStatistics
    tuning: BoardSection | None = None
    """the same rows on the seeds on which strengths are chosen, where the suite has any"""

    @cached_property
    def rows(self) -> tuple[DefenseRow, ...]:
        """Complete rows first, then the lowest worst case, then the lowest mean; floors last."""

        def order(row: DefenseRow) -> tuple[bool, bool, float, float, str]:
            case = self.comparison.worst_cases.of(row.label)
            worst = case.worst.found.mean if case.worst else 2.0
            mean = case.mean.mean if case.mean else 2.0
            return row.floor, not row.complete, worst, mean, row.label

        return tuple(sorted(self.found, key=order))

    def held_against(self, population: Population) -> BoardSection:
        """Return the section with other non-members."""
        comparison = self.comparison.held_against(population)
        return self if comparison is self.comparison else replace(self, comparison=comparison)

    def row(self, label: str) -> DefenseRow | None:
        """Return the row of that label."""
        return next((r for r in self.found if r.label == label), None)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds in ascending order."""
        return tuple(sorted(self.targets))

    @property
    def where(self) -> str:
        """Setting, coalition and view, for titles; from records."""
        return f"{self.setting}, coalition {self.coalition}, {self.view} view"

    @property
    def units(self) -> list[Unit]:
        """All (seed, target) of the section."""
        return list(self.comparison.scores.units)

    @property
    def base(self) -> DefenseRow | None:
        """The undefended row; None where it is refuted."""
        return self.comparison.base

    @property
    def free_rider(self) -> DefenseRow | None:
        """The row of members that upload nothing."""
        return self._floor(FREE_RIDER)

    def _floor(self, name: str) -> DefenseRow | None:
        return next((r for r in self.found if r.name == name and not r.refuted), None)

    @cached_property
    def plain(self) -> DefenseRow | None:
        """Plain training, which runtime is relative to: the placebo where its times can be compared
        with the undefended run's on at least half of the seeds, else the undefended row.
        """
        placebo = self._floor(PLACEBO)
        ratio = _runtime(_run_pairs(self.base, placebo))
        return placebo if ratio and 2 * ratio.n >= len(self.seeds) else self.base

    @property
    def records(self) -> list[LoadedRecord]:
        """Every record that the section shows."""
        return list(chain.from_iterable(row.records for row in self.rows))

    @cached_property
    def described(self) -> Mapping[str, Any]:
        """The setting as its records describe it; the first, where they differ."""
        return next((loaded.record.described for loaded in self.records), {})

    @cached_property
    def groups(self) -> tuple[ClientGroup, ...]:
        """Groups of clients, in the order of the setting; none where no analysis counted them."""
        runs = chain.from_iterable(row.utility_records.values() for row in self.rows)
        return next(filter(None, map(groups_in, runs)), ())

    @property
    def left_out(self) -> list[str]:
        """The attacks that no mean, worst case or rank counts, since a row lacks scores of them."""
        return [a for a in self.attacks if a not in self.comparison.attacks]

    @property
    def deciding(self) -> list[str]:
        """The attacks that say "member" by a threshold of their own."""
        return [a for a in self.attacks if any(r.entries[a].decisions for r in self.rows)]

    def scores(self, group: Group) -> list[Score]:
        """Return all scores over that group of candidates."""
        entries = chain.from_iterable(row.entries.values() for row in self.rows)
        return list(chain.from_iterable(entry.units(group).values() for entry in entries))

    # -- what rows cost ----------------------------------------------------------------------------

    @cached_property
    def summaries(self) -> dict[str, RowSummary]:
        """Row label -> its leak and costs. Raises UserError if two runs that should share their
        test samples do not.
        """
        return {row.label: self._summary(row) for row in self.rows}

    def _summary(self, row: DefenseRow) -> RowSummary:
        label, case = row.label, self.comparison.worst_cases.of(row.label)
        worst, rate = case.worst, case.worst_tf01
        base = [] if row is self.base else _run_pairs(row, self.base)
        floor = [] if row is self.free_rider else _run_pairs(row, self.free_rider)
        deltas = [a.record.accuracy - b.record.accuracy for a, b in base]
        return RowSummary(
            label=label,
            complete=row.complete,
            worst=bounded(worst.found) if worst else None,
            attack=worst.attack if worst else "",
            largest=worst.largest if worst else None,
            mean=bounded(case.mean),
            tf01=rate.found if rate else None,
            tf01_attack=rate.attack if rate else "",
            accuracy=bounded(row.accuracy, *self._range),
            runtime=self.runtime(row),
            delta_accuracy=self.delta_accuracy(row),
            deviation=float(np.std(deltas, ddof=1)) if len(deltas) > 1 else None,
            contribution=self._difference(floor, "contribution", label),
        )

    @cached_property
    def utility(self) -> Utility | None:
        """The utility that the section's records name; None without scores."""
        loaded = (found for row in self.rows for found in row.utility_records.values())
        return next((one.record.utility for one in loaded), None)

    @property
    def _range(self) -> tuple[float, float]:
        return (self.utility.low, self.utility.high) if self.utility else (0.0, 1.0)

    def summary(self, label: str) -> RowSummary | None:
        """Return the summary of the row of that label; None where there is no such row."""
        return self.summaries.get(label)

    def delta_accuracy(self, row: DefenseRow) -> Interval | None:
        """Return the test accuracy minus that of the undefended row; None for that row."""
        pairs = [] if row is self.base else _run_pairs(row, self.base)
        return self._difference(pairs, "delta-accuracy", row.label)

    def runtime(self, row: DefenseRow) -> Interval | None:
        """Return training CPU time over that of the row with the plain training; None for that
        row.
        """
        return None if row is self.plain else _runtime(_run_pairs(row, self.plain))

    def accuracy_difference(self, first: DefenseRow, second: DefenseRow) -> Interval | None:
        """Return the test accuracy of one row minus another's, seed by seed."""
        pairs = _run_pairs(first, second)
        return self._difference(pairs, "accuracy", first.label, second.label)

    def _difference(self, pairs: RunPairs, name: str, *rows: str) -> Interval | None:
        if not pairs:
            return None
        first, second = [], []
        for a, b in pairs:
            x, y = a.test_correct(), b.test_correct()
            if len(x) != len(y) or len(x) == 0:
                raise UserError(
                    f"{a.stem} and {b.stem}: test sets of {len(x)} and {len(y)} samples; run the "
                    "suite again"
                )
            first.append(x)
            second.append(y)
        purpose = (name, self.suite, self.setting, self.coalition, *rows)
        values = [a.record.accuracy - b.record.accuracy for a, b in pairs]
        return delta_accuracy(values, first, second, numpy_rng(0, "/".join(purpose)))

    @property
    def smallest_difference(self) -> float | None:
        """The delta-accuracy, as a fraction, that the section's seeds show with a power of 80 %;
        None with a single seed.
        """
        deviations = [c.deviation for c in self.summaries.values() if c.deviation is not None]
        return smallest_shown(deviations, len(self.seeds))

    # -- what analyses ask -------------------------------------------------------------------------

    def ranks(self, labels: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Return (best, worst) rank of these rows among each other, of those that have one."""
        return self.comparison.pairwise.ranks_among(labels)

    def differences(self, pairs: Sequence[tuple[str, str]]) -> list[RowDifference]:
        """Return the first defense minus the second, of those pairs with both rows in the
        section.
        """
        rows = {row.label: row for row in self.rows}
        pairs = [(a, b) for a, b in pairs if a in rows and b in rows and a != b]
        worst_cases = self.comparison.pairwise.between(pairs)
        differences = []
        for first, second in pairs:
            worst = worst_cases.get((first, second))
            differences.append(
                RowDifference(
                    first=first,
                    second=second,
                    worst=worst.found if worst else None,
                    shown=worst is not None and worst.shown,
                    accuracy=self.accuracy_difference(rows[first], rows[second]),
                )
            )
        return differences

    def families(self) -> dict[str, tuple[str, ...]]:
        """Return the name of every defense -> labels of its strengths (one or more), by name;
        without the undefended row and the floors.
        """
        labels = [row.label for row in self.rows if not row.undefended and not row.floor]
        return {name: tuple(strengths) for name, strengths in _grouped(labels, family)}

    def sweeps(self, least: int = 2) -> list[Sweep]:
        """Return every defense with at least ``least`` strengths, by name; TF01 against outside
        non-members.
        """
        base = [self.base.label] if self.base else []
        undefended = {attack: self._points(base, attack) for attack in self.attacks}
        sweeps = []
        for name, strengths in self.families().items():
            every = {attack: self._points(strengths, attack) for attack in self.attacks}
            points = {attack: line for attack, line in every.items() if len(line)}
            volumes = {}
            for attack, line in points.items():
                volumes[attack] = hypervolume(np.vstack([line, undefended[attack]]))
            labels = tuple(s for s in strengths if any(len(self._points([s], a)) for a in points))
            if len(labels) >= least:
                sweeps.append(Sweep(name, labels, points, undefended, volumes))
        return sweeps

    def _points(self, labels: Sequence[str], attack: str) -> np.ndarray:
        """[n, 2]: (TF01 as a fraction, test error) of the rows that have both."""
        points = []
        for label in labels:
            row, tf01 = self.row(label), self.comparison.cells.of(label, attack).tf01
            if row and row.accuracy and tf01:
                points.append((tf01.mean / 100, 1 - row.accuracy.mean))
        return np.array(points).reshape(-1, 2)


def _run_pairs(row: DefenseRow | None, reference: DefenseRow | None) -> RunPairs:
    """Return for each seed a record of the row's run and of the reference's with the same adversary
    inside, or none inside either.
    """
    pairs: RunPairs = []
    if row is None or reference is None:
        return pairs
    for seed in sorted(row.seeds):
        for loaded in row.utility_run(seed):
            entry = reference.entries.get(loaded.record.attack.label)
            other = entry.ok(seed) if entry else None
            if other:
                pairs.append((loaded, other))
                break
    return pairs


def _runtime(pairs: RunPairs) -> Interval | None:
    """Return the mean ratio of CPU times over the seeds on one calm machine, with Student's t; None
    unless these are at least half.
    """
    ratios = []
    for a, b in pairs:
        time, reference = a.record.measured.train_cpu_s, b.record.measured.train_cpu_s
        if reference > 0 and _machine(a) == _machine(b) and not (busy(a) or busy(b)):
            ratios.append(time / reference)
    if not ratios or 2 * len(ratios) < len(pairs):
        return None
    if len(ratios) == 1:
        return Interval(ratios[0], float("nan"), 1, between=False)
    return t_interval(ratios)


def busy(loaded: LoadedRecord) -> bool:
    """Tell whether the run's machine had something else to do while it trained, so that its times
    cannot be compared.
    """
    m = loaded.record.measured
    return m.train_wall_s is not None and m.train_wall_s > BUSY * m.train_cpu_s


def _machine(loaded: LoadedRecord) -> tuple[str, str, int, str]:
    p = loaded.record.provenance
    return p.cpu_type, p.device, p.threads, p.dtype


# -- records to sections ---------------------------------------------------------------------------


def build_sections(records: Iterable[LoadedRecord], refuted: Refuted = None) -> list[BoardSection]:
    """Build the sections of a board, in the order of suite, setting, coalition, view.

    A section of coalition C has the rows of C and, restricted to the targets of C, those in which
    no client defends: the undefended federation and the server's rules, trained once for all
    coalitions. With such rows alone, the one section is that of coalition ``none``. Runs of tuning
    seeds make sections of their own, each an attribute of the one of the reported seeds.
    """
    current, _ = newest(records)
    tuning = {_place(s): s for s in _sections(filter(of_tuning, current), refuted)}
    reported = _sections(filterfalse(of_tuning, current), refuted)
    return [replace(section, tuning=tuning.get(_place(section))) for section in reported]


def of_tuning(loaded: LoadedRecord) -> bool:
    """Tell whether the record is of a seed on which strengths are chosen, and so is in no table of
    reported numbers.
    """
    return loaded.record.described.get("tuning") is True


def newest(records: Iterable[LoadedRecord]) -> tuple[list[LoadedRecord], list[LoadedRecord]]:
    """Split records into (current, superseded): of several records of one cell, as a change of code
    leaves them, the latest counts; one that was measured here comes before imported ones.
    """

    def cell(loaded: LoadedRecord) -> tuple[Any, ...]:
        r = loaded.record
        return r.suite, r.setting, r.coalition, r.defense.label, r.attack.label, r.seed

    def order(loaded: LoadedRecord) -> tuple[Any, ...]:
        return not loaded.bundle, loaded.record.measured.started, loaded.record.key

    current, superseded = [], []
    for _, group in _grouped(records, cell):
        *older, latest = sorted(group, key=order)
        current.append(latest)
        superseded += older
    return current, superseded


def _place(section: BoardSection) -> tuple[str, str, str, str]:
    return section.suite, section.setting, section.coalition, section.view


def _sections(records: Iterable[LoadedRecord], refuted: Refuted) -> list[BoardSection]:
    sections = []
    for (suite, setting), group in _grouped(records, lambda r: (r.record.suite, r.record.setting)):
        shared, own = _coalition_free(group)
        coalitions = _grouped(own, lambda r: _coalition_order(r.record.coalition))
        for (_, coalition), defended in coalitions or [(("", "none"), [])]:
            # where no client defends, the targets are those of all records: there are no members to
            # take in their place
            everything = [*defended, *shared]
            targets = _targets(everything if coalition == "none" else defended or shared)
            counted = [r for r in everything if r.record.seed in targets]
            views = _views(counted)
            for view in sorted(set(views.values())):
                of_view = [r for r in counted if views[r.record.attack.label] == view]
                rows = _rows(of_view, targets, refuted)
                attacks = tuple(rows[0].entries)
                units = [(seed, target) for seed in targets for target in targets[seed]]
                judging = [a for a in attacks if a not in rows[0].left_out]
                sections.append(
                    BoardSection(
                        suite=suite,
                        setting=setting,
                        coalition=coalition,
                        view=view,
                        attacks=attacks,
                        targets=targets,
                        found=rows,
                        comparison=LeakStatistics(SectionScores(rows, units), judging),
                    )
                )
    return sections


def _coalition_free(group: Sequence[LoadedRecord]) -> tuple[list[LoadedRecord], list[LoadedRecord]]:
    """Split into (rows of every section, rows of their coalition's): the former are of coalition
    ``none`` and defended in no other. Of the latter are attacks on the mean of a coalition's
    clients where no client defends.
    """
    defending = set()
    for r in (loaded.record for loaded in group):
        if r.coalition != "none" and (r.members or r.view != "coalition"):
            defending.add(r.defense.label)

    def free(loaded: LoadedRecord) -> bool:
        r = loaded.record
        undefended = r.defense.full_name == UNDEFENDED
        return r.coalition == "none" and (undefended or r.defense.label not in defending)

    return list(filter(free, group)), list(filterfalse(free, group))


def _views(records: list[LoadedRecord]) -> dict[str, str]:
    """Attack label -> view. A cell that failed before its attack was made does not have it; one
    with scores does.
    """
    ordered = sorted(
        records, key=lambda r: (r.record.outcome == "ok", r.record.utility is not None)
    )
    return {r.record.attack.label: r.record.view for r in ordered}


def _coalition_order(name: str) -> tuple[str, str]:
    return (str(_COALITIONS.index(name)) if name in _COALITIONS else "9"), name


def _targets(records: list[LoadedRecord]) -> dict[int, tuple[int, ...]]:
    """Targets by seed: those that were judged or, where no cell of a seed has scores, the
    members.
    """
    targets = {}
    for seed, of_seed in _grouped(records, lambda loaded: loaded.record.seed):
        judged = {target.target for loaded in of_seed for target in loaded.record.targets}
        members = next(filter(None, (loaded.record.members for loaded in of_seed)), ())
        targets[seed] = tuple(sorted(judged or set(members)))
    return targets


def _rows(
    records: list[LoadedRecord], targets: dict[int, tuple[int, ...]], refuted: Refuted
) -> tuple[DefenseRow, ...]:
    """Return the rows, and of each the entries, by name."""
    attacks = sorted({r.record.attack.label for r in records})
    rows = []
    for label, group in _grouped(records, lambda r: r.record.defense.label):
        by_attack: dict[str, dict[int, LoadedRecord]] = {a: {} for a in attacks}
        for loaded in group:
            by_attack[loaded.record.attack.label][loaded.record.seed] = loaded
        entries = {a: AttackEntry(a, by_seed, targets) for a, by_seed in by_attack.items()}
        is_refuted = refuted is not None and any(map(refuted, group))
        name = group[0].record.defense.full_name
        rows.append(DefenseRow(label, name, entries, tuple(targets), is_refuted))
    left_out = _left_out(rows, attacks)
    return tuple(replace(row, left_out=left_out) for row in rows)


def _left_out(rows: Sequence[DefenseRow], attacks: Sequence[str]) -> frozenset[str]:
    """Return the attacks that are broken in some row that has another one whole: ranks are over the
    others.

    None where every attack is broken somewhere: the rows without all scores then have no rank.
    """
    broken: set[str] = set()
    for row in rows:
        if not (row.floor or row.refuted) and any(e.complete for e in row.entries.values()):
            broken.update(attack for attack in attacks if row.entries[attack].broken)
    return frozenset() if len(broken) == len(attacks) else frozenset(broken)


def _grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> list[tuple[Key, list[Item]]]:
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return sorted(groups.items(), key=lambda group: group[0])
