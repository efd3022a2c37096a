"""How near our numbers come to the published ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from fedbench.leaderboard.statistics.published import Pair


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How near we come, over the ``done`` of ``asked`` published cells that were run; None of fewer than three."""

    asked: int
    done: int
    rank_correlation: float | None
    """Spearman's, NaN where all are equal"""
    mean_difference: float | None
    """absolute, in the quantity's unit"""


def agreement(pairs: Sequence[Pair]) -> Agreement:
    """Of the pairs of one quantity."""
    done = [(p.ours.value, p.paper) for p in pairs if p.ours is not None]
    if len(done) < 3:
        return Agreement(asked=len(pairs), done=len(done), rank_correlation=None, mean_difference=None)
    ours, paper = np.array(done, dtype=float).T
    rank, apart = float(stats.spearmanr(ours, paper).statistic), float(np.abs(ours - paper).mean())
    return Agreement(asked=len(pairs), done=len(done), rank_correlation=rank, mean_difference=apart)
