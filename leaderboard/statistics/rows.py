"""One defense of a section (a row) against one attack (an entry): its records by seed, and their
numbers over seeds x targets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from fedbench.core.contract.analysis import Findings
from fedbench.core.contract.attack import MEMBER
from fedbench.core.contract.defense import FactValue
from fedbench.core.contract.section import ClientGroup
from fedbench.core.metrics import Group, Interval, Score, combined_interval
from fedbench.core.population.audit import Target
from fedbench.core.store.reading import LoadedRecord
from fedbench.core.store.record import RoundRow, remarks_in
from fedbench.core.store.scores import DecisionScores, MaximumScores, RoundScores, TargetScores
from fedbench.leaderboard.statistics.intervals import (
    Measured,
    Unit,
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
    """Outcome of a cell, and whether an adversary inside caused it; None: ``missing``."""
    if loaded is None:
        return MISSING
    return (
        f"{loaded.record.outcome} {BY_ADVERSARY}"
        if loaded.record.by_adversary
        else loaded.record.outcome
    )


def adversary_of(loaded: LoadedRecord) -> str | None:
    """Label of the active attack that the record's run was trained with; None: of a passive run."""
    found = loaded.record.described.get("adversary")
    return str(found) if found else None


def utility_error(loaded: LoadedRecord) -> float:
    """Return the standard error of a run's utility over the test samples, of a share binomial."""
    utility = loaded.record.utility
    assert utility is not None, "a record with scores has a utility"
    if utility.name == "accuracy":
        return share_error(loaded.record.accuracy, utility.n_test)
    return float(loaded.test_correct().std(ddof=1) / np.sqrt(utility.n_test))


@dataclass(frozen=True)
class Entry:
    """``records`` by seed; ``targets``: the section's by seed, a record's other targets do not
    count.
    """

    attack: str
    records: dict[int, LoadedRecord]
    targets: dict[int, tuple[int, ...]]

    @cached_property
    def outcomes(self) -> Counter[str]:
        """Number of seeds by outcome (see :func:`outcome_of`)."""
        return Counter(outcome_of(self.records.get(s)) for s in self.targets)

    @property
    def complete(self) -> bool:
        """Every seed has scores, and every target of the section too; a seed on which every cell
        failed names no target.
        """
        judged = all(self.ok(seed) is not None for seed in self.targets)
        return judged and len(self.units("mix")) == sum(map(len, self.targets.values()))

    @property
    def skipped(self) -> bool:
        """The attack does not apply to this defense, as opposed to having failed on it."""
        return self.outcomes["skipped"] == len(self.targets)

    @property
    def broken(self) -> bool:
        """A seed has no score though the attack applies and the federation did not diverge."""
        return not self.outcomes.keys().isdisjoint(("failed", "timeout", MISSING))

    def ok(self, seed: int) -> LoadedRecord | None:
        """The seed's record, where it has scores."""
        loaded = self.records.get(seed)
        return loaded if loaded is not None and loaded.record.outcome == "ok" else None

    def _judged(self) -> Iterator[tuple[Unit, TargetScores]]:
        for seed, targets in self.targets.items():
            if (loaded := self.ok(seed)) is not None:
                yield from (
                    ((seed, t.target), t) for t in loaded.record.targets if t.target in targets
                )

    def units(self, group: Group) -> dict[Unit, Score]:
        """The scores over seeds x targets."""
        return {unit: t.groups[group] for unit, t in self._judged() if group in t.groups}

    def interval(self, metric: str, group: Group = "mix") -> Interval | None:
        """Mean over seeds x targets, as measured, with its 95 % interval; None where the metric
        does not apply to any.
        """
        found = {
            u: (v, s.error(metric))
            for u, s in self.units(group).items()
            if (v := s.value(metric)) is not None
        }
        return over_units(
            {
                u: Measured(v, float("nan") if error is None else error)
                for u, (v, error) in found.items()
            }
        )

    def mean(self, metric: str, group: Group = "mix") -> float | None:
        """The mean of :meth:`interval` alone."""
        return mean_of([s.value(metric) for s in self.units(group).values()])

    def pooled_tf01(self) -> Interval | None:
        """TF01 in percent of the mix, as measured, over all units pooled; None with too few
        non-members, or without scores.
        """
        return tf01_of([self._mix(*unit) for unit in self.units("mix")])

    def _mix(self, seed: int, target: int) -> Sample:
        c = self.records[seed].candidates(target)
        counted = c.in_mix & (c.kind >= 0)
        member, other = counted & (c.kind == MEMBER), counted & (c.kind != MEMBER)
        return Sample(seed, c.scores[member], c.scores[other], c.ids[other])

    @property
    def decisions(self) -> dict[Unit, tuple[DecisionScores, Score]]:
        """What the attack decided for each seed x target, with the numbers of candidates."""
        return {
            unit: (t.decision, t.groups["mix"])
            for unit, t in self._judged()
            if "mix" in t.groups and t.decision is not None
        }

    def decision_mean(self, field: str) -> float | None:
        """Mean of one field of ``DecisionScores``; None where no seed has it."""
        return mean_of([getattr(d, field) for d, _ in self.decisions.values()])

    @property
    def single_rounds(self) -> list[RoundScores]:
        """Scores by how the round is chosen, of each seed x target, where the attack uses a single
        one.
        """
        return [t.rounds for _, t in self._judged() if t.rounds is not None]

    @cached_property
    def maxima(self) -> dict[Unit, MaximumScores]:
        """The largest value over the rounds, of each seed x target with one in its record."""
        return {unit: t.maximum for unit, t in self._judged() if t.maximum is not None}

    def null_maxima(self, unit: Unit) -> tuple[np.ndarray, np.ndarray]:
        """(AUC [B], advantage [B]): the same under shuffled memberships, of a unit that has one."""
        return self.records[unit[0]].null_maxima(unit[1])

    def accuracies(self, best: bool = False) -> dict[Unit, Measured]:
        """Attack accuracy in the last round (or the oracle's best) of every seed x target;
        fractions.
        """
        found: dict[Unit, Measured] = {}
        for unit, (d, s) in self.decisions.items():
            accuracy, recall = (
                (d.best_accuracy, d.best_recall) if best else (d.last_accuracy, d.last_recall)
            )
            found[unit] = Measured(
                accuracy, accuracy_error(accuracy, recall, s.n_members, s.n_nonmembers)
            )
        return found

    def attack_accuracy(self, best: bool = False) -> Interval | None:
        """Mean of :meth:`accuracies` with its 95 % interval."""
        return over_units(self.accuracies(best))

    def of_group(self, groups: Sequence[ClientGroup], g: int) -> Entry:
        """The entry with the targets of one group alone: the group itself, or clients of its block
        of ids.
        """
        ends = list(accumulate(group.clients for group in groups))

        def mine(code: int) -> bool:
            target = Target.of(code)
            return (
                target.index == g
                if target.kind == "group"
                else ends[g] - groups[g].clients <= code < ends[g]
            )

        return replace(
            self,
            targets={seed: tuple(filter(mine, targets)) for seed, targets in self.targets.items()},
        )

    def findings(self, label: str, seed: int) -> Findings | None:
        """What the analysis found in this cell; None without scores, or where it found nothing."""
        loaded = self.ok(seed)
        return findings_of(loaded, label) if loaded else None


