"""ROC curves averaged over seeds x targets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, stdtrit

from fedbench.core.metrics import roc_curve
from fedbench.core.metrics.intervals import LEVEL
from fedbench.leaderboard.statistics.sections import BoardSection
from fedbench.leaderboard.statistics.tf01 import Sample

LOWEST = 1e-4
_TAIL = (1 + LEVEL) / 2


def fpr_grid(section: BoardSection) -> np.ndarray:
    """FPRs from one outside non-member in the largest audit set to 1, with 0.1 % among them."""
    sizes = [score.n_nonmembers for score in section.scores("ofl")]
    low = max(LOWEST, 1 / max(sizes, default=1))
    return np.union1d(np.geomspace(low, 1, 200), [max(low, 0.001)])


@dataclass(frozen=True)
class Band:
    """TPR [g] with the ``low`` and ``high`` ends [g] of a 95 % interval at every point by
    itself.
    """

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def roc_band(section: BoardSection, label: str, attack: str, grid: np.ndarray) -> Band | None:
    """TPR at each FPR of ``grid`` [g] of one row and attack, with the sign of the tables; None
    without scores.

    Step curves against outside non-members, averaged at equal FPR (Fawcett 2006, section 9.2) since
    scores of different runs have different scales, with the wider of two intervals at each FPR.

    From the candidates: the variance of an empirical ROC curve, R (1 - R) / m + R'^2 f (1 - f) / n
    (Hsieh & Turnbull, The Annals of Statistics 1996, theorem 2.1), where targets of one seed share
    their non-members, so that what these move moves together; one hit and one miss are added, since
    the plain error is 0 where none or all are found. From the seeds: Student's t. Of a single seed
    it is too narrow (it covers 75 to 90 %) where fewer than five non-members lie above the
    threshold.
    """
    leaks = section.comparison.leaks
    signs = leaks.of(label, attack).signs
    samples = []
    for part in leaks.parts:
        scores = part.entries.get((label, attack))
        if scores is not None:
            samples.append(scores.sample.signed(signs[part.fold]))
    if not samples:
        return None
    tpr = np.array([_curve(sample, grid) for sample in samples])
    members = np.array([[len(sample.member)] for sample in samples])
    nonmembers = np.array([[len(sample.nonmember)] for sample in samples])
    mean = tpr.mean(axis=0)
    # one hit and one miss more
    hit_rate = (tpr * members + 1) / (members + 2)
    false_rate = (grid * nonmembers + 1) / (nonmembers + 2)
    of_members = np.sum(hit_rate * (1 - hit_rate) / members, axis=0)
    threshold_errors = _slope(mean, grid) * np.sqrt(false_rate * (1 - false_rate) / nonmembers)
    of_thresholds = np.zeros(len(grid))
    seed_means = []
    seed_of = np.array([sample.seed for sample in samples])
    for seed in np.unique(seed_of):
        of_thresholds += threshold_errors[seed_of == seed].sum(axis=0) ** 2
        seed_means.append(tpr[seed_of == seed].mean(axis=0))
    half = ndtri(_TAIL) * np.sqrt(of_members + of_thresholds) / len(tpr)
    n = len(seed_means)
    if n > 1:
        error = np.std(seed_means, axis=0, ddof=1)
        half = np.maximum(half, stdtrit(n - 1, _TAIL) * error / np.sqrt(n))
    return Band(mean, np.clip(mean - half, 0, 1), np.clip(mean + half, 0, 1))


def _slope(tpr: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Return d TPR / d FPR [g] by the chord over two points to either side, over log f: there a
    curve bends less.
    """
    positions = np.arange(len(grid))
    below = np.maximum(positions - 2, 0)
    above = np.minimum(positions + 2, len(grid) - 1)
    run = np.maximum(np.log(grid[above]) - np.log(grid[below]), 1e-12)
    rise = tpr[above] - tpr[below]
    return np.asarray(rise / run / grid)


def _curve(sample: Sample, grid: np.ndarray) -> np.ndarray:
    """TPR [g] of the step curve at each FPR."""
    scores = np.concatenate([sample.member, sample.nonmember])
    member = np.arange(len(scores)) < len(sample.member)
    fpr, tpr, _ = roc_curve(scores, member)
    steps = np.searchsorted(fpr, grid, side="right") - 1
    return np.asarray(tpr[steps])
