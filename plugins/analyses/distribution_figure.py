"""Members over non-members, number by number, a row of panels a defense."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedbench.core import Figure, Row, Section, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


def distribution_figure(
    section: Section, label: str, edges: Mapping[str, np.ndarray], sides: tuple[str, ...], oracle: bool
) -> Figure:
    """Shares of each bin, all seeds together; one column a number, one row a defense that has findings."""
    kind = "distributions-worst" if oracle else "distributions"  # a suite may have both
    return Figure(kind, "Members and non-members", partial(_draw, section, label, edges, sides, oracle))


def _draw(
    section: Section, label: str, edges: Mapping[str, np.ndarray], sides: tuple[str, ...], oracle: bool, style: Style
) -> Canvas:
    rows = [row for row in section.rows if counts_of(section, row, label, f"{next(iter(edges))} {sides[0]}") is not None]
    figure = style.new_figure(3.3 * len(edges), 1.5 * len(rows) + 0.9)
    axes = figure.subplots(len(rows), len(edges), squeeze=False, sharex="col")
    for row, line in zip(rows, axes, strict=True):
        for (name, bins), axis in zip(edges.items(), line, strict=True):
            for i, side in enumerate(sides):
                _outline(axis, style, counts_of(section, row, label, f"{name} {side}"), bins, i, side)
            if bins[0] > 0:
                axis.set_xscale("log")
            axis.set_yticks([])
        line[0].set_ylabel(style.literal(row.label, 24), fontsize=8)
    for (name, _), axis in zip(edges.items(), axes[-1], strict=True):
        axis.set_xlabel(name)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(sides), frameon=False, fontsize=8)
    whose = "the model that tells members best (oracle)" if oracle else "all clients' models, last audited round"
    figure.suptitle(f"Members and non-members under {whose}, {style.literal(section.where, 90)}", fontsize=10)
    return figure


def counts_of(section: Section, row: Row, label: str, name: str) -> np.ndarray | None:
    """The counts of all seeds together; None where no seed has any."""
    found = [f.arrays[name] for seed in section.seeds if (f := row.findings(label, seed)) is not None and name in f.arrays]
    return np.sum(found, axis=0) if found else None


def _outline(axis: Axes, style: Style, counts: np.ndarray | None, bins: np.ndarray, i: int, side: str) -> None:
    if counts is not None and counts.sum():
        axis.stairs(counts / counts.sum(), bins, color=style.colour(i), fill=True, alpha=0.35, label=side)
        axis.stairs(counts / counts.sum(), bins, color=style.colour(i), lw=1.1, ls=style.dashes(i))
