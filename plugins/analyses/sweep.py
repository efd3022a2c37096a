"""A defense over a sweep of its strength: hypervolume per attack and the curve of the trade-off (FedMIA, Table 2, Figure 6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedbench.core import Analysis
from fedbench.core.report import Block, Column, Content, Figure, Section, Style, Sweep, Table, Value, Words
from fedbench.plugins.analyses.common import framed, numbers, words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_ACROSS = 3


class StrengthSweep(Analysis):
    """Reads the accuracy and TF01 of the rows that are one defense at several strengths; asks nothing of a run."""

    place = "costs"

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """Hypervolume of every sweep against every attack, and its curve; nothing where no defense was swept."""
        found = section.sweeps()
        if found:
            yield _table(section, found)
        if any(sweep.points for sweep in found):
            yield Figure("sweep", "Strengths of the defenses", partial(_draw, section))


def _table(section: Section, found: Sequence[Sweep]) -> Table:
    rows: tuple[tuple[Content, ...], ...] = tuple(
        (s.family, Value(mean=len(s.labels)), *(Value(mean=s.hypervolumes.get(attack)) for attack in section.attacks))
        for s in found
    )
    caption = Words(
        " (TF01 as a fraction against test error, reference (1, 1), undefended point included; larger = better defense, weaker "
        "attack)"
    )
    areas = (Column(name=a, direction="higher", digits=4) for a in section.attacks)
    columns = (words("defense"), numbers("strengths", digits=0), *areas)
    return Table(title="Hypervolume over the sweep of a defense's strength", caption=caption, columns=columns, rows=rows)


def _draw(section: Section, style: Style) -> Canvas:
    """TF01 against test error over the strengths of each defense, one panel an attack."""
    found = section.sweeps()
    attacks = [a for a in section.attacks if any(a in s.points for s in found)]
    down = -(-len(attacks) // _ACROSS)
    figure = style.new_figure(3.2 * _ACROSS, 2.7 * down + 0.5)
    axes = figure.subplots(down, _ACROSS, squeeze=False).ravel()
    for axis, attack in zip(axes, attacks, strict=False):
        _panel(axis, style, found, attack)
    for axis in axes[len(attacks) :]:
        axis.remove()
    return framed(figure, axes[0], style, section, "Strengths of the defenses (down and left: better)")


def _panel(axis: Axes, style: Style, found: Sequence[Sweep], attack: str) -> None:
    for i, sweep in enumerate(s for s in found if attack in s.points):
        points = 100 * sweep.points[attack]
        points = points[np.argsort(points[:, 1])]
        look = {"color": style.colour(i), "ls": style.dashes(i), "marker": style.marker(i)}
        axis.plot(points[:, 1], points[:, 0], ms=4, lw=1.2, label=style.literal(sweep.family), **look)
    base = 100 * found[0].undefended[attack]
    axis.plot(base[:, 1], base[:, 0], "ks", ms=5, label="none (undefended)")
    axis.set(title=style.literal(attack), xlabel="test error, %", ylabel="TF01, %")
    axis.grid(alpha=0.3)
