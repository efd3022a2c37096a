"""The trade-off of every swept defense, attack by attack (FedMIA, Figure 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedbench.leaderboard.collect import Table
from fedbench.leaderboard.compare import compare
from fedbench.leaderboard.style import COLOURS, DASHES, MARKERS, new_figure
from fedbench.leaderboard.sweep import base_point, sweeps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ACROSS = 3


def sweep_figure(table: Table) -> Figure | None:
    """TF01 against test error over the strengths of each defense, one panel an attack; None without a sweep."""
    compared = compare(table)
    found = sweeps(table, compared)
    attacks = [a for a in table.attacks if any(a in s.points for s in found)]
    if not attacks:
        return None
    down = -(-len(attacks) // _ACROSS)
    figure = new_figure(3.2 * _ACROSS, 2.7 * down + 0.5)
    axes = figure.subplots(down, _ACROSS, squeeze=False).ravel()
    for axis, attack in zip(axes, attacks, strict=False):
        for i, sweep in enumerate(s for s in found if attack in s.points):
            points = sweep.points[attack]
            order = np.argsort(points[:, 1])
            axis.plot(
                100 * points[order, 1], 100 * points[order, 0], color=COLOURS[i % len(COLOURS)], ls=DASHES[i % len(DASHES)],
                marker=MARKERS[i % len(MARKERS)], ms=4, lw=1.2, label=sweep.family,
            )  # fmt: skip
        base = base_point(table, attack, compared)
        axis.plot(100 * base[:, 1], 100 * base[:, 0], "ks", ms=5, label="none (undefended)")
        axis.set(title=attack, xlabel="test error, %", ylabel="TF01, %")
        axis.grid(alpha=0.3)
    for axis in axes[len(attacks):]:
        axis.remove()
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(f"Strengths of the defenses, {table.setting}, coalition {table.coalition} (down and left: better)")
    return figure
