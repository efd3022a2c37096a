"""Fairness between groups of clients (IFCA-MIR, sections 3.2 and 5.2).

The paper defines the three notions for a binary prediction (Eq. 5-7) and does not say how it applies them to 10 or 62
classes. Here: each class against the rest, averaged over the classes that occur. 0 = fair, 1 = as unfair as can be. With
more than two groups: the largest value over all pairs of them. An absolute difference of noisy rates lies above 0 for a fair
model too: compare it with its standard error.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

Gap = tuple[float | None, float | None]
"""value and standard error"""


def fairness_report(
    predicted: np.ndarray, y: np.ndarray, group: np.ndarray, rng: np.random.Generator, n: int = 200
) -> dict[str, Gap]:
    """Three gaps between groups for ``predicted``, ``y`` and ``group`` [samples] int, with their standard errors.

    ``demographic_parity``: mean over the predicted classes c of |P(predicted = c | group 1) - P(predicted = c | group 0)|
    (Eq. 5). ``equal_opportunity``: mean over the true classes of the difference in TPR, P(predicted = c | y = c, group) (Eq. 6).
    ``equalised_odds``: half the sum of that and of the difference in FPR, P(predicted = c | y != c, group) (Eq. 7).
    A class that one of two groups does not have is left out; None where no two groups have a class in common.

    Errors are of ``n`` bootstrap replicates; samples are resampled within each group, which is a multinomial draw of its table
    of (y, predicted) (Efron and Tibshirani 1993, ch. 6). Raises ValueError with fewer than two groups.
    """
    counts, true, said = _table(predicted, y, group)
    flat = counts.reshape(len(counts), -1)
    again = np.stack([rng.multinomial(c.sum(), c / c.sum(), size=n) for c in flat], axis=1).reshape(n, *counts.shape)
    points, replicates = (_gaps(table, true, said) for table in (counts, again))
    gaps: dict[str, Gap] = dict.fromkeys(points, (None, None))
    return gaps | {name: (float(gap), _spread(replicates[name])) for name, gap in points.items() if not np.isnan(gap)}


def _spread(replicates: np.ndarray) -> float | None:
    """Standard deviation of those replicates that have a value; None with fewer than two."""
    known = replicates[~np.isnan(replicates)]
    return float(known.std(ddof=1)) if len(known) > 1 else None


def _table(predicted: np.ndarray, y: np.ndarray, group: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts [G, C, C] of (group, true class, predicted class); [C] which classes occur as true and [C] as predicted ones."""
    names, g = np.unique(group, return_inverse=True)
    if len(names) < 2:
        raise ValueError(f"fairness needs samples of at least two groups, got {len(names)}")
    classes, both = np.unique(np.concatenate([y, predicted]), return_inverse=True)
    c, (true, said) = len(classes), np.split(both, 2)
    counts = np.bincount((g * c + true) * c + said, minlength=len(names) * c * c).reshape(len(names), c, c)
    return counts, counts.sum(axis=(0, 2)) > 0, counts.sum(axis=(0, 1)) > 0


def _gaps(counts: np.ndarray, true: np.ndarray, said: np.ndarray) -> dict[str, np.ndarray]:
    """The three gaps [...] of counts [..., G, C, C]; nan where there are no rates to compare."""
    of_true, of_said, hits = counts.sum(axis=-1), counts.sum(axis=-2), np.einsum("...cc->...c", counts)
    others = of_true.sum(axis=-1, keepdims=True) - of_true
    with np.errstate(invalid="ignore"):  # 0 / 0 is nan
        tpr, fpr = _mean_gaps(hits / of_true, true), _mean_gaps((of_said - hits) / others, true)
    parity = _mean_gaps(of_said / of_said.sum(axis=-1, keepdims=True), said)
    found = {"demographic_parity": parity, "equal_opportunity": tpr, "equalised_odds": (tpr + fpr) / 2}
    return {name: np.fmax.reduce(pairs, axis=-1) for name, pairs in found.items()}


def _mean_gaps(rates: np.ndarray, occurs: np.ndarray) -> np.ndarray:
    """[..., pairs of groups]: mean over the classes that occur of the absolute difference of rates [..., G, C]."""
    gaps = [np.abs(rates[..., a, :] - rates[..., b, :])[..., occurs] for a, b in combinations(range(rates.shape[-2]), 2)]
    gap = np.stack(gaps, axis=-2)
    known = ~np.isnan(gap)
    with np.errstate(invalid="ignore"):
        return np.where(known, gap, 0).sum(axis=-1) / known.sum(axis=-1)
