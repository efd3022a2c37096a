"""Sweeps: a measured number along a swept setting, and a defense's trade-off over its strengths."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from fedbench.core import Analysis, Params
from fedbench.core.report import (
    Block,
    Column,
    Content,
    Figure,
    Heading,
    Interval,
    Note,
    Section,
    Style,
    Sweep,
    Table,
    Value,
    Words,
    value,
)
from fedbench.leaderboard.statistics.intervals import bounded, holm
from fedbench.leaderboard.tables.common import joined, sentence
from fedbench.plugins.analyses.common import framed, grid, numbers, stroke, table, words
from fedbench.plugins.papers.curves import LOOKS, Curve, Line, SweptPlace, lines_of, places_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_ACROSS = 3
PAPER = "the paper's (hollow)"


class Sweeps(Analysis):
    """Accuracy and TF01 of the rows that are one defense at several strengths, and ``curves`` over
    several settings, coalitions or rows; asks nothing of a run.

    A curve has our mean with its 95 % interval at each point, the paper's numbers as hollow marks
    where the suite's ``published`` names them, and the direction of each line: Kendall's rank
    correlation. Source: FedMIA (Zhu et al., CVPR 2025), Table 2 and Figures 4 to 6.
    """

    place = "costs"

    class Params(Params):
        curves: list[Curve] = Field([], max_length=50, description="the sweeps of the suite")

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """Draw the hypervolume of every sweep against every attack, and its curve."""
        sweeps = section.sweeps()
        if sweeps:
            yield _sweep_table(section, sweeps)
        if any(sweep.points for sweep in sweeps):
            yield Figure("sweep", "Strengths of the defenses", partial(_draw_sweep, section))

    def draw_board(
        self, sections: Sequence[Any], published: Sequence[Mapping[str, Any]]
    ) -> Iterator[Block]:
        """Draw a figure and a table of directions for each curve, once for each place that has its
        points.
        """
        if self.params.curves:
            yield Heading(2, Words("Sweeps"))
        for curve in self.params.curves:
            places = places_of(curve, sections)
            if not places:
                names = joined(name for name, _ in curve.points)
                text = "The sweep {} has fewer than two of its points on this board: {}."
                yield Note(sentence(text, curve.name, names))
            for at in places:
                lines = lines_of(at, published)
                yield Figure(at.kind, at.title, partial(_draw_curve, at, lines))
                yield _directions(at, lines)


# ---------------------------------------------------------------- figure and directions


def _draw_curve(at: SweptPlace, lines: Sequence[Line], style: Style) -> Canvas:
    """Draw a panel a measure and defense with a line an attack, or a measure with a line a
    defense.
    """
    panels: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        q = line.quantity
        row = q.row if q.attack and at.curve.over != "rows" else ""
        panels.setdefault((q.measure, row), []).append(line)
    across = min(_ACROSS, len(panels))
    down = math.ceil(len(panels) / across)
    figure = style.new_figure(max(3.6 * across + 0.4, 6.0), 2.9 * down + 0.9)
    axes = figure.subplots(down, across, squeeze=False).ravel()
    names = list(dict.fromkeys(_name(at, line) for line in lines))
    for axis, ((measure, row), of_panel) in zip(axes, panels.items(), strict=False):
        for line in of_panel:
            name = _name(at, line)
            _draw_line(axis, style, line, names.index(name), name)
        axis.set_title(style.literal(row), fontsize=9)
        _frame(axis, style, at, measure)
    for axis in axes[len(panels) :]:
        axis.remove()
    _legend(figure, list(axes[: len(panels)]))
    title = style.literal(at.title, 90)
    figure.suptitle(f"{title}\nmean and 95 % interval over seeds", fontsize=10)
    return figure


def _frame(axis: Axes, style: Style, at: SweptPlace, measure: str) -> None:
    """Name the axes and the points, and draw the level of chance."""
    look = LOOKS[measure]
    if look.chance is not None:
        axis.axhline(look.chance, color="0.5", lw=0.8, ls=":", zorder=1)
    axis.set_xticks(range(len(at.points)), [style.literal(p.value, 12) for p in at.points])
    axis.set_xlabel(style.literal(at.curve.along, 60), fontsize=8)
    axis.set_ylabel(look.title, fontsize=8)
    axis.tick_params(labelsize=8)
    grid(axis)


def _name(at: SweptPlace, line: Line) -> str:
    if line.quantity.attack:
        return line.quantity.attack
    return "the defense" if at.curve.over == "rows" else line.quantity.row


def _draw_line(axis: Axes, style: Style, line: Line, i: int, name: str) -> None:
    look = stroke(style, i) | {"marker": style.marker(i), "ms": 4.5, "lw": 1.3, "zorder": 3}
    known = [(x, interval) for x, interval in enumerate(line.ours) if interval is not None]
    x = [place for place, _ in known]
    y = [interval.mean for _, interval in known]
    ends = [_ends(interval) for _, interval in known]
    axis.errorbar(
        x, y, np.array(ends).T, capsize=2, elinewidth=0.9, label=style.literal(name), **look
    )
    hollow = [(place, n) for place, printed in enumerate(line.printed) for n in printed]
    if hollow:
        mark: dict[str, Any] = {
            "marker": style.marker(i),
            "mec": style.colour(i),
            "mfc": "none",
            "ms": 8,
        }
        axis.plot(*zip(*hollow, strict=True), ls="", label=PAPER, **mark)


def _ends(interval: Interval) -> tuple[float, float]:
    """Distances of the interval's ends from its mean; 0 where it has no width."""
    if not interval.between:
        return 0.0, 0.0
    return max(0.0, interval.mean - interval.low), max(0.0, interval.high - interval.mean)


