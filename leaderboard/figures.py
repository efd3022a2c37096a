"""Figures of a section: ROC curves, privacy against utility. Equal records give equal files."""

from __future__ import annotations

import hashlib
import io
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbench.core.contract.board import Figure, Image, Style, Text, Words, value
from fedbench.core.contract.section import RowSummary
from fedbench.core.metrics import Interval, pareto_front
from fedbench.leaderboard import style as board_style
from fedbench.leaderboard.columns import column_for
from fedbench.leaderboard.statistics.roc import fpr_grid, roc_band
from fedbench.leaderboard.statistics.rows import DefenseRow
from fedbench.leaderboard.statistics.sections import BoardSection
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


def image_of(figure: Figure, section: BoardSection | None) -> Image:
    """Draw a figure of a section, or of a whole board, as PNG and SVG; names of files hold only
    letters, digits and hyphens of what a record says.
    """
    canvas = figure.draw(board_style)
    place: tuple[str, ...] = ("", figure.kind)
    parts: list[str] = [figure.kind]
    alt: Text = figure.title
    if section is not None:
        place = section.suite, section.setting, section.coalition, section.view
        parts += place[1:]
        alt = (Words(f"{figure.title}: "), section.where)
    # two sections never share a name
    digest = hashlib.sha256("\0".join(place).encode()).hexdigest()[:6]
    name = "-".join([*map(slug, parts), digest])
    files = {f"{name}.{suffix}": _saved(canvas, suffix) for suffix in _METADATA}
    return Image(alt, files)


def slug(text: str) -> str:
    """Keep letters, digits and hyphens only."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "x"


def _saved(canvas: Canvas, suffix: str) -> bytes:
    """Return the file's bytes, without date or version, so that they can be compared and
    committed.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(canvas)
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "fedbench"}):
        canvas.savefig(buffer, format=suffix, metadata=_METADATA[suffix])
    return _with_palette(buffer) if suffix == "png" else buffer.getvalue()


def _with_palette(png: io.BytesIO) -> bytes:
    """Return the picture in 128 colours, at a third of the size."""
    from PIL import Image as pil

    small = io.BytesIO()
    pil.open(png).convert("RGB").quantize(128).save(small, format="png", optimize=True)
    return small.getvalue()


# -- ROC curves ------------------------------------------------------------------------------------


def roc_figure(section: BoardSection) -> Figure | None:
    """Return log-log ROC curves: one panel an attack, one curve a defense; None when nothing has
    scores.
    """
    attacks = [a for a in section.attacks if any(r.entries[a].units("ofl") for r in section.rows)]
    if not attacks:
        return None
    return Figure("roc", "ROC curves", lambda style: _draw_roc(style, section, attacks))


def _draw_roc(style: Style, section: BoardSection, attacks: list[str]) -> Canvas:
    columns = 2 if len(attacks) in (2, 4) else min(3, len(attacks))
    rows = -(-len(attacks) // columns)
    lines = -(-len(section.rows) // 4)
    figure = style.new_figure(max(3.5 * columns, 5.0), 3.3 * rows + 0.75 + 0.22 * lines)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
    for axis in axes[len(attacks) :]:
        axis.set_visible(False)
    for axis, attack in zip(axes, attacks, strict=False):
        _roc_panel(axis, section, attack)
        axis.set_title(style.literal(attack), fontsize=9)
        axis.tick_params(labelsize=8, labelbottom=True)
    curves = {line.get_label(): line for axis in axes for line in axis.get_lines()}
    handles = [line for name, line in curves.items() if not str(name).startswith("_")]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)), **_SMALL)
    title = f"ROC, {title_of(section)}: mean over seeds x targets, outside non-members"
    figure.suptitle(title, fontsize=10)
    return figure


def _roc_panel(axis: Axes, section: BoardSection, attack: str) -> None:
    grid, looks = fpr_grid(section), row_styles(section)
    axis.plot(grid, grid, color="0.6", lw=0.8, zorder=1)
    axis.axvline(max(0.001, grid[0]), color="0.5", lw=0.8, ls=":", zorder=1)
    for row in section.rows:
        band = roc_band(section, row.label, attack, grid)
        if band is not None:
            rates = np.where(band.mean > 0, band.mean, np.nan)
            look = looks[row.label] | {"marker": ""}
            axis.plot(grid, rates, drawstyle="steps-post", label=legend_name(row), **look)
    axis.set(xscale="log", yscale="log", xlim=(grid[0], 1), ylim=(grid[0], 1.05))
    axis.set_xlabel("false-positive rate", fontsize=8)
    axis.set_ylabel("true-positive rate", fontsize=8)
    axis.grid(True, which="major", color="0.92", lw=0.6)


