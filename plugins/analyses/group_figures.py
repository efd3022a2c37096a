"""Groups of clients as a figure: MIA accuracy of each by defense, and accuracy and migration over the rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedbench.core import AuditedRound, ClientGroup, Figure, Section, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_STROKES = (("-", "solid"), ("--", "dashed"), (":", "dotted"), ("-.", "dash-dotted"))  # one a group


def group_figure(section: Section) -> Figure:
    """One panel of bars an attack that decides, then two over the audited rounds."""
    return Figure("groups", "Groups of clients", partial(_draw, section))


def _draw(section: Section, style: Style) -> Canvas:
    attacks, groups = section.deciding, section.groups
    figure = style.new_figure(3.9 * (len(attacks) + 2), 3.6)
    axes = figure.subplots(1, len(attacks) + 2, squeeze=False).ravel()
    for axis, attack in zip(axes, attacks, strict=False):  # the last two are for the rounds
        _bars(axis, style, section, attack, groups)
    accuracy, moved = axes[len(attacks) :]
    for g, _ in enumerate(groups):
        _over_rounds(accuracy, style, section, partial(_percent, g), dash=g)
    dashes = ", ".join(f"{_STROKES[g % len(_STROKES)][1]}: {style.literal(group.name)}" for g, group in enumerate(groups))
    accuracy.set_title(f"test accuracy, % ({dashes})", fontsize=9)
    _over_rounds(moved, style, section, _moved)
    moved.set_title("clients moved since the last audited round", fontsize=9)
    handles, labels = accuracy.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=min(5, len(handles)), frameon=False, fontsize=8)
    figure.suptitle(f"Groups of clients, {style.literal(section.where, 90)}: means over seeds", fontsize=10)
    return figure


def _bars(axis: Axes, style: Style, section: Section, attack: str, groups: Sequence[ClientGroup]) -> None:
    width = 0.8 / len(groups)
    for g, group in enumerate(groups):
        found = [r.entries[attack].of_group(groups, g).attack_accuracy() for r in section.rows]
        x = np.arange(len(section.rows)) + (g - (len(groups) - 1) / 2) * width
        axis.bar(
            x, [v.mean - 0.5 if v else np.nan for v in found], width, bottom=0.5, color=style.colour(g),
            label=style.literal(group.name), yerr=[v.half_width if v else np.nan for v in found],
            error_kw={"elinewidth": 0.9, "capsize": 2},
        )  # fmt: skip
    axis.axhline(0.5, color="0.4", lw=0.8)
    labels = [style.literal(r.label) for r in section.rows]
    axis.set_xticks(range(len(section.rows)), labels, rotation=20, ha="right", fontsize=8)
    axis.set_title(style.literal(f"MIA accuracy, {attack} (0.5: guessing)"), fontsize=9)
    axis.legend(frameon=False, fontsize=8)


def _percent(group: int, row: AuditedRound) -> float:
    return 100 * row.group_accuracy[group] if row.group_accuracy else np.nan


def _moved(row: AuditedRound) -> float:
    return np.nan if row.moved is None else float(row.moved)


def _over_rounds(axis: Axes, style: Style, section: Section, of: Callable[[AuditedRound], float], dash: int = 0) -> None:
    """Mean over the seeds that audited the same rounds as the row's first; a row without values draws nothing."""
    order = sorted(section.rows, key=lambda r: (r.undefended, r.label))  # the colours of the section's other figures
    for i, row in enumerate(order):
        past = row.histories
        rounds = [r.round for r in past[0]] if past else []
        values = np.array([[of(r) for r in rows] for rows in past if [r.round for r in rows] == rounds])
        if rounds and not np.isnan(values).all():
            axis.plot(
                rounds, values.mean(axis=0), color="black" if row.undefended else style.colour(i),
                ls=_STROKES[dash % len(_STROKES)][0], marker=style.marker(i), ms=3.5, lw=1.2,
                label=None if dash else style.literal(row.label),
            )  # fmt: skip
    axis.set_xlabel("round")
    axis.grid(True, color="0.92", lw=0.6)
