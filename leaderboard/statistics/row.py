"""One defense of a section, and the run that stands for what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedbench.core.contract.analysis import Findings
from fedbench.core.contract.defense import FactValue
from fedbench.core.metrics import Group, Interval, combined_interval
from fedbench.core.store.reading import LoadedRecord
from fedbench.core.store.record import RoundRow
from fedbench.leaderboard.statistics.entry import Entry, findings_of
from fedbench.leaderboard.statistics.intervals import share_error

UNDEFENDED = "none"
FREE_RIDER = "free-rider"
FLOORS = (FREE_RIDER, "placebo")  # rows for comparison: they compete with nobody


@dataclass(frozen=True)
class Row:
    """``entries`` by attack, at least one; ``seeds``: the section's."""

    label: str
    name: str
    entries: dict[str, Entry]
    seeds: tuple[int, ...]

    @property
    def undefended(self) -> bool:
        """Whether this is the plain federation everything is compared with."""
        return self.name == UNDEFENDED

    @property
    def floor(self) -> bool:
        """Whether it is there for comparison alone: members that upload nothing, or train plainly in another order."""
        return self.name in FLOORS

    @property
    def complete(self) -> bool:
        """Every attack that applies has all its scores; only such a row has a rank."""
        entries = [e for e in self.entries.values() if not e.skipped]
        return bool(entries) and all(e.complete for e in entries)

    @property
    def outcomes(self) -> Counter[str]:
        """How many of the row's (attack, seed) cells ended how."""
        return sum((e.outcomes for e in self.entries.values()), start=Counter())

    @property
    def coalition(self) -> str | None:
        """The coalition its records were trained with (``none``: a server's rule or no defense); None without records."""
        return next((r.record.coalition for e in self.entries.values() for r in e.records.values()), None)

    def means(self, metric: str, group: Group = "mix") -> dict[str, float]:
        """Attack -> mean over seeds x targets, for the attacks that have one."""
        return {a: mean for a, e in self.entries.items() if (mean := e.mean(metric, group)) is not None}

    def mean(self, metric: str, group: Group, attacks: Collection[str]) -> float | None:
        """Mean over these attacks, as measured."""
        means = [mean for attack, mean in self.means(metric, group).items() if attack in attacks]
        return float(np.mean(means)) if means else None

    # -- the run that stands for the row's accuracy and time ----------------------------------------------------------

    @cached_property
    def stands_under(self) -> str | None:
        """The active attack under which the row's accuracy and time are taken; None: none, it has a passive run.

        An active attack is trained inside a run of its own, whose accuracy is not that of the defense alone. A row with
        active runs only is taken under the attack with the most seeds, a tie going to the first by name.
        """
        found = [adversary_of(loaded) for e in self.entries.values() for s in e.targets if (loaded := e.ok(s))]
        active = [a for a in found if a is not None]
        if len(active) < len(found) or not active:
            return None
        return min(active, key=lambda a: (-active.count(a), a))

    def utility_run(self, seed: int) -> list[LoadedRecord]:
        """The records of the run that stands for the row's accuracy and time (see :attr:`stands_under`).

        Of several such runs, the one most attacks judged; a tie goes to the first attack's.
        """
        runs: dict[str, list[LoadedRecord]] = {}
        for attack in sorted(self.entries):
            loaded = self.entries[attack].ok(seed)
            if loaded and adversary_of(loaded) == self.stands_under:
                runs.setdefault(loaded.record.run_key, []).append(loaded)
        return max(runs.values(), key=len, default=[])

    @cached_property
    def accuracy(self) -> Interval | None:
        """Test accuracy over seeds with its 95 % interval, as a fraction; None without scores."""
        found = [run[0].record.utility for seed in self.seeds if (run := self.utility_run(seed))]
        shares = [(u.accuracy, u.n_test) for u in found if u is not None]
        return combined_interval([p for p, _ in shares], [share_error(p, n) for p, n in shares]) if shares else None

    @property
    def histories(self) -> list[list[RoundRow]]:
        """The audited rounds of the run that stands for the row's accuracy, one list a seed that has one."""
        return [run[0].record.history for seed in self.seeds if (run := self.utility_run(seed))]

    @property
    def facts(self) -> dict[str, list[FactValue]]:
        """What the defense says of that run, fact by fact in its order: one value a seed that has it."""
        found: dict[str, list[FactValue]] = {}
        for seed in self.seeds:
            for loaded in self.utility_run(seed)[:1]:
                for name, value in loaded.record.facts.items():
                    found.setdefault(name, []).append(value)
        return found

    def findings(self, label: str, seed: int) -> Findings | None:
        """What the analysis found in the run that stands for the row's accuracy."""
        run = self.utility_run(seed)
        return findings_of(run[0], label) if run else None


def adversary_of(loaded: LoadedRecord) -> str | None:
    """Label of the active attack that the record's run was trained with; None: of a passive run."""
    found = loaded.record.described.get("adversary")
    return str(found) if found else None
