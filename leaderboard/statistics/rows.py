"""Rows of a section, a defense each, and their entries, an attack each: records by seed, and their
numbers over seeds x targets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedbench.core.contract.analysis import Findings
from fedbench.core.contract.attack import MEMBER
from fedbench.core.contract.defense import FactValue
from fedbench.core.contract.section import ClientGroup
from fedbench.core.metrics import Group, Interval, Score, combined_interval
from fedbench.core.metrics.rounds import DecisionScores, RoundScores
from fedbench.core.population.audit import Target
from fedbench.core.store.reading import LoadedRecord
from fedbench.core.store.record import RoundRow, remarks_in
from fedbench.core.store.scores import MaximumScores, TargetScores
from fedbench.leaderboard.statistics.intervals import (
    Unit,
    UnitValue,
    accuracy_error,
    mean_of,
    over_units,
    share_error,
)
from fedbench.leaderboard.statistics.tf01 import Sample, tf01_of

UNDEFENDED = "none"
FREE_RIDER, PLACEBO = "free-rider", "placebo"
FLOORS = (FREE_RIDER, PLACEBO)  # rows for comparison, without a rank
MISSING = "missing"  # no record at all: not run yet
BY_ADVERSARY = "by the adversary"


def outcome_of(loaded: LoadedRecord | None) -> str:
    """Return a cell's outcome, and whether an adversary inside caused it; None: ``missing``."""
    if loaded is None:
        return MISSING
    record = loaded.record
    return f"{record.outcome} {BY_ADVERSARY}" if record.by_adversary else record.outcome


def adversary_of(loaded: LoadedRecord) -> str | None:
    """Label of the active attack that the record's run was trained with; None: of a passive run."""
    adversary = loaded.record.described.get("adversary")
    return str(adversary) if adversary else None


def utility_error(loaded: LoadedRecord) -> float:
    """Return the standard error of a run's utility over the test samples, of a share binomial."""
    utility = loaded.record.utility
    assert utility is not None, "a record with scores has a utility"
    if utility.name == "accuracy":
        return share_error(loaded.record.accuracy, utility.n_test)
    return float(loaded.test_correct().std(ddof=1) / np.sqrt(utility.n_test))


def accuracy_of(runs: Iterable[LoadedRecord]) -> Interval | None:
    """Return the test accuracy over seeds of runs with its 95 % interval, as a fraction; None
    without scores.
    """
    values, errors = [], []
    for loaded in runs:
        if loaded.record.utility:
            values.append(loaded.record.accuracy)
            errors.append(utility_error(loaded))
    return combined_interval(values, errors) if values else None


