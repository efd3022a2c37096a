"""How near our numbers come to the published ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from fedbench.leaderboard.statistics.beside import Pair


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How near we come, over the ``done`` of ``asked`` published cells that were run; None of fewer than three numbers of ours.
    Where several strengths of a defense stand beside one published cell, each counts as a number, and the cell once."""

    asked: int
    done: int
    rank_correlation: float | None
    """Spearman's, NaN where all are equal"""
    mean_difference: float | None
    """absolute, in the quantity's unit"""


def agreement(pairs: Sequence[Pair]) -> Agreement:
    """Of the pairs of one quantity."""
    done = [(p.ours.value, p.paper) for p in pairs if p.ours is not None]
    asked, run = (len({(p.theirs, p.attack, p.group) for p in some}) for some in (pairs, [p for p in pairs if p.ours]))
    if len(done) < 3:
        return Agreement(asked=asked, done=run, rank_correlation=None, mean_difference=None)
    ours, paper = np.array(done, dtype=float).T
    rank, apart = float(stats.spearmanr(ours, paper).statistic), float(np.abs(ours - paper).mean())
    return Agreement(asked=asked, done=run, rank_correlation=rank, mean_difference=apart)
