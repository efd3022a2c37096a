"""ROC curves averaged over seeds x targets."""

from __future__ import annotations

import numpy as np

from fedbench.core.metrics import roc_curve
from fedbench.leaderboard.statistics.entry import Entry
from fedbench.leaderboard.statistics.section import Section

LOWEST = 1e-4


def mean_roc(entry: Entry, grid: np.ndarray) -> np.ndarray | None:
    """TPR [g] at each FPR of ``grid`` [g], step curves averaged over seeds x targets; None without scores.

    Averaged at equal FPR (Fawcett 2006, section 9.2) since scores of different runs have different scales; the curve at
    0.1 % is therefore the TF01 of the table.
    """
    curves = []
    for seed, target in sorted(entry.units("mix")):
        loaded = entry.ok(seed)
        if loaded is not None:
            candidates = loaded.candidates(target)
            counted = candidates.kind >= 0
            fpr, tpr, _ = roc_curve(candidates.scores[counted], candidates.kind[counted] == 0)
            curves.append(tpr[np.searchsorted(fpr, grid, side="right") - 1])
    return np.mean(curves, axis=0) if curves else None


def fpr_grid(section: Section) -> np.ndarray:
    """FPRs from one non-member in the largest audit set to 1, with 0.1 % among them."""
    low = max(LOWEST, 1 / max(s.n_nonmembers for s in section.scores("mix")))
    return np.union1d(np.geomspace(low, 1, 200), [0.001] if low <= 0.001 else [])
