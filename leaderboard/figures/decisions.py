"""Attack accuracy by defense: the last round with its interval, and the papers' best round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedbench.core.contract.board import Figure, Style
from fedbench.leaderboard.figures.style import title_of
from fedbench.leaderboard.statistics.sections import Section

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


def decision_figure(section: Section) -> Figure | None:
    """One group a defense, one marker an attack: filled the last round, hollow best_round, a tick its null; None without."""
    if not section.deciding:
        return None
    return Figure("accuracy", "Attack accuracy by defense", lambda style: _draw(style, section))


def _draw(style: Style, section: Section) -> Canvas:
    attacks = section.deciding
    figure = style.new_figure(max(5.0, 1.5 + 1.15 * len(section.rows)), 3.9)
    axis = figure.subplots()
    for i, attack in enumerate(attacks):
        _attack(axis, style, section, attack, i, (i - (len(attacks) - 1) / 2) * 0.8 / len(attacks))
    axis.axhline(0.5, color="0.5", lw=0.8, ls=":", zorder=1)
    axis.set_xticks(range(len(section.rows)), [style.literal(r.label) for r in section.rows], rotation=20, ha="right")
    axis.set_ylabel("attack accuracy (0.5: guessing)")
    axis.grid(True, axis="y", color="0.92", lw=0.6)
    axis.set_title(f"Attack accuracy, {title_of(section)}\nfilled: last round; hollow: best_round, dash: its null", fontsize=9)
    figure.legend(loc="outside lower center", ncols=min(5, len(attacks)), frameon=False, fontsize=8)
    return figure


def _attack(axis: Axes, style: Style, section: Section, attack: str, i: int, offset: float) -> None:
    """Every defense's values of one attack; defenses without scores leave their place empty."""
    entries = [r.entries[attack] for r in section.rows]
    last, best = [e.attack_accuracy() for e in entries], [e.attack_accuracy(best=True) for e in entries]
    null = [e.decision_mean("null_best_accuracy") for e in entries]
    x = np.arange(len(entries)) + offset
    colour, marker = style.colour(i), style.marker(i)
    axis.errorbar(
        x, [v.mean if v else np.nan for v in last], yerr=[v.half_width if v else np.nan for v in last], color=colour,
        fmt=marker, ms=5, elinewidth=0.9, capsize=2, zorder=3, label=style.literal(attack),
    )  # fmt: skip
    axis.plot(x, [v.mean if v else np.nan for v in best], marker, color=colour, mfc="none", ms=6, zorder=2)
    axis.plot(x, [np.nan if v is None else v for v in null], "_", color=colour, ms=8, zorder=2)
