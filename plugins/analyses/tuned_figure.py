"""Every strength of every defense in the plane of privacy and utility, on the reported seeds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedbench.core import Figure, Section, Standing, Strengths, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_NEAR = 5.0  # points of accuracy around the undefended run that the second panel shows, unless `within` asks for more
Point = tuple[float, float]
"""(worst case AUC, test accuracy in percent)"""


def tuned_figure(section: Section, found: Sequence[Strengths], within: float) -> Figure | None:
    """Two panels, all strengths and those near the undefended run's accuracy; None where nothing can be placed."""
    lines = {f.name: points_of(section, f.labels) for f in section.families()}
    if not any(lines.values()):
        return None
    return Figure("tuned", "Tuned defenses: privacy against utility", partial(_draw, section, lines, found, within))


def points_of(section: Section, labels: Sequence[str]) -> dict[str, Point]:
    """Label -> point, of the rows that have one, from the most private on: the order of the line."""
    found = {label: p for label in labels if (p := _point(section.standing(label))) is not None}
    return dict(sorted(found.items(), key=lambda item: (*item[1], item[0])))


def _point(s: Standing | None) -> Point | None:
    return None if s is None or s.worst is None or s.accuracy is None else (s.worst.mean, 100 * s.accuracy.mean)


def _draw(
    section: Section, lines: dict[str, dict[str, Point]], found: Sequence[Strengths], within: float, style: Style
) -> Canvas:
    figure = style.new_figure(11, 5.2)
    whole, near = figure.subplots(1, 2)
    plain = {r.label: p for r in section.rows if (r.undefended or r.floor) and (p := _point(section.standing(r.label)))}
    base = next((plain[r.label] for r in section.rows if r.undefended and r.label in plain), None)
    undefended = {r.label for r in section.rows if r.undefended}
    for axis in (whole, near):
        _strengths(axis, style, lines)
        _marks(axis, lines, found)
        for i, (label, point) in enumerate(plain.items()):
            look = {"color": "black", "marker": "s"} if label in undefended else {"color": "0.45", "marker": "xd+"[i % 3]}
            name = style.literal(label) + (" (undefended)" if label in undefended else " (floor)")
            axis.plot(*point, ls="", ms=7, zorder=5, label=name, **look)
        axis.set_xlabel("worst-case AUC, outside non-members (left: more private)")
        axis.axvline(0.5, color="0.6", lw=0.8, ls=":")
        axis.grid(True, color="0.92", lw=0.6)
    whole.set(title="all strengths", ylabel="test accuracy, % (up: more useful)")
    near.set(title="near the undefended run")
    if base is not None:
        _band((whole, near), base[1], within, [p[1] for own in lines.values() for p in own.values()])
    handles, labels = whole.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    figure.suptitle(f"Tuned defenses on the reported seeds, {style.literal(section.where, 90)}", fontsize=10)
    return figure


def _strengths(axis: Axes, style: Style, lines: dict[str, dict[str, Point]]) -> None:
    for i, (family, points) in enumerate(lines.items()):
        if points:
            x, y = np.array(list(points.values())).T
            axis.plot(
                x, y, color=style.colour(i), ls=style.dashes(i), marker=style.marker(i), ms=4, lw=1.1, zorder=3,
                label=style.literal(family),
            )  # fmt: skip


def _marks(axis: Axes, lines: dict[str, dict[str, Point]], found: Sequence[Strengths]) -> None:
    """A ring around what was chosen at matched accuracy, a square around the best: one may wear both."""
    marks = (("chosen at matched accuracy", "o", 11, {c.matched for c in found}),
             ("chosen as the best", "s", 14, {c.best for c in found}))  # fmt: skip
    for label, marker, size, taken in marks:
        at = np.array([p for own in lines.values() for name, p in own.items() if name in taken]).reshape(-1, 2)
        axis.plot(at[:, 0], at[:, 1], ls="", marker=marker, ms=size, mfc="none", mec="black", mew=0.9, zorder=4, label=label)


def _band(axes: tuple[Axes, Axes], base: float, within: float, accuracies: Sequence[float]) -> None:
    """Shade where accuracy is matched, and show the second panel from a few points below the undefended run on."""
    top = max([base, *accuracies]) + 1
    for axis in axes:
        axis.axhspan(base - within, top, color="0.93", zorder=0, label=f"at most {within:g} pp below undefended")
    axes[0].set_ylim(top=top)
    axes[1].set_ylim(base - max(_NEAR, 2 * within), top)
