"""The trade-off of every swept defense, attack by attack (FedMIA, Figure 6)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedbench.core import Figure, Section, Style, Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_ACROSS = 3


def sweep_figure(section: Section) -> Figure:
    """TF01 against test error over the strengths of each defense, one panel an attack."""
    return Figure("sweep", "Strengths of the defenses", partial(_draw, section))


def _draw(section: Section, style: Style) -> Canvas:
    found = section.sweeps()
    attacks = [a for a in section.attacks if any(a in s.points for s in found)]
    down = -(-len(attacks) // _ACROSS)
    figure = style.new_figure(3.2 * _ACROSS, 2.7 * down + 0.5)
    axes = figure.subplots(down, _ACROSS, squeeze=False).ravel()
    for axis, attack in zip(axes, attacks, strict=False):
        _panel(axis, style, found, attack)
    for axis in axes[len(attacks) :]:
        axis.remove()
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    where = style.literal(f"{section.setting}, coalition {section.coalition}", 90)
    figure.suptitle(f"Strengths of the defenses, {where} (down and left: better)")
    return figure


def _panel(axis: Axes, style: Style, found: Sequence[Sweep], attack: str) -> None:
    for i, sweep in enumerate(s for s in found if attack in s.points):
        points = sweep.points[attack]
        order = np.argsort(points[:, 1])
        axis.plot(
            100 * points[order, 1], 100 * points[order, 0], color=style.colour(i), ls=style.dashes(i), marker=style.marker(i),
            ms=4, lw=1.2, label=style.literal(sweep.family),
        )  # fmt: skip
    base = found[0].undefended[attack]
    axis.plot(100 * base[:, 1], 100 * base[:, 0], "ks", ms=5, label="none (undefended)")
    axis.set(title=style.literal(attack), xlabel="test error, %", ylabel="TF01, %")
    axis.grid(alpha=0.3)