@dataclass(frozen=True)
class AttackEntry:
    """Attack on a row."""

    attack: str
    records: dict[int, LoadedRecord]
    """by seed"""
    targets: dict[int, tuple[int, ...]]
    """the section's by seed; a record's other targets do not count. Empty for an adaptive attack
    on a row without the defense that it knows: nothing is missing there
    """
    adaptive: bool = False
    """whether it knows a defense, and so judges some rows alone"""

    @cached_property
    def outcomes(self) -> Counter[str]:
        """Number of seeds by outcome (see :func:`outcome_of`)."""
        return Counter(outcome_of(self.records.get(s)) for s in self.targets)

    @property
    def complete(self) -> bool:
        """Whether every seed has scores, and every target of the section too; a seed on which every
        cell failed names no target.
        """
        judged = bool(self.targets) and all(self.ok(seed) is not None for seed in self.targets)
        return judged and len(self.units("mix")) == sum(map(len, self.targets.values()))

    @property
    def skipped(self) -> bool:
        """Whether the attack does not apply to this defense, as opposed to having failed on it."""
        return self.outcomes["skipped"] == len(self.targets)

    @property
    def broken(self) -> bool:
        """Whether a seed has no score though the attack applies and the federation did not
        diverge.
        """
        return not self.outcomes.keys().isdisjoint(("failed", "timeout", MISSING))

    def ok(self, seed: int) -> LoadedRecord | None:
        """Return the seed's record, where it has scores."""
        loaded = self.records.get(seed)
        return loaded if loaded is not None and loaded.record.outcome == "ok" else None

    @property
    def _judged(self) -> Iterator[tuple[Unit, TargetScores]]:
        for seed, targets in self.targets.items():
            if (loaded := self.ok(seed)) is not None:
                for target in loaded.record.targets:
                    if target.target in targets:
                        yield (seed, target.target), target

    def units(self, group: Group) -> dict[Unit, Score]:
        """Return the scores over seeds x targets."""
        return {unit: t.groups[group] for unit, t in self._judged if group in t.groups}

    def interval(self, metric: str, group: Group = "mix") -> Interval | None:
        """Return the mean over seeds x targets, as measured, with its 95 % interval; None where the
        metric does not apply to any.
        """
        by_unit = {}
        for unit, score in self.units(group).items():
            value, error = score.value(metric), score.error(metric)
            if error is None:
                error = float("nan")
            if value is not None:
                by_unit[unit] = UnitValue(value, error)
        return over_units(by_unit)

    def pooled_tf01(self) -> Interval | None:
        """Return TF01 in percent of the mix, as measured, over all units pooled; None with too few
        non-members, or without scores.
        """
        samples = []
        for seed, target in self.units("mix"):
            c = self.records[seed].candidates(target)
            counted = c.in_mix & (c.kind >= 0)
            member = counted & (c.kind == MEMBER)
            nonmember = counted & (c.kind != MEMBER)
            scores = c.scores[member], c.scores[nonmember]
            samples.append(Sample(seed, *scores, c.ids[nonmember]))
        return tf01_of(samples)

    @property
    def decisions(self) -> dict[Unit, tuple[DecisionScores, Score]]:
        """Decisions of the attack for each seed x target, with the numbers of candidates."""
        decisions: dict[Unit, tuple[DecisionScores, Score]] = {}
        for unit, target in self._judged:
            if "mix" in target.groups and target.decision is not None:
                decisions[unit] = target.decision, target.groups["mix"]
        return decisions

    def decision_mean(self, field: str) -> float | None:
        """Return the mean of one field of ``DecisionScores``; None where no seed has it."""
        return mean_of([getattr(d, field) for d, _ in self.decisions.values()])

    @property
    def single_rounds(self) -> list[RoundScores]:
        """Scores by how the round is chosen, of each seed x target, where the attack uses a single
        one.
        """
        return [t.rounds for _, t in self._judged if t.rounds is not None]

    @cached_property
    def maxima(self) -> dict[Unit, MaximumScores]:
        """The largest value over the rounds, of each seed x target with one in its record."""
        return {unit: t.maximum for unit, t in self._judged if t.maximum is not None}

    def null_maxima(self, unit: Unit) -> tuple[np.ndarray, np.ndarray]:
        """Return (AUC [B], advantage [B]): the same under shuffled memberships, of a unit that has
        one.
        """
        return self.records[unit[0]].null_maxima(unit[1])

    def accuracies(self, best: bool = False) -> dict[Unit, UnitValue]:
        """Return the attack accuracy in the last round (or the oracle's best) of every seed x
        target; fractions.
        """
        which = "best" if best else "last"
        by_unit: dict[Unit, UnitValue] = {}
        for unit, (decision, score) in self.decisions.items():
            accuracy = getattr(decision, f"{which}_accuracy")
            recall = getattr(decision, f"{which}_recall")
            error = accuracy_error(accuracy, recall, score.n_members, score.n_nonmembers)
            by_unit[unit] = UnitValue(accuracy, error)
        return by_unit

    def attack_accuracy(self, best: bool = False) -> Interval | None:
        """Return the mean of :meth:`accuracies` with its 95 % interval."""
        return over_units(self.accuracies(best))

    def of_group(self, groups: Sequence[ClientGroup], g: int) -> AttackEntry:
        """Return the entry with the targets of one group alone: the group itself, or clients of its
        block of ids.
        """
        end = sum(group.clients for group in groups[: g + 1])
        clients = range(end - groups[g].clients, end)

        def in_group(code: int) -> bool:
            target = Target.of(code)
            return target.index == g if target.kind == "group" else code in clients

        targets = {}
        for seed, of_seed in self.targets.items():
            targets[seed] = tuple(filter(in_group, of_seed))
        return replace(self, targets=targets)

    def findings(self, label: str, seed: int) -> Findings | None:
        """Return what the analysis found in this cell; None without scores, or where it found
        nothing.
        """
        return findings_of(self.ok(seed), label)


