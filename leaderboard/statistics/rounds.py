"""Single-round attacks and attacks that decide, by how their round is chosen: means over seeds x targets."""

from __future__ import annotations

from fedbench.core.store.scores import DecisionScores, RoundScores
from fedbench.leaderboard.statistics.entry import Entry
from fedbench.leaderboard.statistics.intervals import mean_of


def decision_mean(entry: Entry, field: str) -> float | None:
    """Mean of one field of ``DecisionScores``; None where no seed has it."""
    assert field in DecisionScores.model_fields
    return mean_of([getattr(d, field) for d, _ in entry.decisions.values()])


def round_mean(entry: Entry, field: str) -> float | None:
    """Mean of one field of ``RoundScores``; None where no seed has it."""
    assert field in RoundScores.model_fields
    return mean_of([getattr(r, field) for r in entry.single_rounds])
