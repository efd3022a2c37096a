"""Loss of members and non-members over the rounds, a panel a defense and kind of sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedbench.core import Courses, Section, Style

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

ACROSS = 4
NAMES = {"members": "members", "inside": "non-members, inside", "outside": "non-members, outside"}


def trajectory_figure(section: Section, found: Sequence[Courses], style: Style) -> Canvas:
    """Small multiples on one scale; the kinds of samples one below the other, each with rows of its own."""
    parts = [part for part in Courses.PARTS if any(c.part == part for c in found)]
    by_part = {part: [c for c in found if c.part == part] for part in parts}
    across = min(ACROSS, max(len(mine) for mine in by_part.values()))
    down = {part: -(-len(mine) // across) for part, mine in by_part.items()}
    figure = style.new_figure(2.5 * across + 0.6, 2.0 * sum(down.values()) + 0.9)
    axes = figure.subplots(sum(down.values()), across, squeeze=False, sharex=True, sharey=True)
    first = 0
    for part, mine in by_part.items():
        panels = axes[first : first + down[part]].ravel()
        for axis, course in zip(panels, mine, strict=False):
            for i, (side, name) in enumerate(NAMES.items()):
                known = ~np.isnan(course.sides[side])
                n = known.sum(axis=0)
                mean = np.where(known, course.sides[side], 0.0).sum(axis=0) / np.maximum(n, 1)
                axis.plot(course.rounds[n > 0], mean[n > 0], color=style.colour(i), ls=style.dashes(i), lw=1.4, label=name)
            suffix = f" ({part})" if len(parts) > 1 else ""
            axis.set_title(style.literal(course.label, 24) + suffix, fontsize=8)
            axis.grid(True, color="0.92", lw=0.6)
        for axis in panels[len(mine) :]:
            axis.set_visible(False)
        first += down[part]
    for axis in axes[:, 0]:
        axis.set_ylabel("loss (nats)", fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel("round", fontsize=8)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    figure.suptitle(f"Loss on the target's model, {style.literal(section.where, 90)}", fontsize=10)
    return figure
