"""A defense at several strengths: privacy against utility, attack by attack (FedMIA, Table 2 and Figure 6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbench.core.metrics import hypervolume
from fedbench.leaderboard.statistics.contest import Contest
from fedbench.leaderboard.statistics.row import Row


@dataclass(frozen=True)
class Sweep:
    """The rows of one defense at several strengths. ``points[attack]``: [n, 2] (TF01 as a fraction, test error);
    ``undefended[attack]``: [k, 2], the same of the undefended row, or nothing."""

    family: str
    labels: tuple[str, ...]
    points: dict[str, np.ndarray]
    undefended: dict[str, np.ndarray]

    def hypervolume(self, attack: str) -> float:
        """Area between the front (undefended point included) and (1, 1); larger = better defense, weaker attack."""
        return hypervolume(np.vstack([self.points[attack], self.undefended[attack]]))


@dataclass(frozen=True)
class Family:
    """One defense at several strengths, or at one: its ``name`` and the ``labels`` of its rows, in the section's order."""

    name: str
    labels: tuple[str, ...]


def family(label: str) -> str:
    """What the rows of a sweep share: ``grad-noise[sigma=0.1]`` and ``grad-noise-0.5`` are both ``grad-noise``."""
    base = label.partition("[")[0]
    head, dash, tail = base.rpartition("-")
    return head if dash and tail.replace(".", "", 1).isdigit() else base


def families(rows: Sequence[Row]) -> list[Family]:
    """Every defense with its strengths, in the order of the names; the undefended row and the floors are none."""
    return [Family(name, tuple(r.label for r in mine)) for name, mine in sorted(_by_family(rows).items())]


def _by_family(rows: Sequence[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if not row.undefended and not row.floor:
            groups.setdefault(family(row.label), []).append(row)
    return groups


def sweeps(contest: Contest, rows: Sequence[Row], least: int) -> list[Sweep]:
    """Every defense with at least ``least`` strengths, in the order of the names; TF01 against outside non-members."""
    attacks, base = contest.attacks, contest.base
    groups = _by_family([r for r in rows if any(_point(contest, r, a) is not None for a in attacks)])
    undefended = {a: _points(contest, [base] if base else [], a) for a in attacks}
    found = []
    for name, mine in sorted(groups.items()):
        points = {a: _points(contest, mine, a) for a in attacks}
        if len(mine) >= least:
            labels = tuple(r.label for r in mine)
            found.append(Sweep(name, labels, {a: p for a, p in points.items() if len(p)}, undefended))
    return found


def _points(contest: Contest, rows: Sequence[Row], attack: str) -> np.ndarray:
    """[n, 2]: of the rows that have one."""
    return np.array([p for r in rows if (p := _point(contest, r, attack)) is not None]).reshape(-1, 2)


def _point(contest: Contest, row: Row, attack: str) -> tuple[float, float] | None:
    tf01 = contest.tf01(row.label, attack)
    return None if tf01 is None or row.accuracy is None else (tf01.mean / 100, 1 - row.accuracy.mean)
