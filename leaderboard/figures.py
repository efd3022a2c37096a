"""Figures of a section: ROC curves, privacy against utility. Equal records give equal files."""

from __future__ import annotations

import hashlib
import io
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbench.core.contract.board import Figure, Image, Style, Words, value
from fedbench.core.metrics import pareto_front
from fedbench.leaderboard import style as board_style
from fedbench.leaderboard.statistics.roc import fpr_grid, roc_band
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.style import legend_name, row_styles, title_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_METADATA: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
}
_SMALL = {"frameon": False, "fontsize": 8}


# -- files -----------------------------------------------------------------------------------------


def image_of(figure: Figure, section: Section) -> Image:
    """The figure, drawn and saved as PNG and SVG; names of files hold only letters, digits and
    hyphens of what a record says.
    """
    canvas, key = (
        figure.draw(board_style),
        (section.suite, section.setting, section.coalition, section.view),
    )
    # two sections never share a name
    digest = hashlib.sha256("\0".join(key).encode()).hexdigest()[:6]
    name = "-".join([slug(figure.kind), *map(slug, key[1:]), digest])
    files = {f"{name}.{suffix}": _saved(canvas, suffix) for suffix in _METADATA}
    return Image((Words(f"{figure.title}: "), section.where), files)


def slug(text: str) -> str:
    """Letters, digits and hyphens only."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "x"


def _saved(canvas: Canvas, suffix: str) -> bytes:
    """The file's bytes, without date or version, so that they can be compared and committed."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(canvas)
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "fedbench"}):
        canvas.savefig(buffer, format=suffix, metadata=_METADATA[suffix])
    return buffer.getvalue()


# -- ROC curves ------------------------------------------------------------------------------------


def roc_figure(section: Section) -> Figure | None:
    """Log-log ROC curves: one panel an attack, one curve a defense; None when nothing has
    scores.
    """
    attacks = [a for a in section.attacks if any(r.entries[a].units("ofl") for r in section.rows)]
    return (
        Figure("roc", "ROC curves", lambda style: _draw_roc(style, section, attacks))
        if attacks
        else None
    )


def _draw_roc(style: Style, section: Section, attacks: list[str]) -> Canvas:
    from matplotlib.lines import Line2D

    grid, looks = fpr_grid(section), row_styles(section)
    columns = 2 if len(attacks) in (2, 4) else min(3, len(attacks))
    rows, lines = -(-len(attacks) // columns), -(-len(looks) // 4)
    figure = style.new_figure(max(3.5 * columns, 5.0), 3.3 * rows + 0.75 + 0.22 * lines)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
    for i, axis in enumerate(axes):
        axis.set_visible(i < len(attacks))
        if i % columns == 0:
            axis.set_ylabel("true-positive rate")
        if len(attacks) - columns <= i < len(attacks):
            axis.tick_params(labelbottom=True)
            axis.set_xlabel("false-positive rate")
    for axis, attack in zip(axes, attacks, strict=False):
        _roc_panel(axis, section, attack, grid, looks)
        axis.set_title(style.literal(attack), fontsize=9)
    named = [(legend_name(r), looks[r.label]) for r in section.rows if r.label in looks]
    handles = [
        Line2D([], [], color=look["color"], ls=look["ls"], lw=look["lw"], label=name)
        for name, look in named
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)), **_SMALL)
    figure.suptitle(
        f"ROC, {title_of(section)}: mean over seeds x targets, outside non-members", fontsize=10
    )
    return figure


def _roc_panel(
    axis: Axes, section: Section, attack: str, grid: np.ndarray, looks: dict[str, dict[str, Any]]
) -> None:
    axis.plot(grid, grid, color="0.6", lw=0.8, zorder=1)
    if grid[0] <= 0.001:
        axis.axvline(0.001, color="0.5", lw=0.8, ls=":", zorder=1)
    for row in section.rows:
        if (band := roc_band(section, row.label, attack, grid)) is not None:
            look = {k: v for k, v in looks[row.label].items() if k != "marker"}
            axis.plot(
                grid, np.where(band.mean > 0, band.mean, np.nan), drawstyle="steps-post", **look
            )
    axis.set(xscale="log", yscale="log", xlim=(grid[0], 1), ylim=(grid[0], 1.05))
    axis.grid(True, which="major", color="0.92", lw=0.6)
    axis.tick_params(labelsize=8)


# -- privacy against utility -----------------------------------------------------------------------


def tradeoff_figure(section: Section) -> Figure | None:
    """Worst-case AUC and test accuracy of every complete row, with the Pareto front; None without a
    row that has both.
    """
    shown = any(
        r.complete and section.comparison.worst_cases.of(r.label).worst and r.accuracy
        for r in section.rows
    )
    return (
        Figure("tradeoff", "Privacy against utility", lambda style: _draw_tradeoff(style, section))
        if shown
        else None
    )


def _draw_tradeoff(style: Style, section: Section) -> Canvas:
    figure = style.new_figure(6.4, 4.2)
    axis, looks, losses = figure.subplots(), row_styles(section), []
    for row in section.rows:
        worst, accuracy = section.comparison.worst_cases.of(row.label).worst, row.accuracy
        if row.complete and worst and accuracy:
            s = looks[row.label]
            axis.errorbar(
                worst.found.mean,
                100 * accuracy.mean,
                xerr=value(worst.found).half_width,
                yerr=100 * accuracy.half_width if accuracy.between else None,
                fmt=s["marker"],
                color=s["color"],
                ms=7,
                mec="white",
                mew=0.6,
                elinewidth=0.9,
                capsize=2,
                zorder=s["zorder"],
                label=legend_name(row),
            )
            losses += [] if row.floor else [(worst.found.mean, 100 * (1 - accuracy.mean))]
    front = np.array(losses).reshape(-1, 2)
    front = front[pareto_front(front)]
    front = front[np.argsort(front[:, 0])]
    axis.plot(
        front[:, 0],
        100 - front[:, 1],
        drawstyle="steps-post",
        color="0.45",
        lw=1,
        ls=(0, (3, 2)),
        zorder=1,
        label="Pareto front",
    )
    axis.axvline(0.5, color="0.6", lw=0.8, ls=":")
    axis.annotate(
        "guessing",
        (0.5, 0),
        xycoords=("data", "axes fraction"),
        xytext=(3, 4),
        textcoords="offset points",
        fontsize=7,
        color="0.4",
    )
    axis.set_xlabel("worst-case AUC over attacks, outside non-members (left: more private)")
    axis.set_ylabel("test accuracy, % (up: more useful)")
    axis.grid(True, color="0.92", lw=0.6)
    axis.set_title(f"Privacy against utility, {title_of(section)}", fontsize=10)
    figure.legend(loc="outside right upper", **_SMALL)
    return figure
