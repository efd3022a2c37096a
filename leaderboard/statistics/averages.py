"""A paper's average over attacks, from its cells: what it prints is not always the mean of its row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedbench.leaderboard.statistics.beside import Pair


@dataclass(frozen=True, kw_only=True)
class Average:
    """Of one defense, over those of the paper's attacks that were run, or all of them where none was; in the quantity's unit."""

    defense: str
    run: int
    attacks: int
    ours: float | None
    """None: nothing was run"""
    paper: float
    """of the paper's cells, over the same attacks"""
    printed: float | None
    """what the paper prints, over all of its attacks"""

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.ours is None else self.ours - self.paper


def averages(pairs: Sequence[Pair], printed: Mapping[str, float]) -> list[Average]:
    """Of the pairs of one quantity, for each defense with several attacks; ``printed``: by the paper's name of the defense."""
    rows: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs:
        rows.setdefault((pair.theirs, pair.defense), []).append(pair)
    return [_of_row(own, printed.get(theirs)) for (theirs, _), own in rows.items() if len(own) > 1]


def _of_row(pairs: Sequence[Pair], printed: float | None) -> Average:
    done = [(p.ours.value, p.paper) for p in pairs if p.ours is not None]
    ours, paper = np.mean(done, axis=0) if done else (None, np.mean([p.paper for p in pairs]))
    return Average(
        defense=pairs[0].defense, run=len(done), attacks=len(pairs), ours=None if ours is None else float(ours),
        paper=float(paper), printed=printed,
    )  # fmt: skip
