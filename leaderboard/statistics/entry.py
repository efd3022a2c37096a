"""One defense against one attack: a record for each seed that has one, and the numbers over seeds x targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import numpy as np

from fedbench.core.contract.analysis import Findings
from fedbench.core.contract.candidates import MEMBER
from fedbench.core.contract.section import ClientGroup
from fedbench.core.metrics import Group, Interval, Score
from fedbench.core.population.target import Target
from fedbench.core.store.reading import LoadedRecord
from fedbench.core.store.scores import DecisionScores, MaximumScores, RoundScores, TargetScores
from fedbench.leaderboard.statistics.intervals import accuracy_error
from fedbench.leaderboard.statistics.rates import tf01_of
from fedbench.leaderboard.statistics.sample import Sample
from fedbench.leaderboard.statistics.spread import Measured, Unit, mean_over_units, over_units

MISSING = "missing"  # no record at all: not run yet
BY_ADVERSARY = "by the adversary"


def ended(loaded: LoadedRecord | None) -> str:
    """How a cell ended, in words: its outcome, and whether an adversary inside brought that about; None: ``missing``."""
    if loaded is None:
        return MISSING
    return f"{loaded.record.outcome} {BY_ADVERSARY}" if loaded.record.by_adversary else loaded.record.outcome


@dataclass(frozen=True)
class Entry:
    """``records`` by seed; ``targets``: the section's by seed, a record's other targets do not count."""

    attack: str
    records: dict[int, LoadedRecord]
    targets: dict[int, tuple[int, ...]]

    @cached_property
    def outcomes(self) -> Counter[str]:
        """How many seeds ended how (see :func:`ended`)."""
        return Counter(ended(self.records.get(s)) for s in self.targets)

    @property
    def complete(self) -> bool:
        """Every seed and every target of the section has a score; a seed on which every cell failed names no target, but
        lacks its scores all the same."""
        judged = all(self.ok(seed) is not None for seed in self.targets)
        return judged and len(self.units("mix")) == sum(map(len, self.targets.values()))

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
        return {(seed, t.target): t.groups[group] for seed, t in self._judged() if group in t.groups}

    def _judged(self) -> Iterator[tuple[int, TargetScores]]:
        for seed, targets in self.targets.items():
            if (loaded := self.ok(seed)) is not None:
                yield from ((seed, t) for t in loaded.record.targets if t.target in targets)

    def interval(self, metric: str, group: Group = "mix") -> Interval | None:
        """Mean over seeds x targets, as measured, with its 95 % interval; None where the metric does not apply to any."""
        return over_units(self._measured(metric, group))

    def mean(self, metric: str, group: Group = "mix") -> float | None:
        """The mean of :meth:`interval` alone."""
        return mean_over_units(self._measured(metric, group))

    def _measured(self, metric: str, group: Group) -> dict[Unit, Measured]:
        found = {u: (v, s.error(metric)) for u, s in self.units(group).items() if (v := s.value(metric)) is not None}
        return {u: Measured(v, float("nan") if error is None else error) for u, (v, error) in found.items()}

    def pooled_tf01(self) -> Interval | None:
        """TF01 in percent of the mix, as measured, over all units pooled; None with too few non-members, or without scores."""
        return tf01_of([self._mix(seed, t.target) for seed, t in self._judged() if "mix" in t.groups])

    def _mix(self, seed: int, target: int) -> Sample:
        c = self.records[seed].candidates(target)
        counted = c.in_mix & (c.kind >= 0)
        member, other = counted & (c.kind == MEMBER), counted & (c.kind != MEMBER)
        return Sample(seed, c.scores[member], c.scores[other], c.ids[other])

    @property
    def decisions(self) -> dict[Unit, tuple[DecisionScores, Score]]:
        """What the attack said of each seed x target, with the numbers of candidates."""
        judged = [(seed, t) for seed, t in self._judged() if "mix" in t.groups]
        return {(seed, t.target): (t.decision, t.groups["mix"]) for seed, t in judged if t.decision is not None}

    @property
    def single_rounds(self) -> list[RoundScores]:
        """By how its round is chosen, of each seed x target, where the attack uses a single one."""
        return [t.rounds for _, t in self._judged() if t.rounds is not None]

    @cached_property
    def maxima(self) -> dict[Unit, MaximumScores]:
        """The largest value over the rounds, of each seed x target whose record knows it."""
        return {(seed, t.target): t.maximum for seed, t in self._judged() if t.maximum is not None}

    def null_maxima(self, unit: Unit) -> tuple[np.ndarray, np.ndarray]:
        """(AUC [B], advantage [B]): the same under shuffled memberships, of a unit that has one."""
        seed, target = unit
        return self.records[seed].null_maxima(target)

    def attack_accuracy(self, best: bool = False) -> Interval | None:
        """Attack accuracy in the last round (or the oracle's best) with its 95 % interval over seeds x targets; fractions."""
        found: dict[Unit, Measured] = {}
        for unit, (d, s) in self.decisions.items():
            accuracy, recall = (d.best_accuracy, d.best_recall) if best else (d.last_accuracy, d.last_recall)
            found[unit] = Measured(accuracy, accuracy_error(accuracy, recall, s.n_members, s.n_nonmembers))
        return over_units(found)

    def of_group(self, groups: Sequence[ClientGroup], g: int) -> Entry:
        """The entry with the targets of one group alone: the group itself, or clients of its block of ids."""
        ends = list(accumulate(group.clients for group in groups))

        def mine(code: int) -> bool:
            target = Target.of(code)
            return target.index == g if target.kind == "group" else ends[g] - groups[g].clients <= code < ends[g]

        return replace(self, targets={seed: tuple(filter(mine, targets)) for seed, targets in self.targets.items()})

    def findings(self, label: str, seed: int) -> Findings | None:
        """What the analysis found in this cell; None without scores, or where it found nothing."""
        loaded = self.ok(seed)
        return findings_of(loaded, label) if loaded else None


def findings_of(loaded: LoadedRecord, label: str) -> Findings | None:
    """What a record says under the label of an analysis; its arrays are read when asked for."""
    found = loaded.record.analyses.get(label)
    return None if found is None else Findings(found.numbers, _Arrays(loaded, label, found.arrays), found.arrays)


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
