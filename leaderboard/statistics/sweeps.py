"""A defense over a sweep of its strength: hypervolume per attack (FedMIA, Table 2) and the curve of the trade-off."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedbench.core.metrics import hypervolume, pareto_front
from fedbench.leaderboard import text
from fedbench.leaderboard.collect import Row, Table
from fedbench.leaderboard.compare import Comparison


@dataclass(frozen=True)
class Sweep:
    """The rows of one defense at several strengths; ``points[attack]``: [n, 2] (TF01 as a fraction, test error)."""

    family: str
    labels: tuple[str, ...]
    points: dict[str, np.ndarray]

    def hypervolume(self, attack: str, base: np.ndarray) -> float:
        """Area between the front (undefended point included) and (1, 1); larger = better defense, weaker attack."""
        return hypervolume(np.vstack([self.points[attack], base]))

    def front(self, attack: str) -> np.ndarray:
        """[m] bool: the strengths no other strength beats in both privacy and utility."""
        return pareto_front(self.points[attack])


def family(label: str) -> str:
    """What the rows of a sweep share: ``grad-noise[sigma=0.1]`` and ``grad-noise-0.5`` are both ``grad-noise``."""
    base = label.partition("[")[0]
    head, dash, tail = base.rpartition("-")
    return head if dash and tail.replace(".", "", 1).isdigit() else base


def sweeps(table: Table, compared: dict[str, Comparison], least: int = 2) -> list[Sweep]:
    """Every defense with at least ``least`` strengths in the table, in the order of the names."""
    groups: dict[str, list[Row]] = {}
    for row in table.rows:
        if not row.undefended and _point(row, table.attacks[0], compared) is not None:
            groups.setdefault(family(row.label), []).append(row)
    found = []
    for name, rows in sorted(groups.items()):
        points = {a: np.array([p for r in rows if (p := _point(r, a, compared)) is not None]) for a in table.attacks}
        if len(rows) >= least:
            found.append(Sweep(name, tuple(r.label for r in rows), {a: p for a, p in points.items() if len(p)}))
    return found


def base_point(table: Table, attack: str, compared: dict[str, Comparison]) -> np.ndarray:
    """[k, 2]: the undefended point, or nothing."""
    point = _point(table.base, attack, compared) if table.base else None
    return np.array([point]) if point is not None else np.zeros((0, 2))


def _point(row: Row, attack: str, compared: dict[str, Comparison]) -> tuple[float, float] | None:
    tf01, accuracy = row.means("tf01").get(attack), compared[row.label].accuracy
    return None if tf01 is None or accuracy is None else (tf01 / 100, 1 - accuracy.mean)


def sweep_table(table: Table, compared: dict[str, Comparison]) -> list[str]:
    """Markdown: hypervolume of every sweep against every attack; nothing where no defense was swept."""
    found = sweeps(table, compared)
    if not found:
        return []
    rows = [
        [text.escape(s.family), str(len(s.labels))]
        + [f"{s.hypervolume(a, base_point(table, a, compared)):.4f}" if a in s.points else "n/a" for a in table.attacks]
        for s in found
    ]
    note = (
        "**Hypervolume over the sweep of a defense's strength** (TF01 as a fraction against test error, reference (1, 1), "
        "undefended point included; larger = better defense, weaker attack)"
    )
    return [note, text.table(["defense", "strengths", *map(text.escape, table.attacks)], rows)]