def _legend(figure: Canvas, axes: Sequence[Axes]) -> None:
    handles: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if PAPER in handles:
        handles[PAPER] = handles.pop(PAPER)  # last
    look: dict[str, Any] = {"loc": "outside lower center", "frameon": False, "fontsize": 8}
    figure.legend(handles.values(), handles.keys(), ncols=min(len(axes) + 2, len(handles)), **look)


def _directions(at: SweptPlace, lines: Sequence[Line]) -> Table:
    """Tabulate the rank correlation of each line and whether it rises or falls."""
    p_values = {i: line.direction.p for i, line in enumerate(lines) if line.direction}
    adjusted = holm(p_values)
    rows: list[tuple[Content, ...]] = []
    for i, line in enumerate(lines):
        q = line.quantity
        correlation = value(bounded(line.direction.interval, -1) if line.direction else None)
        verdict = _verdict(line, adjusted.get(i, 1.0))
        row = "" if at.curve.over == "rows" else q.row
        rows.append(
            (Words(LOOKS[q.measure].title), row, q.attack or "", correlation, Words(verdict))
        )
    columns = (
        words("number"),
        words("defense"),
        words("attack"),
        numbers("rank correlation", digits=2, signed=True),
        words("direction"),
    )
    order = joined((point.value for point in at.points), " to ")
    text = (
        ": {}, from {}; Kendall's rank correlation of that order with each number, mean over "
        "seeds, with a 95 % interval over resampled seeds that is nowhere narrower than without a "
        "direction; verdicts for all lines together (Holm)"
    )
    return table("Direction of the sweep", sentence(text, at.title, order), columns, rows)


def _verdict(line: Line, p: float) -> str:
    if line.direction is None:
        return f"n/a: {line.lacking}"
    if p > 0.05:
        return "none shown"
    return "rises" if line.direction.interval.mean > 0 else "falls"


# ---------------------------------------------------------------- hypervolume over strengths


def _sweep_table(section: Section, sweeps: Sequence[Sweep]) -> Table:
    rows: list[tuple[Content, ...]] = []
    for sweep in sweeps:
        areas = [Value(mean=sweep.hypervolumes.get(attack)) for attack in section.attacks]
        rows.append((sweep.family, Value(mean=len(sweep.labels)), *areas))
    columns = [words("defense"), numbers("strengths", digits=0)]
    columns += [Column(name=a, direction="higher", digits=4) for a in section.attacks]
    caption = (
        " (TF01 as a fraction against test error, reference (1, 1), undefended point included; "
        "larger = better defense, weaker attack)"
    )
    return table("Hypervolume over the sweep of a defense's strength", caption, columns, rows)


def _draw_sweep(section: Section, style: Style) -> Canvas:
    """Draw TF01 against test error over the strengths of each defense, one panel an attack."""
    sweeps = section.sweeps()
    attacks = [a for a in section.attacks if any(a in sweep.points for sweep in sweeps)]
    down = math.ceil(len(attacks) / _ACROSS)
    figure = style.new_figure(3.2 * _ACROSS, 2.7 * down + 0.5)
    axes = figure.subplots(down, _ACROSS, squeeze=False).ravel()
    for axis, attack in zip(axes, attacks, strict=False):
        _panel(axis, style, sweeps, attack)
    for axis in axes[len(attacks) :]:
        axis.remove()
    title = "Strengths of the defenses (down and left: better)"
    return framed(figure, axes[0], style, section, title)


def _panel(axis: Axes, style: Style, sweeps: Sequence[Sweep], attack: str) -> None:
    swept = [sweep for sweep in sweeps if attack in sweep.points]
    for i, sweep in enumerate(swept):
        points = 100 * sweep.points[attack]
        tf01, error = points[np.argsort(points[:, 1])].T
        look = stroke(style, i) | {"marker": style.marker(i), "ms": 4, "lw": 1.2}
        axis.plot(error, tf01, label=style.literal(sweep.family), **look)
    base = 100 * sweeps[0].undefended[attack]
    axis.plot(base[:, 1], base[:, 0], "ks", ms=5, label="none (undefended)")
    axis.set(title=style.literal(attack), xlabel="test error, %", ylabel="TF01, %")
    axis.grid(alpha=0.3)
