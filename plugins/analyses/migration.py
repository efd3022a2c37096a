"""Does migration lower the risk, or move it? Each client's exposure under IFCA and under a defense that lets it move.

Beyond the paper: IFCA-MIR counts the bounds that migration mends (section 5.2.2), not what becomes of those who stay.
"""

from __future__ import annotations

import numpy as np

from fedbench.core.metrics import Interval, auc, t_interval
from fedbench.core.population.audit import FIRST_GROUP, MEMBER
from fedbench.core.store.reading import LoadedRecord
from fedbench.leaderboard import text
from fedbench.leaderboard.collect import Row, Table

BASE = "ifca"  # clients follow their loss alone


def migration_table(table: Table) -> list[str]:
    """Markdown: mean exposure of the clients that end with another model than under IFCA, and of the others.

    Both start from the same initial models (one draw a seed), so model j is the same model in name. A client's exposure is
    the chance that an attack ranks a sample of its own above an outsider that looks like its group's.
    Nothing where the table lacks IFCA, or another defense of several models.
    """
    base = next((r for r in table.rows if r.name == BASE), None)
    others = [r for r in table.rows if r.name != BASE and _clustered(r)]
    if base is None or not others:
        return []
    rows = [
        [text.escape(row.label), text.escape(attack), *found]
        for row in others for attack in table.attacks if (found := _compared(base, row, attack, sorted(table.targets)))
    ]  # fmt: skip
    if not rows:
        return []
    headers = ["defense", "attack", "moved clients", "before", "after", "change", "others", "before", "after", "change"]
    return [
        f"**Does migration lower the risk, or move it?** AUC of a client's own members against outsiders like its group's, under "
        f"`{text.escape(base.label)}` (before) and under the defense (after), for clients that end with another model and "
        "for the others; means over seeds, change with its 95 % interval over clients x seeds",
        text.table(headers, rows, left=2),
    ]


def _clustered(row: Row) -> bool:
    records = [loaded for cell in row.cells.values() for loaded in cell.records.values()]
    return any(h.clusters for loaded in records for h in loaded.record.history)


def _compared(base: Row, row: Row, attack: str, seeds: list[int]) -> list[str]:
    """The cells of one line; nothing where no seed has scores of both."""
    moved: list[tuple[float, float]] = []
    stayed: list[tuple[float, float]] = []
    for seed in seeds:
        first, second = base.cells[attack].ok(seed), row.cells[attack].ok(seed)
        if first is None or second is None:
            continue
        before, after = _exposures(first), _exposures(second)
        models = first.assignment(), second.assignment()
        for client in sorted(before.keys() & after.keys()):
            group = moved if models[0][client] != models[1][client] else stayed
            group.append((before[client], after[client]))
    return [*_side(moved), *_side(stayed)] if moved or stayed else []


def _exposures(loaded: LoadedRecord) -> dict[int, float]:
    """Client -> AUC of its members among a group target's candidates against the group's outsiders."""
    found: dict[int, float] = {}
    for target in (t.target for t in loaded.record.targets if t.target <= FIRST_GROUP):
        seen, owner = loaded.candidates(target), loaded.owners(target)
        outside = seen.scores[(seen.kind != MEMBER) & (seen.kind >= 0)]
        for client in np.unique(owner[seen.kind == MEMBER]):
            own = seen.scores[(seen.kind == MEMBER) & (owner == client)]
            if len(own) and len(outside):
                found[int(client)] = auc(np.concatenate([own, outside]), np.arange(len(own) + len(outside)) < len(own))
    return found


def _side(pairs: list[tuple[float, float]]) -> list[str]:
    if not pairs:
        return ["0", "n/a", "n/a", "n/a"]
    before, after = np.array(pairs).T
    change = after - before
    mean = t_interval(change.tolist()) if len(change) > 1 else Interval(float(change.mean()), float("nan"), 1, between=False)
    numbers = [text.number(float(before.mean()), 3), text.number(float(after.mean()), 3)]
    return [str(len(pairs)), *numbers, text.interval(mean, 3, signed=True)]
