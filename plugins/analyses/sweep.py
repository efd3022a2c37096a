"""A defense over a sweep of its strength: hypervolume per attack and the curve of the trade-off (FedMIA, Table 2, Figure 6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedbench.core import Analysis, Block, Column, Section, Sweep, Table, Value, Words
from fedbench.plugins.analyses.sweep_figure import sweep_figure


class StrengthSweep(Analysis):
    """Reads the accuracy and TF01 of the rows that are one defense at several strengths; asks nothing of a run."""

    place = "costs"

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """Hypervolume of every sweep against every attack, and its curve; nothing where no defense was swept."""
        found = section.sweeps()
        if found:
            yield _table(section, found)
        if any(sweep.points for sweep in found):
            yield sweep_figure(section)


def _table(section: Section, found: Sequence[Sweep]) -> Table:
    rows = tuple(
        (s.family, Value(mean=len(s.labels)), *(Value(mean=s.hypervolume(a)) if a in s.points else None for a in section.attacks))
        for s in found
    )
    caption = Words(
        " (TF01 as a fraction against test error, reference (1, 1), undefended point included; larger = better defense, weaker "
        "attack)"
    )
    columns = (
        Column(name=Words("defense"), align="left"), Column(name=Words("strengths"), digits=0),
        *(Column(name=a, direction="higher", digits=4) for a in section.attacks),
    )  # fmt: skip
    return Table(title="Hypervolume over the sweep of a defense's strength", caption=caption, columns=columns, rows=rows)
