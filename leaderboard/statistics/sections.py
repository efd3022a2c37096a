"""The sections of a board, one for each setting, coalition and view, and what each of their rows
costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
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
    Entry,
    Row,
    groups_in,
)
from fedbench.leaderboard.statistics.scores import Population, SectionScores
from fedbench.leaderboard.statistics.verdict import Comparison

_COALITIONS = ("none", "pair", "half", "uniform")
# wall time over CPU time of a training, from which on its machine had something else to do
BUSY = 1.25
Refuted = Callable[[LoadedRecord], bool] | None
"""of a record: whether it was run again here and not reproduced; None: of none"""
Key = TypeVar("Key", bound=str | tuple[Any, ...])


def family(label: str) -> str:
    """Common name of the rows of a sweep: ``grad-noise[sigma=0.1]`` and ``grad-noise-0.5`` are both
    ``grad-noise``."""
    base = label.partition("[")[0]
    head, dash, tail = base.rpartition("-")
    return head if dash and tail.replace(".", "", 1).isdigit() else base


@dataclass(frozen=True, kw_only=True)
class Section:
    """All defenses of one setting, coalition and view. ``found``: its rows in any order.
    ``targets`` by seed. ``tuning``: the same rows on the seeds on which strengths are chosen, where
    the suite has any.
    """

    suite: str
    setting: str
    coalition: str
    view: str
    attacks: tuple[str, ...]
    found: tuple[Row, ...]
    targets: dict[int, tuple[int, ...]]
    comparison: Comparison
    tuning: Section | None = None

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Complete ones first, then the lowest worst case, then the lowest mean; floors last."""

        def rank(row: Row) -> tuple[bool, bool, float, float, str]:
            worst, mean = (
                self.comparison.worst_cases.of(row.label).worst,
                self.comparison.worst_cases.of(row.label).mean,
            )
            return (
                row.floor,
                not row.complete,
                worst.found.mean if worst else 2.0,
                mean.mean if mean else 2.0,
                row.label,
            )

        return tuple(sorted(self.found, key=rank))

    def held_against(self, population: Population) -> Section:
        """The same with other non-members."""
        made = self.comparison.held_against(population)
        return self if made is self.comparison else replace(self, comparison=made)

    def row(self, label: str) -> Row | None:
        """The row of that label."""
        return next((r for r in self.found if r.label == label), None)

    @property
    def seeds(self) -> tuple[int, ...]:
        """In ascending order."""
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
    def base(self) -> Row | None:
        """The undefended row."""
        return self.comparison.base

    @property
    def free_rider(self) -> Row | None:
        """The row of members that upload nothing."""
        return self._floor(FREE_RIDER)

    def _floor(self, name: str) -> Row | None:
        return next((r for r in self.found if r.name == name and not r.refuted), None)

    @cached_property
    def plain(self) -> Row | None:
        """Plain training, which runtime is relative to: the placebo where its times can be compared
        with the undefended run's on at least half of the seeds, else the undefended row.
        """
        placebo = self._floor(PLACEBO)
        found = _runtime(_run_pairs(self.base, placebo)) if self.base else None
        return placebo if found and 2 * found.n >= len(self.seeds) else self.base

    @property
    def records(self) -> list[LoadedRecord]:
        """Every record that the section shows."""
        return [loaded for r in self.rows for loaded in r.records]

    @cached_property
    def described(self) -> Mapping[str, Any]:
        """The setting as its records describe it; the first, where they differ."""
        return next((loaded.record.described for loaded in self.records), {})

    @cached_property
    def groups(self) -> tuple[ClientGroup, ...]:
        """Groups of clients, in the order of the setting; none where no analysis counted them."""
        return next(
            (
                g
                for r in self.rows
                for loaded in r.utility_records.values()
                if (g := groups_in(loaded))
            ),
            (),
        )

    @property
    def left_out(self) -> list[str]:
        """The attacks that no mean, worst case or rank counts, since a row lacks scores of them."""
        return [a for a in self.attacks if a not in self.comparison.attacks]

    @property
    def deciding(self) -> list[str]:
        """The attacks that say "member" by a threshold of their own."""
        return [a for a in self.attacks if any(r.entries[a].decisions for r in self.rows)]

    def scores(self, group: Group) -> list[Score]:
        """All scores over that group of candidates."""
        return [
            s
            for row in self.rows
            for entry in row.entries.values()
            for s in entry.units(group).values()
        ]

    # -- what rows cost ----------------------------------------------------------------------------

    @cached_property
    def summaries(self) -> dict[str, RowSummary]:
        """Row label -> its leak and costs. Raises UserError if two runs that should share their
        test samples do not.
        """
        return {row.label: self._summary(row) for row in self.rows}

    def _summary(self, row: Row) -> RowSummary:
        label, comparison = row.label, self.comparison
        worst, rate = (
            comparison.worst_cases.of(label).worst,
            comparison.worst_cases.of(label).worst_tf01,
        )
        base, floor = (
            [] if other is row else _run_pairs(row, other) for other in (self.base, self.free_rider)
        )
        deltas = [a.record.accuracy - b.record.accuracy for a, b in base]
        return RowSummary(
            label=label,
            complete=row.complete,
            worst=bounded(worst.found) if worst else None,
            attack=worst.attack if worst else "",
            largest=worst.largest if worst else None,
            mean=bounded(comparison.worst_cases.of(label).mean),
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
        """Of the row of that label; None where there is no such row."""
        return self.summaries.get(label)

    def delta_accuracy(self, row: Row) -> Interval | None:
        """Test accuracy minus that of the undefended row; None for that row."""
        return (
            None
            if row is self.base
            else self._difference(_run_pairs(row, self.base), "delta-accuracy", row.label)
        )

    def runtime(self, row: Row) -> Interval | None:
        """Training CPU time over that of the row with the plain training; None for that row."""
        return _runtime([] if row is self.plain else _run_pairs(row, self.plain))

    def accuracy_difference(self, one: Row, other: Row) -> Interval | None:
        """Test accuracy of one row minus another's, seed by seed."""
        return self._difference(_run_pairs(one, other), "accuracy", one.label, other.label)

    def _difference(
        self, pairs: Sequence[tuple[LoadedRecord, LoadedRecord]], *purpose: str
    ) -> Interval | None:
        arrays = [(a.test_correct(), b.test_correct()) for a, b in pairs]
        for (a, b), (x, y) in zip(pairs, arrays, strict=True):
            if len(x) != len(y) or len(x) == 0:
                raise UserError(
                    f"{a.stem} and {b.stem}: test sets of {len(x)} and {len(y)} samples; run the "
                    "suite again"
                )
        rng = numpy_rng(
            0, "/".join([purpose[0], self.suite, self.setting, self.coalition, *purpose[1:]])
        )
        values = [a.record.accuracy - b.record.accuracy for a, b in pairs]
        return (
            delta_accuracy(values, [a for a, _ in arrays], [b for _, b in arrays], rng)
            if arrays
            else None
        )

    @property
    def smallest_difference(self) -> float | None:
        """The delta-accuracy, as a fraction, that the section's seeds show with a power of 80 %;
        None with a single seed.
        """
        return smallest_shown(
            [d for c in self.summaries.values() if (d := c.deviation) is not None], len(self.seeds)
        )

    # -- what analyses ask -------------------------------------------------------------------------

    def ranks(self, labels: Sequence[str]) -> dict[str, tuple[int, int]]:
        """(best, worst) rank of these rows among each other, of those that have one."""
        return self.comparison.pairwise.ranks_among(labels)

    def differences(self, pairs: Sequence[tuple[str, str]]) -> list[RowDifference]:
        """The first defense minus the second, of those pairs with both rows in the section."""
        rows = {r.label: r for r in self.rows}
        here = [(a, b) for a, b in pairs if a in rows and b in rows and a != b]
        found = self.comparison.pairwise.between(here)
        return [
            RowDifference(
                first=a,
                second=b,
                worst=found[a, b].found if (a, b) in found else None,
                shown=(a, b) in found and found[a, b].shown,
                accuracy=self.accuracy_difference(rows[a], rows[b]),
            )
            for a, b in here
        ]

    def families(self) -> dict[str, tuple[str, ...]]:
        """Name of every defense -> labels of its strengths (one or more), by name; without the
        undefended row and the floors.
        """
        groups = _grouped((r.label for r in self.rows if not r.undefended and not r.floor), family)
        return {name: tuple(labels) for name, labels in groups}

    def sweeps(self, least: int = 2) -> list[Sweep]:
        """Every defense with at least ``least`` strengths, by name; TF01 against outside
        non-members.
        """
        undefended = {
            a: self._points([self.base.label] if self.base else [], a) for a in self.attacks
        }
        found = []
        for name, every in self.families().items():
            labels = tuple(
                label for label in every if any(len(self._points([label], a)) for a in self.attacks)
            )
            points = {a: points for a in self.attacks if len(points := self._points(labels, a))}
            volumes = {a: hypervolume(np.vstack([own, undefended[a]])) for a, own in points.items()}
            if len(labels) >= least:
                found.append(Sweep(name, labels, points, undefended, volumes))
        return found

    def _points(self, labels: Sequence[str], attack: str) -> np.ndarray:
        """[n, 2]: (TF01 as a fraction, test error) of the rows that have both."""
        rows = [
            (row, self.comparison.cells.of(label, attack).tf01)
            for label in labels
            if (row := self.row(label))
        ]
        return np.array(
            [(t.mean / 100, 1 - r.accuracy.mean) for r, t in rows if t and r.accuracy]
        ).reshape(-1, 2)


def _run_pairs(row: Row, other: Row | None) -> list[tuple[LoadedRecord, LoadedRecord]]:
    """For each seed one record of the row's run and of the other row's with the same adversary
    inside, or none inside either.
    """
    found = []
    entries = other.entries if other is not None else {}
    for seed in sorted(row.seeds):
        there = (
            (a, b)
            for a in row.utility_run(seed)
            if (e := entries.get(a.record.attack.label)) and (b := e.ok(seed))
        )
        found += [pair for pair in [next(there, None)] if pair is not None]
    return found


def _runtime(pairs: Sequence[tuple[LoadedRecord, LoadedRecord]]) -> Interval | None:
    """Mean ratio of CPU times over the seeds on one calm machine, with Student's t; None unless
    these are at least half.
    """
    ratios = [
        a.record.measured.train_cpu_s / b.record.measured.train_cpu_s
        for a, b in pairs
        if b.record.measured.train_cpu_s > 0
        and _machine(a) == _machine(b)
        and not (busy(a) or busy(b))
    ]
    if not ratios or 2 * len(ratios) < len(pairs):
        return None
    return (
        t_interval(ratios)
        if len(ratios) > 1
        else Interval(ratios[0], float("nan"), 1, between=False)
    )


def busy(loaded: LoadedRecord) -> bool:
    """Whether the run's machine had something else to do while it trained, so that its times cannot
    be compared.
    """
    m = loaded.record.measured
    return m.train_wall_s is not None and m.train_wall_s > BUSY * m.train_cpu_s


def _machine(loaded: LoadedRecord) -> tuple[str, str, int, str]:
    p = loaded.record.provenance
    return p.cpu_type, p.device, p.threads, p.dtype


# -- records to sections ---------------------------------------------------------------------------


def build_sections(records: Iterable[LoadedRecord], refuted: Refuted = None) -> list[Section]:
    """The sections of a board, in the order of suite, setting, coalition, view.

    A section of coalition C has the rows of C and, restricted to the targets of C, those in which
    no client defends: the undefended federation and the server's rules, trained once for all
    coalitions. With such rows alone, the one section is that of coalition ``none``. Runs of tuning
    seeds make sections of their own, each an attribute of the one of the reported seeds.
    """
    current, _ = newest(records)
    reported, tuning = (
        _sections([r for r in current if of_tuning(r) == of], refuted) for of in (False, True)
    )
    tuned = {_place(s): s for s in tuning}
    return [replace(s, tuning=tuned.get(_place(s))) for s in reported]


def of_tuning(loaded: LoadedRecord) -> bool:
    """Whether the record is of a seed on which strengths are chosen, and so is in no table of
    reported numbers.
    """
    return loaded.record.described.get("tuning") is True


def newest(records: Iterable[LoadedRecord]) -> tuple[list[LoadedRecord], list[LoadedRecord]]:
    """(current, superseded): of several records of one cell, as a change of code leaves them, the
    latest counts; one that was measured here comes before imported ones.
    """

    def cell(loaded: LoadedRecord) -> tuple[Any, ...]:
        r = loaded.record
        return r.suite, r.setting, r.coalition, r.defense.label, r.attack.label, r.seed

    def order(loaded: LoadedRecord) -> tuple[Any, ...]:
        return not loaded.bundle, loaded.record.measured.started, loaded.record.key

    ordered = [sorted(group, key=order) for _, group in _grouped(records, cell)]
    return [g[-1] for g in ordered], [r for g in ordered for r in g[:-1]]


def _place(section: Section) -> tuple[str, str, str, str]:
    return section.suite, section.setting, section.coalition, section.view


def _sections(records: Sequence[LoadedRecord], refuted: Refuted) -> list[Section]:
    sections = []
    for (suite, setting), group in _grouped(records, lambda r: (r.record.suite, r.record.setting)):
        shared, own_rows = _coalition_free(group)
        coalitions = _grouped(own_rows, lambda r: _coalition_order(r.record.coalition)) or [
            (("", "none"), [])
        ]
        for (_, coalition), own in coalitions:
            # where no client defends, the targets are those of all records: there are no members to
            # take in their place
            targets = _targets([*own, *shared] if coalition == "none" else own or shared)
            shown = own + [r for r in shared if r.record.seed in targets]
            views = _views(shown)
            for view in sorted(set(views.values())):
                attacks, rows = _rows(
                    [r for r in shown if views[r.record.attack.label] == view], targets, refuted
                )
                units = [(seed, t) for seed, own_targets in targets.items() for t in own_targets]
                counted = [a for a in attacks if a not in rows[0].left_out]
                sections.append(
                    Section(
                        suite=suite,
                        setting=setting,
                        coalition=coalition,
                        view=view,
                        attacks=attacks,
                        targets=targets,
                        found=rows,
                        comparison=Comparison(SectionScores(rows, units), counted),
                    )
                )
    return sections


def _coalition_free(group: Sequence[LoadedRecord]) -> tuple[list[LoadedRecord], list[LoadedRecord]]:
    """(rows of every section, rows of their coalition's): the former are of coalition ``none`` and
    defended in no other. Of the latter are attacks on the mean of a coalition's clients where no
    client defends.
    """
    others = [r.record for r in group if r.record.coalition != "none"]
    defending = {r.defense.label for r in others if r.members or r.view != "coalition"}

    def free(loaded: LoadedRecord) -> bool:
        r = loaded.record
        return r.coalition == "none" and (
            r.defense.full_name == UNDEFENDED or r.defense.label not in defending
        )

    return [r for r in group if free(r)], [r for r in group if not free(r)]


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
    found: dict[int, set[int]] = {}
    for loaded in records:
        found.setdefault(loaded.record.seed, set()).update(t.target for t in loaded.record.targets)
    for loaded in records:
        if not found[loaded.record.seed]:
            found[loaded.record.seed] = set(loaded.record.members)
    return {seed: tuple(sorted(targets)) for seed, targets in sorted(found.items())}


def _rows(
    records: list[LoadedRecord], targets: dict[int, tuple[int, ...]], is_refuted: Refuted
) -> tuple[tuple[str, ...], tuple[Row, ...]]:
    """(attacks, rows), by name."""
    attacks = tuple(sorted({r.record.attack.label for r in records}))
    rows = []
    for label, group in _grouped(records, lambda r: r.record.defense.label):
        by_attack: dict[str, dict[int, LoadedRecord]] = {a: {} for a in attacks}
        for loaded in group:
            by_attack[loaded.record.attack.label][loaded.record.seed] = loaded
        entries = {a: Entry(a, found, targets) for a, found in by_attack.items()}
        refuted = is_refuted is not None and any(map(is_refuted, group))
        rows.append(Row(label, group[0].record.defense.full_name, entries, tuple(targets), refuted))
    left_out = _left_out(rows, attacks)
    return attacks, tuple(replace(row, left_out=left_out) for row in rows)


def _left_out(rows: Sequence[Row], attacks: Sequence[str]) -> frozenset[str]:
    """The attacks that are broken in some row that has another one whole: ranks are over the
    others.

    None where every attack is broken somewhere: the rows without all scores then have no rank.
    """
    scored = [
        row
        for row in rows
        if not (row.floor or row.refuted) and any(e.complete for e in row.entries.values())
    ]
    broken = frozenset(a for a in attacks if any(row.entries[a].broken for row in scored))
    return frozenset() if len(broken) == len(attacks) else broken


Item = TypeVar("Item")


def _grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> list[tuple[Key, list[Item]]]:
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return sorted(groups.items(), key=lambda found: found[0])