@dataclass(frozen=True)
class Row:
    """``entries`` by attack, at least one; ``seeds``: the section's; ``refuted``: one of its cells
    was run again here and not reproduced, so the row is shown but counts nowhere; ``left_out``:
    attacks that no rank of the section counts.
    """

    label: str
    name: str
    entries: dict[str, Entry]
    seeds: tuple[int, ...]
    refuted: bool = False
    left_out: frozenset[str] = frozenset()

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
    def complete(self) -> bool:
        """Every attack that counts and applies has all its scores, and none is refuted; only such a
        row has a rank.
        """
        entries = [
            e for attack, e in self.entries.items() if attack not in self.left_out and not e.skipped
        ]
        return not self.refuted and bool(entries) and all(e.complete for e in entries)

    @property
    def outcomes(self) -> Counter[str]:
        """Number of (attack, seed) cells by outcome."""
        return sum((e.outcomes for e in self.entries.values()), start=Counter())

    @property
    def records(self) -> list[LoadedRecord]:
        """By attack and seed."""
        return [e.records[s] for e in self.entries.values() for s in sorted(e.records)]

    def means(self, metric: str, group: Group = "mix") -> dict[str, float]:
        """Attack -> mean over seeds x targets, for the attacks that have one."""
        return {
            a: mean for a, e in self.entries.items() if (mean := e.mean(metric, group)) is not None
        }

    def mean(self, metric: str, group: Group, attacks: Collection[str]) -> float | None:
        """Mean over these attacks, as measured."""
        return mean_of(
            [mean for attack, mean in self.means(metric, group).items() if attack in attacks]
        )

    # -- the run of each seed that accuracy, time, facts and findings are taken from ---------------

    @cached_property
    def active_attack(self) -> str | None:
        """The active attack under which the row's accuracy and time are taken; None: none, it has a
        passive run.

        An active attack is trained inside a run of its own: its accuracy is not that of the defense
        alone. A row with active runs only is taken under the attack with the most seeds, a tie
        going to the first by name.
        """
        found = [
            adversary_of(loaded)
            for e in self.entries.values()
            for s in e.targets
            if (loaded := e.ok(s))
        ]
        active = [a for a in found if a is not None]
        if len(active) < len(found) or not active:
            return None
        return min(active, key=lambda a: (-active.count(a), a))

    def utility_run(self, seed: int) -> list[LoadedRecord]:
        """The records of the seed's run that accuracy and time are taken from (see
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
        """Test accuracy of the runs over seeds with its 95 % interval, as a fraction; None without
        scores.
        """
        measured = [l for l in self.utility_records.values() if l.record.utility]
        if not measured:
            return None
        values = [l.record.accuracy for l in measured]
        return combined_interval(values, list(map(utility_error, measured)))

    @property
    def histories(self) -> list[list[RoundRow]]:
        """The audited rounds of these runs, one list a seed that has one."""
        return [loaded.record.history for loaded in self.utility_records.values()]

    @property
    def facts(self) -> dict[str, list[FactValue]]:
        """Facts that the defense reports of these runs, in its order: one value a seed that has
        it.
        """
        found: dict[str, list[FactValue]] = {}
        for loaded in self.utility_records.values():
            for name, value in loaded.record.facts.items():
                found.setdefault(name, []).append(value)
        return found

    @property
    def remarks(self) -> list[str]:
        """Sentences that defenses report of the federation and of these runs (of a seed without
        one, of any run), each once.
        """
        found: dict[str, None] = {}
        for seed in self.seeds:
            cells = [e.records[seed] for e in self.entries.values() if seed in e.records]
            for loaded in (self.utility_run(seed) or cells)[:1]:
                found |= dict.fromkeys(remarks_in(loaded.record))
        return list(found)

    def findings(self, label: str, seed: int) -> Findings | None:
        """What the analysis found in the seed's run."""
        return (
            findings_of(self.utility_records[seed], label) if seed in self.utility_records else None
        )


