"""Attack accuracy by defense: the last round with its interval, and the papers' best round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedbench.leaderboard.collect import Table
from fedbench.leaderboard.decisions import attack_accuracy, deciding, null_of_best
from fedbench.leaderboard.style import COLOURS, MARKERS, literal, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def decision_figure(table: Table) -> Figure | None:
    """One group a defense, one marker an attack: filled the last round, hollow best_round, a tick its null; None without."""
    attacks = deciding(table)
    if not attacks:
        return None
    figure = new_figure(max(5.0, 1.5 + 1.15 * len(table.rows)), 3.9)
    axis = figure.subplots()
    for i, attack in enumerate(attacks):
        _attack(axis, table, attack, i, (i - (len(attacks) - 1) / 2) * 0.8 / len(attacks))
    axis.axhline(0.5, color="0.5", lw=0.8, ls=":", zorder=1)
    axis.set_xticks(range(len(table.rows)), [literal(r.label) for r in table.rows], rotation=20, ha="right")
    axis.set_ylabel("attack accuracy (0.5: guessing)")
    axis.grid(True, axis="y", color="0.92", lw=0.6)
    where = literal(f"{table.setting}, coalition {table.coalition}, {table.view} view", 90)
    axis.set_title(f"Attack accuracy, {where}\nfilled: last round; hollow: best_round, dash: its null", fontsize=9)
    figure.legend(loc="outside lower center", ncols=min(5, len(attacks)), frameon=False, fontsize=8)
    return figure


def _attack(axis: Axes, table: Table, attack: str, i: int, offset: float) -> None:
    """Every defense's values of one attack; defenses without scores leave their place empty."""
    last = [attack_accuracy(r.cells[attack]) for r in table.rows]
    best = [attack_accuracy(r.cells[attack], best=True) for r in table.rows]
    null = [null_of_best(r.cells[attack]) for r in table.rows]
    x = np.arange(len(table.rows)) + offset
    colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
    axis.errorbar(
        x, [v.mean if v else np.nan for v in last], yerr=[v.half_width if v else np.nan for v in last], color=colour,
        fmt=marker, ms=5, elinewidth=0.9, capsize=2, zorder=3, label=literal(attack),
    )  # fmt: skip
    axis.plot(x, [v.mean if v else np.nan for v in best], marker, color=colour, mfc="none", ms=6, zorder=2)
    axis.plot(x, [np.nan if v is None else v for v in null], "_", color=colour, ms=8, zorder=2)
