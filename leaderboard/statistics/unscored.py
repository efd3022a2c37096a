"""Cells that ended without a score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedbench.leaderboard.statistics.rows import ended
from fedbench.leaderboard.statistics.sections import Section


@dataclass(frozen=True, order=True, kw_only=True)
class Unscored:
    """Cells that ended alike; ``outcome``: as ``entry.ended`` says it; ``reason``: the record's own, empty where there is
    none."""

    setting: str
    coalition: str
    defense: str
    attack: str
    outcome: str
    reason: str


def unscored(sections: Sequence[Section]) -> dict[Unscored, list[int]]:
    """Every failed, timed-out, diverged, skipped or missing cell -> its seeds, in the order of the names."""
    found: dict[Unscored, set[int]] = {}
    for section in [*sections, *(s.tuning for s in sections if s.tuning is not None)]:
        for row in section.rows:
            for attack, entry in row.entries.items():
                for seed in section.seeds:
                    if entry.ok(seed) is None:
                        loaded = entry.records.get(seed)
                        coalition = next((r.record.coalition for r in [loaded, *row.records] if r), section.coalition)
                        cell = Unscored(
                            setting=section.setting, coalition=coalition, defense=row.label, attack=attack, outcome=ended(loaded),
                            reason=loaded.record.reason if loaded else "",
                        )  # fmt: skip
                        found.setdefault(cell, set()).add(seed)
    return {cell: sorted(seeds) for cell, seeds in sorted(found.items())}
