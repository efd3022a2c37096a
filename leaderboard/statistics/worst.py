"""What an adversary gets who picks attack and sign: numbers with what was picked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedbench.core.metrics import Interval
from fedbench.leaderboard.statistics.chosen import Choice


@dataclass(frozen=True, kw_only=True)
class Worst:
    """What an adversary gets who picks attack and sign on other folds. ``attack``: the one picked most often; ``picks``: by
    fold; ``largest``: the plain maximum over attacks and signs of the mean AUC, biased upward, and its attack."""

    found: Interval
    attack: str
    picks: Mapping[int, Choice]
    largest: tuple[str, float]


@dataclass(frozen=True, kw_only=True)
class WorstRate:
    """The same of TF01, in percent."""

    found: Interval
    attack: str
    picks: Mapping[int, Choice]