# -- candidates that are found ---------------------------------------------------------------------


def vulnerability_figure(section: BoardSection) -> Figure | None:
    """Return how often each candidate is found, one curve a defense over candidates in descending
    order; None without enough federations of one pool.
    """
    if not section.calibrates:
        return None
    return Figure("found", "Candidates that are found", lambda style: _draw_found(style, section))


def _draw_found(style: Style, section: BoardSection) -> Canvas:
    looks = row_styles(section)
    figure = style.new_figure(6.4, 4.2)
    axis = figure.subplots()
    for row in section.rows:
        finds = section.comparison.found(row.label)
        if finds is not None:
            share = np.arange(1, len(finds.shares) + 1) / len(finds.shares)
            look = looks[row.label] | {"marker": ""}
            axis.plot(100 * share, 100 * finds.shares, label=legend_name(row), **look)
    axis.axhline(1.0, color="0.5", lw=0.8, ls=":", zorder=1)
    axis.set(xscale="log", xlabel="candidates, most often found first (%)", ylim=(0, 100))
    axis.set_ylabel("federations with it in which it is found (%)")
    axis.set_title(f"{title_of(section)}: at an FPR of 1 % for each candidate", fontsize=9)
    axis.legend(fontsize=7, frameon=False)
    return figure


# -- privacy against utility -----------------------------------------------------------------------


def tradeoff_figure(section: BoardSection) -> Figure | None:
    """Return worst-case AUC and test accuracy of every complete row, with the Pareto front; None
    without a row that has both.
    """
    points = [s for s in section.summaries.values() if s.complete and s.worst and s.accuracy]
    if not points:
        return None
    title = "Privacy against utility"
    return Figure("tradeoff", title, lambda style: _draw_tradeoff(style, section, points))


def _draw_tradeoff(style: Style, section: BoardSection, points: list[RowSummary]) -> Canvas:
    figure = style.new_figure(6.4, 4.2)
    axis = figure.subplots()
    column = column_for("accuracy", section.utility)
    looks = row_styles(section)
    losses = []
    for summary in points:
        row, worst, utility = section.row(summary.label), summary.worst, summary.accuracy
        assert row is not None and worst is not None and utility is not None
        _point(axis, row, worst, utility, column.scale, looks[row.label])
        if not row.floor:
            losses.append((worst.mean, section.test_error(utility.mean), utility.mean))
    _front(axis, np.array(losses).reshape(-1, 3), column.scale)
    axis.axvline(0.5, color="0.6", lw=0.8, ls=":", label="guessing")
    axis.set_xlabel("worst-case AUC over attacks, outside non-members (left: more private)")
    name = ", ".join(filter(None, (f"test {column.title}", column.unit)))
    useful = {"higher": "up", "lower": "down"}[column.direction]
    axis.set_ylabel(f"{name} ({useful}: more useful)")
    axis.grid(True, color="0.92", lw=0.6)
    axis.set_title(f"Privacy against utility, {title_of(section)}", fontsize=10)
    figure.legend(loc="outside right upper", **_SMALL)
    return figure


def _front(axis: Axes, points: np.ndarray, scale: float) -> None:
    """Draw the Pareto front of ``points`` [n, 3]: worst-case AUC, test error and utility."""
    front = points[pareto_front(points[:, :2])]
    front = front[np.argsort(front[:, 0])]
    axis.plot(
        front[:, 0],
        scale * front[:, 2],
        drawstyle="steps-post",
        label="Pareto front",
        color="0.45",
        lw=1,
        ls=(0, (3, 2)),
        zorder=1,
    )


def _point(
    axis: Axes,
    row: DefenseRow,
    worst: Interval,
    utility: Interval,
    scale: float,
    look: dict[str, Any],
) -> None:
    axis.errorbar(
        worst.mean,
        scale * utility.mean,
        xerr=value(worst).half_width,
        yerr=scale * utility.half_width if utility.between else None,
        fmt=look["marker"],
        color=look["color"],
        zorder=look["zorder"],
        ms=7,
        mec="white",
        elinewidth=0.9,
        capsize=2,
        label=legend_name(row),
    )
