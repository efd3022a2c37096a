"""Sections of a board, one for each setting, coalition and view, and what their rows cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, Literal

import numpy as np

from fedbench.core import UserError
from fedbench.core.contract.section import ClientGroup, RowDifference, RowSummary, Sweep
from fedbench.core.metrics import Group, Interval, Score, delta_accuracy, hypervolume, t_interval
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.store.integrity import RECORDED
from fedbench.core.store.reading import LoadedRecord
from fedbench.core.store.record import Utility
from fedbench.leaderboard.statistics.intervals import Unit, bounded, smallest_shown
from fedbench.leaderboard.statistics.privacy_claims import PrivacyAudit, privacy_audit
from fedbench.leaderboard.statistics.rows import FREE_RIDER, PLACEBO, DefenseRow, groups_in
from fedbench.leaderboard.statistics.scores import Population
from fedbench.leaderboard.statistics.verdict import LeakStatistics

# wall time over CPU time of a training, from which on its machine had something else to do
BUSY = 1.25
FEWEST_FEDERATIONS = 8
"""of one pool: with fewer, one in eight candidates has too few on a side"""
RunPairs = list[tuple[LoadedRecord, LoadedRecord]]


def family(label: str) -> str:
    """Return the common name of the rows of a sweep: ``grad-noise`` for ``grad-noise[sigma=0.1]``
    and for ``grad-noise-0.5``.
    """
    base = label.partition("[")[0]
    name, dash, strength = base.rpartition("-")
    if dash and strength.replace(".", "", 1).isdigit():
        return name
    return base


@dataclass(frozen=True, kw_only=True)
class BoardSection:
    """All defenses of one setting, coalition and view."""

    suite: str
    setting: str
    coalition: str
    view: str
    attacks: tuple[str, ...]
    unordered_rows: tuple[DefenseRow, ...]
    """rows in any order"""
    targets: dict[int, tuple[int, ...]]
    """by seed"""
    comparison: LeakStatistics
    tuning: BoardSection | None = None
    """the same rows on the seeds on which strengths are chosen, where the suite has any"""

    @cached_property
    def rows(self) -> tuple[DefenseRow, ...]:
        """Complete rows first, those that every attack judges before others, then the lowest worst
        case, then the lowest mean; floors last.
        """
        cases = self.comparison.worst_cases

        def order(row: DefenseRow) -> tuple[bool, bool, bool, float, float, str]:
            case = cases.of(row.label)
            worst = mean = 2.0
            if case.worst:
                worst = case.worst.interval.mean
            if case.mean:
                mean = case.mean.mean
            fewer = bool(cases.inapplicable(row.label))
            return row.floor, not row.complete, fewer, worst, mean, row.label

        return tuple(sorted(self.unordered_rows, key=order))

    def held_against(self, population: Population) -> BoardSection:
        """Return the section with other non-members."""
        comparison = self.comparison.held_against(population)
        return self if comparison is self.comparison else replace(self, comparison=comparison)

    def row(self, label: str) -> DefenseRow | None:
        """Return the row of that label."""
        return next((r for r in self.unordered_rows if r.label == label), None)

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
        return self.comparison.scores.base

    @property
    def free_rider(self) -> DefenseRow | None:
        """The row of members that upload nothing."""
        return self._floor(FREE_RIDER)

    def _floor(self, name: str) -> DefenseRow | None:
        return next((r for r in self.unordered_rows if r.name == name and not r.refuted), None)

    @cached_property
    def plain(self) -> DefenseRow | None:
        """Plain training, which runtime is relative to: the placebo where its times can be compared
        with the undefended run's on at least half of the seeds, else the undefended row; None where
        the federation was trained elsewhere.
        """
        if self.is_recorded:
            return None
        placebo = self._floor(PLACEBO)
        ratio = _runtime(_run_pairs(self.base, placebo))
        if ratio and 2 * ratio.n >= len(self.seeds):
            return placebo
        return self.base

    @property
    def records(self) -> list[LoadedRecord]:
        """Every record that the section shows."""
        return list(chain.from_iterable(row.records for row in self.rows))

    @cached_property
    def described(self) -> Mapping[str, Any]:
        """The setting as its records describe it; the first, where they differ."""
        return next((loaded.record.described for loaded in self.records), {})

    @property
    def is_recorded(self) -> bool:
        """Whether the federation was trained elsewhere."""
        return self.described.get("source") == RECORDED

    @cached_property
    def groups(self) -> tuple[ClientGroup, ...]:
        """Groups of clients, in the order of the setting; none where no analysis counted them."""
        runs = chain.from_iterable(row.utility_records.values() for row in self.rows)
        return next(filter(None, map(groups_in, runs)), ())

    @property
    def shares_pool(self) -> bool:
        """Whether the seeds share a pool of data, with memberships by coin."""
        federation = self.described.get("federation", {})
        by_coin = isinstance(federation, dict) and federation.get("test_by") == "coin"
        return by_coin and "data_seed" in self.described

    @property
    def calibrates(self) -> bool:
        """Whether the federations of one pool are enough to judge scores in one by the others."""
        return self.shares_pool and len(self.seeds) >= FEWEST_FEDERATIONS

    @cached_property
    def privacy_audits(self) -> Mapping[str, PrivacyAudit]:
        """Row -> bound on its epsilon beside its claim; empty without enough federations."""
        if not self.calibrates:
            return {}
        scores = self.comparison.calibrated_scores
        return {row.label: privacy_audit(scores, row) for row in self.rows}

    @property
    def left_out(self) -> list[str]:
        """The attacks that no mean, worst case or rank counts, since a row lacks scores of them."""
        unused = set(self.attacks) - {*self.comparison.attacks, *self.adaptive}
        return [attack for attack in self.attacks if attack in unused]

    @cached_property
    def adaptive(self) -> frozenset[str]:
        """The attacks that know a defense, and judge in the rows that have it."""
        return frozenset().union(*(row.adaptive for row in self.unordered_rows))

    @property
    def deciding(self) -> list[str]:
        """The attacks that say "member" by a threshold of their own."""
        return [a for a in self.attacks if any(r.entries[a].decisions for r in self.rows)]

    def scores(self, group: Group) -> list[Score]:
        """Return all scores over that group of candidates."""
        scores: list[Score] = []
        for row in self.rows:
            for entry in row.entries.values():
                scores += entry.units(group).values()
        return scores

    # -- what rows cost ----------------------------------------------------------------------------

    @cached_property
    def summaries(self) -> dict[str, RowSummary]:
        """Row label -> its leak and costs. Raises UserError if two runs that should share their
        test samples do not.
        """
        return {row.label: self._summary(row) for row in self.rows}

    def _summary(self, row: DefenseRow) -> RowSummary:
        cases = self.comparison.worst_cases
        case = cases.of(row.label)
        pairs = _run_pairs(row, self.base)
        deviation = None
        if len(pairs) > 1 and row is not self.base:
            deviation = float(np.std(_utility_differences(pairs), ddof=1))
        summary = RowSummary(
            label=row.label,
            complete=row.complete and not cases.inapplicable(row.label),
            mean=bounded(case.mean),
            accuracy=bounded(row.accuracy, *self._range),
            runtime=self.runtime(row),
            delta_accuracy=self.delta_accuracy(row),
            deviation=deviation,
            contribution=self._difference(row, self.free_rider, "contribution", row.label),
        )
        if worst := case.worst:
            interval = bounded(worst.interval)
            largest = worst.largest
            summary = replace(summary, worst=interval, attack=worst.attack, largest=largest)
        if rate := case.worst_tf01:
            summary = replace(summary, tf01=rate.interval, tf01_attack=rate.attack)
        return summary

    @cached_property
    def utility(self) -> Utility | None:
        """The utility that the section's records name; None without scores."""
        for row in self.rows:
            for loaded in row.utility_records.values():
                return loaded.record.utility
        return None

    @property
    def measures_accuracy(self) -> bool:
        """Whether the utility is accuracy, as it is taken to be without scores."""
        return self.utility is None or self.utility.name == "accuracy"

    @property
    def _range(self) -> tuple[float, float]:
        if self.utility is None:
            return 0.0, 1.0
        return self.utility.low, self.utility.high

    def test_error(self, utility: float) -> float:
        """Return the complement of an accuracy; of another utility what is lower where it is
        better.
        """
        if self.utility is None or self.measures_accuracy:
            return 1 - utility
        return utility if self.utility.direction == "lower" else -utility

    def highest(self, label: str, metric: Literal["auc", "tf01"]) -> tuple[str, Interval] | None:
        """Return the attack with the largest upper end on a row, of all attacks, and its interval:
        a bound where none beats chance, so that there is no worst case.
        """
        intervals: dict[str, Interval] = {}
        for attack in self.attacks:
            interval = getattr(self.comparison.leaks.of(label, attack), metric)
            if metric == "auc":
                interval = bounded(interval)
            if interval is not None:
                intervals[attack] = interval
        return max(intervals.items(), key=lambda item: item[1].high, default=None)

    def summary(self, label: str) -> RowSummary | None:
        """Return the summary of the row of that label; None where there is no such row."""
        return self.summaries.get(label)

    def delta_accuracy(self, row: DefenseRow) -> Interval | None:
        """Return the test accuracy minus that of the undefended row; None for that row."""
        return self._difference(row, self.base, "delta-accuracy", row.label)

    def runtime(self, row: DefenseRow) -> Interval | None:
        """Return training CPU time over that of the row with the plain training; None for that
        row.
        """
        return None if row is self.plain else _runtime(_run_pairs(row, self.plain))

    def accuracy_difference(self, first: DefenseRow, second: DefenseRow) -> Interval | None:
        """Return the test accuracy of one row minus another's, seed by seed."""
        return self._difference(first, second, "accuracy", first.label, second.label)

    def _difference(
        self, first: DefenseRow, second: DefenseRow | None, *purpose: str
    ) -> Interval | None:
        """Return the utility of one row minus another's; None of one row, or without pairs of runs.

        ``purpose`` keys the draws of the bootstrap.
        """
        pairs = _run_pairs(first, second)
        if not pairs or first is second:
            return None
        samples = [(a.test_correct(), b.test_correct()) for a, b in pairs]
        for (a, b), (x, y) in zip(pairs, samples, strict=True):
            if len(x) != len(y) or len(x) == 0:
                raise UserError(
                    f"{a.stem} and {b.stem}: test sets of {len(x)} and {len(y)} samples; run the "
                    "suite again"
                )
        name, *labels = purpose
        key = "/".join((name, self.suite, self.setting, self.coalition, *labels))
        firsts, seconds = zip(*samples, strict=True)
        return delta_accuracy(_utility_differences(pairs), firsts, seconds, numpy_rng(0, key))

    @property
    def smallest_difference(self) -> float | None:
        """The delta-accuracy, as a fraction, that the section's seeds show with a power of 80 %;
        None with a single seed.
        """
        deviations = [s.deviation for s in self.summaries.values() if s.deviation is not None]
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
            difference = RowDifference(
                first=first,
                second=second,
                worst=worst.interval if worst else None,
                shown=worst is not None and worst.shown,
                accuracy=self.accuracy_difference(rows[first], rows[second]),
            )
            differences.append(difference)
        return differences

    def families(self) -> dict[str, tuple[str, ...]]:
        """Return the name of every defense -> labels of its strengths (one or more), by name;
        without the undefended row and the floors.
        """
        strengths: dict[str, list[str]] = {}
        for row in self.rows:
            if not row.undefended and not row.floor:
                strengths.setdefault(family(row.label), []).append(row.label)
        return {name: tuple(strengths[name]) for name in sorted(strengths)}

    def sweeps(self, least: int = 2) -> list[Sweep]:
        """Return every defense with at least ``least`` strengths, by name; TF01 against outside
        non-members.
        """
        undefended = {attack: self._points([self.base], attack) for attack in self.attacks}
        sweeps = []
        for name, labels in self.families().items():
            rows = [row for row in self.rows if row.label in labels]
            points: dict[str, np.ndarray] = {}
            volumes: dict[str, float] = {}
            for attack in self.attacks:
                line = self._points(rows, attack)
                if len(line):
                    points[attack] = line
                    volumes[attack] = hypervolume(np.vstack([line, undefended[attack]]))
            drawn = [r.label for r in rows if any(len(self._points([r], a)) for a in points)]
            if len(drawn) >= least:
                sweeps.append(Sweep(name, tuple(drawn), points, undefended, volumes))
        return sweeps

    def _points(self, rows: Sequence[DefenseRow | None], attack: str) -> np.ndarray:
        """[n, 2]: (TF01 as a fraction, test error) of the rows that have both."""
        points = []
        for row in filter(None, rows):
            tf01 = self.comparison.leaks.of(row.label, attack).tf01
            if row.accuracy and tf01:
                points.append((tf01.mean / 100, self.test_error(row.accuracy.mean)))
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
            same_attack = entry and entry.ok(seed)
            if same_attack:
                pairs.append((loaded, same_attack))
                break
    return pairs


def _utility_differences(pairs: RunPairs) -> list[float]:
    return [a.record.accuracy - b.record.accuracy for a, b in pairs]


def _runtime(pairs: RunPairs) -> Interval | None:
    """Return the mean ratio of CPU times over the seeds on one calm machine, with Student's t; None
    unless these are at least half.
    """
    ratios = []
    for a, b in pairs:
        reference = b.record.measured.train_cpu_s
        comparable = _machine(a) == _machine(b) and not (busy(a) or busy(b))
        if reference > 0 and comparable:
            ratios.append(a.record.measured.train_cpu_s / reference)
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
