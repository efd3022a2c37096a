"""Log-log ROC curves: one panel an attack, one curve a defense."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedbench.core.contract.board import Figure, Style
from fedbench.leaderboard.figures.style import legend_name, row_styles, title_of
from fedbench.leaderboard.statistics.roc import fpr_grid, mean_roc
from fedbench.leaderboard.statistics.sections import Section

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

Styles = dict[str, dict[str, Any]]


def roc_figure(section: Section) -> Figure | None:
    """None when nothing has scores."""
    attacks = [a for a in section.attacks if any(r.entries[a].units("ofl") for r in section.rows)]
    return Figure("roc", "ROC curves", lambda style: _draw(style, section, attacks)) if attacks else None


def _draw(style: Style, section: Section, attacks: list[str]) -> Canvas:
    grid, looks = fpr_grid(section), row_styles(section)
    columns = 2 if len(attacks) in (2, 4) else min(3, len(attacks))
    rows = -(-len(attacks) // columns)
    lines = -(-len(looks) // 4)
    figure = style.new_figure(max(3.5 * columns, 5.0), 3.3 * rows + 0.75 + 0.22 * lines)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
    for axis, attack in zip(axes, attacks, strict=False):
        _panel(axis, section, attack, grid, looks)
        axis.set_title(style.literal(attack), fontsize=9)
    _name_axes(axes, len(attacks), columns)
    handles = [_handle(legend_name(r), looks[r.label]) for r in section.rows if r.label in looks]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)), frameon=False, fontsize=8)
    figure.suptitle(f"ROC, {title_of(section)}: mean over seeds x targets, outside non-members", fontsize=10)
    return figure


def _name_axes(axes: np.ndarray, panels: int, columns: int) -> None:
    for i, axis in enumerate(axes):
        if i >= panels:
            axis.set_visible(False)
        elif i + columns >= panels:
            axis.tick_params(labelbottom=True)
            axis.set_xlabel("false-positive rate")
        if i % columns == 0:
            axis.set_ylabel("true-positive rate")


def _panel(axis: Axes, section: Section, attack: str, grid: np.ndarray, looks: Styles) -> None:
    axis.plot(grid, grid, color="0.6", lw=0.8, zorder=1)
    if grid[0] <= 0.001:
        axis.axvline(0.001, color="0.5", lw=0.8, ls=":", zorder=1)
    for row in section.rows:
        tpr = mean_roc(section, row.label, attack, grid)
        if tpr is not None:
            look = {k: v for k, v in looks[row.label].items() if k != "marker"}
            axis.plot(grid, np.where(tpr > 0, tpr, np.nan), drawstyle="steps-post", **look)
    axis.set(xscale="log", yscale="log", xlim=(grid[0], 1), ylim=(grid[0], 1.05))
    axis.grid(True, which="major", color="0.92", lw=0.6)
    axis.tick_params(labelsize=8)


def _handle(label: str, look: dict[str, Any]) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=look["color"], ls=look["ls"], lw=look["lw"], label=label)
