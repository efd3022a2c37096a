"""How often samples are used, and how many a round: a row of two panels a defense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedbench.core import Findings, Section, Style

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_BINS = np.linspace(0, 1, 21)
_LINES = {"coalition": "coalition", "coalition protected": "coalition, protected", "federation": "federation"}


def usage_figure(section: Section, found: Mapping[str, Sequence[Findings]], style: Style) -> Canvas:
    """Left: samples by the share of rounds they are used in, all seeds together. Right: shares of each round, over seeds."""
    figure = style.new_figure(7.2, 1.7 * len(found) + 0.9)
    axes = figure.subplots(len(found), 2, squeeze=False, sharex="col")
    for (label, every), (left, right) in zip(found.items(), axes, strict=True):
        for i, what in enumerate(("used", "protected")):
            shares = np.concatenate([f.arrays[what] for f in every])
            counts = np.histogram(shares, _BINS)[0] / max(1, len(shares))
            left.stairs(counts, _BINS, color=style.colour(i), ls=style.dashes(i), lw=1.3, label=what)
        for i, (name, shown) in enumerate(_LINES.items()):
            course = np.mean([f.arrays[name] for f in every], axis=0)
            right.plot(1 + np.arange(len(course)), 100 * course, color=style.colour(i), ls=style.dashes(i), lw=1.3, label=shown)
        right.set_ylim(0, 105)
        left.set_ylabel(style.literal(label, 24), fontsize=8)
        right.set_ylabel("samples, %", fontsize=8)
    axes[-1][0].set_xlabel("share of the rounds")
    axes[-1][1].set_xlabel("round")
    for axis in axes[0]:
        axis.legend(frameon=False, fontsize=7)
    figure.suptitle(f"Use of the training samples, {style.literal(section.where, 90)}", fontsize=10)
    return figure
