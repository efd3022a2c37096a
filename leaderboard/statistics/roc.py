"""ROC curves averaged over seeds x targets."""

from __future__ import annotations

import numpy as np

from fedbench.core.metrics import roc_curve
from fedbench.leaderboard.statistics.section import Section

LOWEST = 1e-4


def mean_roc(section: Section, label: str, attack: str, grid: np.ndarray) -> np.ndarray | None:
    """TPR [g] at each FPR of ``grid`` [g] of one row and attack, with the sign of the tables; None without scores.

    Step curves against outside non-members, averaged at equal FPR (Fawcett 2006, section 9.2) since scores of different
    runs have different scales.
    """
    curves, signs = [], section.contest.sign(label, attack)
    for part in section.contest.parts:
        if (label, attack) in part.own:
            s, sign = part.own[label, attack].sample, signs[part.fold]
            scores = sign * np.concatenate([s.member, s.nonmember])
            fpr, tpr, _ = roc_curve(scores, np.arange(len(scores)) < len(s.member))
            curves.append(tpr[np.searchsorted(fpr, grid, side="right") - 1])
    return np.mean(curves, axis=0) if curves else None


def fpr_grid(section: Section) -> np.ndarray:
    """FPRs from one outside non-member in the largest audit set to 1, with 0.1 % among them."""
    low = max(LOWEST, 1 / max((s.n_nonmembers for s in section.scores("ofl")), default=1))
    return np.union1d(np.geomspace(low, 1, 200), [0.001] if low <= 0.001 else [])
