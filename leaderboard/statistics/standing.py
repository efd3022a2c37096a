"""One row in a few numbers: what an adversary gets out of it, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass

from fedbench.core.metrics import Interval
from fedbench.leaderboard.statistics.compare import Comparison
from fedbench.leaderboard.statistics.contest import Contest
from fedbench.leaderboard.statistics.row import Row


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Of the row ``label``: the ``worst`` case AUC with the ``attack`` picked most often, and TF01 in percent with its own;
    ``accuracy`` and ``delta_accuracy`` as fractions. None: it cannot be said. ``complete``: as ``Row.complete``."""

    label: str
    complete: bool
    worst: Interval | None
    attack: str
    tf01: Interval | None
    tf01_attack: str
    accuracy: Interval | None
    delta_accuracy: Interval | None


def standing(contest: Contest, row: Row, compared: Comparison) -> Standing:
    """By the protocol of the ranking: attack and sign are picked on other folds."""
    worst, rate = contest.worst(row.label), contest.worst_tf01(row.label)
    return Standing(
        label=row.label, complete=row.complete, worst=worst.found if worst else None, attack=worst.attack if worst else "",
        tf01=rate.found if rate else None, tf01_attack=rate.attack if rate else "", accuracy=row.accuracy,
        delta_accuracy=compared.delta_accuracy,
    )
