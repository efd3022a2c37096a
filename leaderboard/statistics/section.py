"""All defenses of one setting, coalition and view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedbench.core.contract.section import ClientGroup
from fedbench.core.metrics import Group, Score
from fedbench.core.store.reading import LoadedRecord
from fedbench.leaderboard.statistics.compare import Comparison, accuracy_difference, compare
from fedbench.leaderboard.statistics.contest import Contest
from fedbench.leaderboard.statistics.groups import groups_in
from fedbench.leaderboard.statistics.rivals import Duel
from fedbench.leaderboard.statistics.row import FREE_RIDER, Row
from fedbench.leaderboard.statistics.spread import Unit
from fedbench.leaderboard.statistics.standing import Standing, standing
from fedbench.leaderboard.statistics.sweeps import Family, Sweep, families, sweeps


@dataclass(frozen=True, kw_only=True)
class Section:
    """``found``: its rows in any order. ``targets`` by seed. ``contest``: what an adversary gets out of each row. ``tuning``: the
    same of the seeds on which strengths are chosen, where the suite has any."""

    suite: str
    setting: str
    coalition: str
    view: str
    attacks: tuple[str, ...]
    found: tuple[Row, ...]
    targets: dict[int, tuple[int, ...]]
    contest: Contest
    tuning: Section | None = None

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Complete ones first, the lowest worst case first, floors last. Their scores are read when this is asked for."""
        return tuple(sorted(self.found, key=self._rank))

    def _rank(self, row: Row) -> tuple[bool, bool, float, float, str]:
        """Complete rows first, then the lowest worst case, then the lowest mean; the floors are last."""
        worst, mean = self.contest.worst(row.label), self.contest.mean(row.label)
        return row.floor, not row.complete, worst.found.mean if worst else 2.0, mean.mean if mean else 2.0, row.label

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
        return list(self.contest.units)

    @property
    def base(self) -> Row | None:
        """The undefended row."""
        return self.contest.base

    @property
    def free_rider(self) -> Row | None:
        """The row of members that upload nothing."""
        return next((r for r in self.rows if r.name == FREE_RIDER), None)

    @property
    def records(self) -> list[LoadedRecord]:
        """Every record that the section shows."""
        return [e.records[s] for r in self.rows for e in r.entries.values() for s in sorted(e.records)]

    @cached_property
    def compared(self) -> dict[str, Comparison]:
        """Row label -> what it costs beside the undefended row, and what its members contribute."""
        return compare(self)

    @cached_property
    def described(self) -> Mapping[str, Any]:
        """The setting in the words of its records; of the first, where they differ."""
        return next((loaded.record.described for loaded in self.records), {})

    @cached_property
    def groups(self) -> tuple[ClientGroup, ...]:
        """Groups of clients, in the order of the setting; none where no analysis counted them."""
        return next((g for r in self.rows for s in self.seeds for x in r.utility_run(s)[:1] if (g := groups_in(x))), ())

    @property
    def deciding(self) -> list[str]:
        """The attacks that say "member" by a threshold of their own."""
        return [a for a in self.attacks if any(r.entries[a].decisions for r in self.rows)]

    def scores(self, group: Group) -> list[Score]:
        """All scores over that group of candidates."""
        return [s for row in self.rows for entry in row.entries.values() for s in entry.units(group).values()]

    def duels(self, pairs: Sequence[tuple[str, str]]) -> list[Duel]:
        """The first defense minus the second, of those pairs whose rows are both here."""
        rows = {r.label: r for r in self.rows}
        here = [(a, b) for a, b in pairs if a in rows and b in rows and a != b]
        found = self.contest.between(here)
        return [Duel(
            first=a, second=b, worst=found[a, b].found if (a, b) in found else None,
            shown=(a, b) in found and found[a, b].shown, accuracy=accuracy_difference(rows[a], rows[b], self),
        ) for a, b in here]  # fmt: skip

    def families(self) -> list[Family]:
        """Every defense with its strengths, be it a single one, in the order of the names; floors are none."""
        return families(self.rows)

    def standing(self, label: str) -> Standing | None:
        """What the row of that label leaks and costs; None where there is no such row."""
        row = next((r for r in self.rows if r.label == label), None)
        return None if row is None else standing(self.contest, row, self.compared[label])

    def ranks(self, labels: Sequence[str]) -> dict[str, tuple[int, int]]:
        """(best, worst) rank of these rows among each other, of those that have one."""
        return self.contest.ranks_among(labels)

    def sweeps(self, least: int = 2) -> list[Sweep]:
        """Every defense with at least ``least`` strengths, in the order of the names."""
        return sweeps(self.contest, self.rows, least)
