"""Plots of a board: log-log ROC curves and privacy against utility. Equal records give equal files."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbench.core.metrics import pareto_front, roc_curve
from fedbench.core.store.reading import LoadedRecord
from fedbench.leaderboard.collect import Cell, Row, Table, build_tables
from fedbench.leaderboard.compare import compare
from fedbench.leaderboard.decision_plot import decision_figure
from fedbench.leaderboard.society_plot import society_figure
from fedbench.leaderboard.style import COLOURS, DASHES, MARKERS, literal, new_figure
from fedbench.leaderboard.sweep_plot import sweep_figure
from fedbench.leaderboard.text import slug

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOWEST = 1e-4
Key = tuple[str, str, str, str]


def table_plots(records: Sequence[LoadedRecord]) -> dict[Key, dict[str, bytes]]:
    """(suite, setting, coalition, view) -> file name -> content."""
    plots: dict[Key, dict[str, bytes]] = {}
    for table in build_tables(records):
        key = (table.suite, table.setting, table.coalition, table.view)
        figures = {"tradeoff": tradeoff_figure(table), "roc": roc_figure(table), "sweep": sweep_figure(table),
                   "accuracy": decision_figure(table), "groups": society_figure(table)}  # fmt: skip
        plots[key] = {
            f"{kind}-{_stem(key)}.{suffix}": _saved(figure, suffix)
            for kind, figure in figures.items() if figure is not None
            for suffix in ("png", "svg")
        }  # fmt: skip
    return plots


def _stem(key: Key) -> str:
    """A file name from names that may hold anything; two tables never share one."""
    return "-".join([*map(slug, key[1:]), hashlib.sha256("\0".join(key).encode()).hexdigest()[:6]])


def mean_roc(cell: Cell, grid: np.ndarray) -> np.ndarray | None:
    """TPR [g] at each FPR of ``grid`` [g], step curves averaged over seeds x targets; None without scores.

    Averaged at equal FPR (Fawcett 2006, section 9.2) since scores of different runs have different scales; the curve at
    0.1 % is therefore the TF01 of the table.
    """
    curves = []
    for seed, target in sorted(cell.units("mix")):
        loaded = cell.ok(seed)
        if loaded is not None:
            candidates = loaded.candidates(target)
            counted = candidates.kind >= 0
            fpr, tpr, _ = roc_curve(candidates.scores[counted], candidates.kind[counted] == 0)
            curves.append(tpr[np.searchsorted(fpr, grid, side="right") - 1])
    return np.mean(curves, axis=0) if curves else None


def _grid(table: Table) -> np.ndarray:
    """FPRs from one non-member in the largest audit set to 1, with 0.1 % among them."""
    sizes = [s.n_nonmembers for r in table.rows for c in r.cells.values() for s in c.units("mix").values()]
    low = max(LOWEST, 1 / max(sizes))
    return np.union1d(np.geomspace(low, 1, 200), [0.001] if low <= 0.001 else [])


def _attacks(table: Table) -> list[str]:
    return [a for a in table.attacks if any(r.cells[a].units("mix") for r in table.rows)]


def roc_figure(table: Table) -> Figure | None:
    """One log-log panel an attack, one curve a defense; None when nothing has scores."""
    attacks = _attacks(table)
    if not attacks:
        return None
    grid, styles = _grid(table), _styles(table)
    columns = 2 if len(attacks) in (2, 4) else min(3, len(attacks))
    rows = -(-len(attacks) // columns)
    lines = -(-len(styles) // 4)
    figure = new_figure(max(3.5 * columns, 5.0), 3.3 * rows + 0.75 + 0.22 * lines)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
    for axis, attack in zip(axes, attacks, strict=False):
        _roc_panel(axis, table, attack, grid, styles)
    for i, axis in enumerate(axes):
        if i >= len(attacks):
            axis.set_visible(False)
        elif i + columns >= len(attacks):
            axis.tick_params(labelbottom=True)
            axis.set_xlabel("false-positive rate")
        if i % columns == 0:
            axis.set_ylabel("true-positive rate")
    handles = [_handle(plain(r.label, r), styles[r.label]) for r in table.rows if r.label in styles]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)), frameon=False, fontsize=8)
    figure.suptitle(f"ROC, {_title(table)}: mean over seeds x targets", fontsize=10)
    return figure


def _roc_panel(axis: Axes, table: Table, attack: str, grid: np.ndarray, styles: dict[str, dict]) -> None:
    axis.plot(grid, grid, color="0.6", lw=0.8, zorder=1)
    if grid[0] <= 0.001:
        axis.axvline(0.001, color="0.5", lw=0.8, ls=":", zorder=1)
    for row in table.rows:
        tpr = mean_roc(row.cells[attack], grid)
        if tpr is not None:
            style = {k: v for k, v in styles[row.label].items() if k != "marker"}
            axis.plot(grid, np.where(tpr > 0, tpr, np.nan), drawstyle="steps-post", **style)
    axis.set(xscale="log", yscale="log", xlim=(grid[0], 1), ylim=(grid[0], 1.05))
    axis.set_title(literal(attack), fontsize=9)
    axis.grid(True, which="major", color="0.92", lw=0.6)
    axis.tick_params(labelsize=8)


def tradeoff_figure(table: Table) -> Figure | None:
    """Worst-case AUC against test accuracy of every complete row, with the Pareto front; None without such a row."""
    compared, styles = compare(table), _styles(table)
    rows = [
        (r, w, a) for r in table.rows
        if r.complete and (w := r.worst("auc")) and (a := compared[r.label].accuracy)
    ]  # fmt: skip
    if not rows:
        return None
    figure = new_figure(6.4, 4.2)
    axis = figure.subplots()
    for row, worst, accuracy in rows:
        spread = row.cells[worst[0]].interval("auc")
        xerr = np.nan_to_num(spread.half_width) if spread else 0
        s = styles[row.label]
        axis.errorbar(
            worst[1], 100 * accuracy.mean, xerr=xerr, yerr=100 * accuracy.half_width, fmt=s["marker"], color=s["color"],
            ms=7, mec="white", mew=0.6, elinewidth=0.9, capsize=2, zorder=s["zorder"], label=plain(row.label, row),
        )  # fmt: skip
    _front(axis, np.array([(w[1], 100 * (1 - a.mean)) for _, w, a in rows]))
    axis.axvline(0.5, color="0.6", lw=0.8, ls=":")
    axis.annotate("guessing", (0.5, 0), xycoords=("data", "axes fraction"), xytext=(3, 4),
                  textcoords="offset points", fontsize=7, color="0.4")  # fmt: skip
    axis.set_xlabel("worst-case AUC over attacks (left: more private)")
    axis.set_ylabel("test accuracy, % (up: more useful)")
    axis.grid(True, color="0.92", lw=0.6)
    axis.set_title(f"Privacy against utility, {_title(table)}", fontsize=10)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return figure


def _front(axis: Axes, losses: np.ndarray) -> None:
    """The staircase of points no other beats; ``losses`` [n, 2]: worst AUC, test error in percent."""
    best = losses[pareto_front(losses)]
    best = best[np.argsort(best[:, 0])]
    axis.plot(best[:, 0], 100 - best[:, 1], drawstyle="steps-post", color="0.45", lw=1, ls=(0, (3, 2)), zorder=1,
              label="Pareto front")  # fmt: skip


def _styles(table: Table) -> dict[str, dict]:
    """Look of each row with scores, the same in all plots of a table; the undefended row is black."""
    styles: dict[str, dict] = {}
    defended = sorted(r.label for r in table.rows if not r.undefended)
    for i, label in enumerate(defended):
        styles[label] = {
            "color": COLOURS[i % len(COLOURS)], "ls": DASHES[i % len(DASHES)],
            "marker": MARKERS[i % len(MARKERS)], "lw": 1.5, "zorder": 3,
        }  # fmt: skip
    for row in table.rows:
        if row.undefended:
            styles[row.label] = {"color": "black", "ls": "-", "marker": "s", "lw": 1.8, "zorder": 2}
    shown = {r.label for r in table.rows if r.means("auc")}
    return {label: style for label, style in styles.items() if label in shown}


def _handle(label: str, style: dict) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=style["color"], ls=style["ls"], lw=style["lw"], label=label)


def plain(label: str, row: Row) -> str:
    """A label for a legend: drawn as it is, and marked when it is the undefended row."""
    return literal(label) + (" (undefended)" if row.undefended else "")


def _title(table: Table) -> str:
    return literal(f"{table.setting}, coalition {table.coalition}, {table.view} view", 90)


def _saved(figure: Figure, suffix: str) -> bytes:
    """The file's bytes, without date or version, so that they can be compared and committed."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    metadata = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}[suffix]
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "fedbench"}):
        figure.savefig(buffer, format=suffix, metadata=metadata)
    return buffer.getvalue()
