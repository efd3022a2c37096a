"""Privacy against utility of the complete rows but the floors: points, front and hypervolume (FedMIA, reference (1, 1))."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedbench.core.metrics import hypervolume, pareto_front
from fedbench.leaderboard.statistics.sections import Section

Point = tuple[float, float]
"""(privacy loss, test error), both fractions"""


@dataclass(frozen=True, kw_only=True)
class TradeOff:
    """``points`` and ``on_front`` by row label, hypervolumes ``of_row`` (with the undefended point), ``of_family`` (a
    defense that is listed with several parameters: their number, and all of them together) and of ``everything``."""

    loss: Literal["tf01", "auc"]
    points: dict[str, Point]
    on_front: dict[str, bool]
    of_row: dict[str, float]
    of_family: dict[str, tuple[int, float]]
    everything: float


def trade_off(section: Section) -> TradeOff | None:
    """None without a complete row that has an accuracy."""
    loss, losses = privacy_loss(section)
    points = {r.label: (losses[r.label], 1 - r.accuracy.mean) for r in section.rows if r.label in losses and r.accuracy}
    if not points:
        return None
    plain = [points[r.label] for r in section.rows if r.undefended and r.label in points]
    return TradeOff(
        loss=loss, points=points,
        on_front=dict(zip(points, map(bool, pareto_front(np.array(list(points.values())))), strict=True)),
        of_row={label: hypervolume(np.array([point, *plain])) for label, point in points.items()},
        of_family=_families(section, points, plain), everything=hypervolume(np.array(list(points.values()))),
    )  # fmt: skip


def privacy_loss(section: Section) -> tuple[Literal["tf01", "auc"], dict[str, float]]:
    """(its metric, row label -> value in [0, 1]) for the complete rows: the worst case over attacks, chosen on other folds.

    TF01 as a fraction where every row has it by thresholds of the units' own, else 2 AUC - 1 (below 0.5: 0).
    """
    labels, contest = [r.label for r in section.rows if r.complete and not r.floor], section.comparison
    rates = {label: contest.worst_tf01(label) for label in labels}
    if labels and all(rates.values()) and not contest.aligned():
        return "tf01", {label: w.found.mean / 100 for label, w in rates.items() if w}
    found = {label: contest.worst(label) for label in labels}
    return "auc", {label: min(1.0, max(0.0, 2 * w.found.mean - 1)) for label, w in found.items() if w}


def _families(section: Section, points: dict[str, Point], plain: list[Point]) -> dict[str, tuple[int, float]]:
    by_name: dict[str, list[Point]] = {}
    for row in section.rows:
        if row.label in points and not row.undefended:
            by_name.setdefault(row.name, []).append(points[row.label])
    return {
        name: (len(own), hypervolume(np.array([*own, *plain]))) for name, own in sorted(by_name.items()) if len(own) > 1
    }
