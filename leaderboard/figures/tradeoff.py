"""Privacy against utility: worst-case AUC and test accuracy of every complete row, with the Pareto front."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedbench.core.contract.board import Figure, Style
from fedbench.core.metrics import Interval, pareto_front
from fedbench.leaderboard.figures.style import legend_name, row_styles, title_of
from fedbench.leaderboard.statistics.rows import Row
from fedbench.leaderboard.statistics.sections import Section

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

Point = tuple[Row, Interval, Interval]
"""(row, its worst case, its test accuracy)"""


def tradeoff_figure(section: Section) -> Figure | None:
    """None without a complete row that has an accuracy."""
    rows: list[Point] = [
        (r, worst.found, r.accuracy)
        for r in section.rows if r.complete and (worst := section.comparison.worst(r.label)) and r.accuracy
    ]
    return Figure("tradeoff", "Privacy against utility", lambda style: _draw(style, section, rows)) if rows else None


def _draw(style: Style, section: Section, rows: list[Point]) -> Canvas:
    figure = style.new_figure(6.4, 4.2)
    axis = figure.subplots()
    looks = row_styles(section)
    for row, worst, accuracy in rows:
        s = looks[row.label]
        axis.errorbar(
            worst.mean, 100 * accuracy.mean, xerr=np.nan_to_num(worst.half_width), yerr=100 * accuracy.half_width,
            fmt=s["marker"], color=s["color"],
            ms=7, mec="white", mew=0.6, elinewidth=0.9, capsize=2, zorder=s["zorder"], label=legend_name(row),
        )  # fmt: skip
    _front(axis, np.array([(w.mean, 100 * (1 - a.mean)) for r, w, a in rows if not r.floor]).reshape(-1, 2))
    axis.axvline(0.5, color="0.6", lw=0.8, ls=":")
    axis.annotate("guessing", (0.5, 0), xycoords=("data", "axes fraction"), xytext=(3, 4),
                  textcoords="offset points", fontsize=7, color="0.4")  # fmt: skip
    axis.set_xlabel("worst-case AUC over attacks, outside non-members (left: more private)")
    axis.set_ylabel("test accuracy, % (up: more useful)")
    axis.grid(True, color="0.92", lw=0.6)
    axis.set_title(f"Privacy against utility, {title_of(section)}", fontsize=10)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return figure


def _front(axis: Axes, losses: np.ndarray) -> None:
    """The staircase of points no other beats; ``losses`` [n, 2]: worst AUC, test error in percent."""
    best = losses[pareto_front(losses)]
    best = best[np.argsort(best[:, 0])]
    axis.plot(best[:, 0], 100 - best[:, 1], drawstyle="steps-post", color="0.45", lw=1, ls=(0, (3, 2)), zorder=1,
              label="Pareto front")  # fmt: skip
