"""Test accuracy of the runs that were trained with an active adversary inside."""

from __future__ import annotations

import numpy as np

from fedbench.leaderboard.statistics.rows import Row, adversary_of
from fedbench.leaderboard.statistics.sections import Section


def accuracy_under_attack(section: Section) -> dict[str, dict[str, float]]:
    """Attack -> row label -> mean accuracy over seeds, a fraction; only of attacks that took part in some run."""
    shown: dict[str, dict[str, list[float]]] = {}
    for row in section.rows:
        for attack, label, accuracy in _active(row):
            shown.setdefault(attack, {}).setdefault(label, []).append(accuracy)
    return {a: {label: float(np.mean(found)) for label, found in rows.items()} for a, rows in sorted(shown.items())}


def _active(row: Row) -> list[tuple[str, str, float]]:
    found = []
    for seed in row.seeds:
        usual = {r.record.run_key for r in row.utility_run(seed)}
        for attack, entry in row.entries.items():
            loaded = entry.ok(seed)
            active = loaded and (adversary_of(loaded) or loaded.record.run_key not in usual)
            if loaded and active and loaded.record.utility:
                found.append((attack, row.label, loaded.record.utility.accuracy))
    return found
