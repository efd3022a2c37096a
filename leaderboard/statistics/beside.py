"""A paper's number and ours, side by side."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Ours:
    """Our number for a published cell; ``half_width`` None: it has no interval."""

    value: float
    half_width: float | None = None
    last: float | None = None
    """attack accuracy only: ours in the last round, where no answer was looked at"""
    null: float | None = None
    """attack accuracy: our best round's mean under shuffled membership; maxima: the mean of ours under it"""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One published number and ours, which is None where the cell was not run (or has no score)."""

    quantity: str
    """one of ``QUANTITIES``; attack accuracy: the papers report the best of all rounds, picked on the answers, so do we"""
    theirs: str
    """the paper's name of the defense; several strengths of ours may stand beside one"""
    defense: str
    attack: str
    group: str = ""
    """of clients, or client0:class3, where the number is of one"""
    paper: float
    paper_std: float | None
    paper_range: tuple[float, float] | None = None
    """maxima: smallest and largest over the paper's clients, whose mean is compared, since their data are not our clients'"""
    ours: Ours | None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, in the quantity's unit."""
        return None if self.ours is None else self.ours.value - self.paper