def findings_of(loaded: LoadedRecord, label: str) -> Findings | None:
    """Findings of an analysis in a record; arrays are read on access."""
    found = loaded.record.analyses.get(label)
    return (
        None
        if found is None
        else Findings(found.numbers, _Arrays(loaded, label, found.arrays), found.arrays)
    )


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
    """The setting's groups with the sizes that an analysis counted as ``clients:NAME``; none where
    none counted them.
    """
    names = group_names([loaded])
    for found in loaded.record.analyses.values() if names else ():
        sizes = [found.numbers.get(f"clients:{name}") for name in names]
        if all(size is not None for size in sizes):
            return tuple(
                ClientGroup(n, int((s.value if s else None) or 0))
                for n, s in zip(names, sizes, strict=True)
            )
    return ()


def group_names(records: Sequence[LoadedRecord]) -> list[str]:
    """Names of the setting's groups, in the order of the targets -10, -11, ...; none where it has
    none.
    """
    for loaded in records:
        groups: Any = loaded.record.described.get("groups")
        if isinstance(groups, list) and all(isinstance(g, dict) and "name" in g for g in groups):
            return [str(g["name"]) for g in groups]
    return []


@dataclass(frozen=True)
class PrivacyClaim:
    """What a row claims of differential privacy, the largest over seeds and members: ``epsilon`` at
    ``delta``, the epsilon if an example is ``replaced``, and in ``terms`` the neighbouring
    relation, the sampling and the accountant.
    """

    epsilon: float
    delta: float
    replaced: float | None
    terms: tuple[str, ...]


_NUMBERS, _TERMS = (
    ("epsilon", "delta", "epsilon if replaced"),
    ("neighbours", "sampling", "accountant"),
)


def privacy_claims(row: Row) -> list[PrivacyClaim]:
    """Of a row with the facts ``epsilon``, ``delta`` (numbers, or lists of them) and ``neighbours``
    on every seed; of several defenses in one (their facts have a prefix), one claim each.
    """
    made = []
    for name in (name for name in row.facts if name == "epsilon" or name.endswith(": epsilon")):
        # what all groups of a coalition report alike has no prefix
        said = {
            part: row.facts.get(name.removesuffix("epsilon") + part) or row.facts.get(part, [])
            for part in _NUMBERS + _TERMS
        }
        found = {
            part: [x for v in values for x in (v if isinstance(v, list) else [v])]
            for part, values in said.items()
        }
        on_every_seed = all(
            len(said[part]) == len(row.utility_records)
            for part in ("epsilon", "delta", "neighbours")
        )
        if on_every_seed and all(type(x) in (int, float) for part in _NUMBERS for x in found[part]):
            epsilon, delta, replaced = (
                max((float(x) for x in found[part]), default=None) for part in _NUMBERS
            )
            if epsilon is not None and delta is not None:
                terms = dict.fromkeys(str(x) for part in _TERMS for x in found[part])
                made.append(PrivacyClaim(epsilon, delta, replaced, tuple(terms)))
    return made