@dataclass(frozen=True)
class DefenseRow:
    """Defense of a section."""

    label: str
    name: str
    entries: dict[str, AttackEntry]
    """by attack, at least one"""
    seeds: tuple[int, ...]
    """the section's"""
    refuted: bool = False
    """whether a cell was run again here and not reproduced: the row is shown and counts nowhere"""
    left_out: frozenset[str] = frozenset()
    """attacks that no rank of the section counts"""

    @property
    def undefended(self) -> bool:
        """Whether this is the plain federation everything is compared with."""
        return self.name == UNDEFENDED

    @property
    def floor(self) -> bool:
        """Whether it is there for comparison alone: members that upload nothing, or train plainly
        in another order.
        """
        return self.name in FLOORS

    @property
    def adaptive(self) -> tuple[str, ...]:
        """The attacks that know the defense, and that ranks count."""
        attacks = []
        for attack, entry in self.entries.items():
            if entry.adaptive and entry.targets and attack not in self.left_out:
                attacks.append(attack)
        return tuple(attacks)

    @property
    def complete(self) -> bool:
        """Whether every attack that counts and applies has all its scores, and none is refuted;
        only such a row has a rank, if every attack that judges other rows applies to it, too.
        """
        counted = [
            entry
            for attack, entry in self.entries.items()
            if attack not in self.left_out and not entry.skipped
        ]
        return not self.refuted and bool(counted) and all(e.complete for e in counted)

    @property
    def outcomes(self) -> Counter[str]:
        """Number of (attack, seed) cells by outcome."""
        outcomes: Counter[str] = Counter()
        for entry in self.entries.values():
            outcomes += entry.outcomes
        return outcomes

    @property
    def records(self) -> list[LoadedRecord]:
        """Records by attack and seed."""
        return [e.records[s] for e in self.entries.values() for s in sorted(e.records)]

    def mean(self, metric: str, group: Group, attacks: Collection[str]) -> float | None:
        """Return the mean over these attacks of those over seeds x targets, as measured."""
        means = []
        for attack, entry in self.entries.items():
            if attack in attacks:
                scores = entry.units(group).values()
                means.append(mean_of([score.value(metric) for score in scores]))
        return mean_of(means)

    # -- the run of each seed that accuracy, time, facts and findings are taken from ---------------

    @cached_property
    def active_attack(self) -> str | None:
        """The active attack under which the row's accuracy and time are taken; None: none, it has a
        passive run.

        An active attack is trained inside a run of its own: its accuracy is not that of the defense
        alone. A row with active runs only is taken under the attack with the most seeds, a tie
        going to the first by name.
        """
        adversaries: Counter[str | None] = Counter()
        for entry in self.entries.values():
            judged = filter(None, map(entry.ok, entry.targets))
            adversaries.update(map(adversary_of, judged))
        if None in adversaries:
            return None
        return min(adversaries, key=lambda a: (-adversaries[a], a or ""), default=None)

    def utility_run(self, seed: int) -> list[LoadedRecord]:
        """Return the records of the seed's run that accuracy and time are taken from (see
        :attr:`active_attack`).

        Of several such runs, the one most attacks judged; a tie goes to the first attack's.
        """
        runs: dict[str, list[LoadedRecord]] = {}
        for attack in sorted(self.entries):
            loaded = self.entries[attack].ok(seed)
            if loaded and adversary_of(loaded) == self.active_attack:
                runs.setdefault(loaded.record.run_key, []).append(loaded)
        return max(runs.values(), key=len, default=[])

    @cached_property
    def utility_records(self) -> dict[int, LoadedRecord]:
        """Seed -> the first record of its run, of the seeds that have one."""
        return {seed: run[0] for seed in self.seeds if (run := self.utility_run(seed))}

    @cached_property
    def accuracy(self) -> Interval | None:
        """Test accuracy of these runs."""
        return accuracy_of(self.utility_records.values())

    @property
    def histories(self) -> list[list[RoundRow]]:
        """The audited rounds of these runs, one list a seed that has one."""
        return [loaded.record.history for loaded in self.utility_records.values()]

    @property
    def facts(self) -> dict[str, list[FactValue]]:
        """Facts that the defense reports of these runs, in its order: one value a seed that has
        it.
        """
        facts: dict[str, list[FactValue]] = {}
        for loaded in self.utility_records.values():
            for name, value in loaded.record.facts.items():
                facts.setdefault(name, []).append(value)
        return facts

    @property
    def remarks(self) -> list[str]:
        """Sentences that defenses report of the federation and of these runs (of a seed without
        one, of any run), each once.
        """
        sentences: dict[str, None] = {}
        for seed in self.seeds:
            records = self.utility_run(seed)
            if not records:
                records = [e.records[seed] for e in self.entries.values() if seed in e.records]
            for loaded in records[:1]:
                sentences |= dict.fromkeys(remarks_in(loaded.record))
        return list(sentences)

    def findings(self, label: str, seed: int) -> Findings | None:
        """Return what the analysis found in the seed's run."""
        return findings_of(self.utility_records.get(seed), label)


def findings_of(loaded: LoadedRecord | None, label: str) -> Findings | None:
    """Return the findings of an analysis in a record; arrays are read on access."""
    if loaded is None or label not in loaded.record.analyses:
        return None
    findings = loaded.record.analyses[label]
    arrays = _Arrays(loaded, label, findings.arrays)
    return Findings(findings.numbers, arrays, findings.arrays)


@dataclass(frozen=True)
class _Arrays(Mapping[str, np.ndarray]):
    loaded: LoadedRecord
    label: str
    units: Mapping[str, str]

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.units:
            raise KeyError(name)
        return self.loaded.array(self.label, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.units)

    def __len__(self) -> int:
        return len(self.units)


def groups_in(loaded: LoadedRecord) -> tuple[ClientGroup, ...]:
    """Return the setting's groups with the sizes that an analysis counted as ``clients:NAME``, in
    the order of the targets -10, -11, ...; none where none counted them.
    """
    groups: Any = loaded.record.described.get("groups")
    if not isinstance(groups, list) or not all(isinstance(g, dict) and "name" in g for g in groups):
        return ()
    names = [str(group["name"]) for group in groups]
    for findings in loaded.record.analyses.values():
        sizes = [findings.numbers.get(f"clients:{name}") for name in names]
        if None not in sizes:
            counts = [int((size and size.value) or 0) for size in sizes]
            return tuple(map(ClientGroup, names, counts))
    return ()
