"""Which loss intervals the members' bandits draw, early and late in training (CoFedMID, Figure 5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedbench.core import Analysis
from fedbench.core.report import Block, Content, Figure, Row, Section, Style, Table, Value, Words
from fedbench.plugins.analyses.common import framed, numbers, words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

WHEN = ("early", "late")
DRAWS = "draws of each loss interval"
PROBABILITIES, PROPORTIONS = (f"{what} of the loss intervals" for what in ("probabilities", "proportions"))
_NEEDED = f"late {PROBABILITIES}"


class LossIntervals(Analysis):
    """Reads the facts of a defense that recycles samples by a bandit over loss intervals; asks nothing of a run."""

    place = "costs"
    tells = (DRAWS, PROBABILITIES, PROPORTIONS)

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """Figure 5's proportions and probabilities, and a table of them; nothing where no row has such facts."""
        found = [bandits for row in section.rows for bandits in bandits_of(row)]
        if found:
            yield _table(found)
            yield Figure("loss-intervals", "Loss intervals, early and late", partial(_draw, section, found))


@dataclass(frozen=True)
class Bandits:
    """Of one row, means over its seeds: ``values``: fact -> [M], lowest losses first; ``shares``: recycled, early and late."""

    label: str
    values: Mapping[str, np.ndarray]
    shares: Mapping[str, float]

    @property
    def intervals(self) -> int:
        """M."""
        return len(self.values[_NEEDED])


def bandits_of(row: Row) -> Iterator[Bandits]:
    """One, if the row has such facts; of several defenses in one, which lead the names of their facts, one each."""
    facts = row.facts
    for name in facts:
        lead = name.removesuffix(_NEEDED)
        if name == lead + _NEEDED and (not lead or lead.endswith(": ")):
            wanted = [f"{when} {what}" for when in WHEN for what in (DRAWS, PROBABILITIES, PROPORTIONS)]
            values = {w: mean for w in wanted if (mean := _mean(facts.get(lead + w, ()))) is not None and mean.ndim == 1}
            shares = {w: float(mean) for w in WHEN if (mean := _mean(facts.get(f"{lead}recycled share {w}", ()))) is not None}
            if _NEEDED in values:
                yield Bandits(lead + row.label, values, shares)


def _mean(values: Sequence[object]) -> np.ndarray | None:
    """Over seeds, element by element; None without any, or where a record holds something else."""
    try:
        arrays = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):  # words, or lists of several lengths
        return None
    if not len(arrays):
        return None
    return arrays.mean(0)


# ---------------------------------------------------------------- table


def _table(found: Sequence[Bandits]) -> Table:
    most = max(b.intervals for b in found)
    intervals = (numbers(str(j + 1), digits=2) for j in range(most))
    columns = (words("defense"), words("of each interval"), *intervals, numbers("recycled"))
    rows = tuple(row for b in found for row in _rows(b, most))
    caption = Words(
        ", intervals of a member's losses from the lowest to the highest, in the first and the last third of the rounds that "
        "recycle (means over members, rounds and seeds; recycled: samples per training sample)"
    )
    return Table(title="Loss intervals that are recycled, early and late", caption=caption, columns=columns, rows=rows)


def _rows(b: Bandits, most: int) -> Iterator[tuple[Content, ...]]:
    kinds = ((PROBABILITIES, "probability"), (DRAWS, "share of the draws"), (PROPORTIONS, "share of the samples"))
    for when in WHEN:
        for fact, said in kinds:
            values = b.values.get(f"{when} {fact}")
            if values is not None and values.sum() > 0:
                shares = [Value(mean=float(v)) for v in values / values.sum()]
                share = Value(mean=b.shares[when]) if when in b.shares and fact == PROBABILITIES else None
                yield (b.label, Words(f"{said}, {when}"), *shares, *[None] * (most - len(shares)), share)


# ---------------------------------------------------------------- figure


def _draw(section: Section, found: Sequence[Bandits], style: Style) -> Canvas:
    figure = style.new_figure(8.4, 2.2 * len(found) + 0.9)
    axes = figure.subplots(len(found), 2, squeeze=False)
    for b, line in zip(found, axes, strict=True):
        for axis, fact, said in zip(line, (PROPORTIONS, PROBABILITIES), ("share of the samples", "probability"), strict=True):
            _panel(axis, style, b, fact)
            axis.set_ylabel(said)
        line[0].set_title(style.literal(b.label, 40), fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("loss interval, lowest losses first")
    return framed(figure, axes[0][1], style, section, "Loss intervals, early and late")


def _panel(axis: Axes, style: Style, b: Bandits, fact: str) -> None:
    at, width = np.arange(1, b.intervals + 1), 0.4
    for i, when in enumerate(WHEN):
        values = b.values.get(f"{when} {fact}")
        if values is not None and len(values) == b.intervals:
            axis.bar(at + (i - 0.5) * width, values, width, color=style.colour(i), label=when)
    axis.axhline(1 / b.intervals, color="black", ls=style.dashes(1), lw=0.8, label="all alike")
    axis.set_xticks(at)
