"""Fairness between groups of clients (IFCA-MIR, sections 3.2 and 5.2).

The paper defines the three notions for a binary prediction (Eq. 5-7) and does not say how it applies them to 10 or 62
classes. Here: each class against the rest, averaged over the classes that occur. 0 = fair, 1 = as unfair as can be. With
more than two groups: the largest value over all pairs of them. ``predicted``, ``y``: [n] int; ``group``: [n] int. An
absolute difference of noisy rates lies above 0 for a fair model too: compare it with its standard error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np


@dataclass(frozen=True, kw_only=True)
class FairnessReport:
    """The three differences, 0 = fair, and their standard errors; None where no two groups have samples to tell it by."""

    demographic_parity: float
    equal_opportunity: float | None
    equalised_odds: float | None
    demographic_parity_se: float | None
    equal_opportunity_se: float | None
    equalised_odds_se: float | None


def demographic_parity(predicted: np.ndarray, group: np.ndarray) -> float:
    """Mean over the predicted classes c of |P(predicted = c | group 1) - P(predicted = c | group 0)| (Eq. 5).

    Raises ValueError with fewer than two groups.
    """
    return _measure(_parity, *_table(predicted, predicted, group))


def equal_opportunity(predicted: np.ndarray, y: np.ndarray, group: np.ndarray) -> float:
    """Mean over the classes c of the true labels of the difference in TPR, P(predicted = c | y = c, group) (Eq. 6).

    A class that one of the two groups does not have says nothing and is left out. Raises ValueError with fewer than two
    groups, or when two groups have no class in common.
    """
    return _measure(_opportunity, *_table(predicted, y, group))


def equalised_odds(predicted: np.ndarray, y: np.ndarray, group: np.ndarray) -> float:
    """Half the sum of the difference in TPR and that in FPR, P(predicted = c | y != c, group) (Eq. 7: y = 1 and y = 0).

    Each is averaged over the classes of the true labels for which both groups have the rate. The mean of the two, not
    their maximum, so that it moves with either. Raises as ``equal_opportunity`` does.
    """
    return _measure(_odds, *_table(predicted, y, group))


def fairness_report(
    predicted: np.ndarray, y: np.ndarray, group: np.ndarray, rng: np.random.Generator, n: int = 200
) -> FairnessReport:
    """All three, with bootstrap standard errors of ``n`` replicates; samples are resampled within each group.

    Resampling n_g samples of a group with replacement is a multinomial draw of its table of (y, predicted), so a replicate
    costs nothing per sample (Efron and Tibshirani 1993, ch. 6). Groups whose samples share no class have no rates to compare:
    a gap is None then, as is an error that fewer than two replicates tell. Raises ValueError with fewer than two groups, and
    with n < 2.
    """
    if n < 2:
        raise ValueError(f"a bootstrap needs at least 2 replicates, got {n}")
    counts, occurs = _table(predicted, y, group)
    predicted_at_all = counts.sum(axis=(0, 1)) > 0
    points = [_known(d) for d in (_parity(counts, predicted_at_all), _opportunity(counts, occurs), _odds(counts, occurs))]
    flat = counts.reshape(len(counts), -1)
    drawn = np.stack([rng.multinomial(c.sum(), c / c.sum(), size=n) for c in flat], axis=1).reshape(n, *counts.shape)
    replicates = [_parity(drawn, predicted_at_all), _opportunity(drawn, occurs), _odds(drawn, occurs)]
    errors = [None if point is None else _spread(r) for point, r in zip(points, replicates, strict=True)]
    assert points[0] is not None  # every group predicts something
    return FairnessReport(
        demographic_parity=points[0], equal_opportunity=points[1], equalised_odds=points[2],
        demographic_parity_se=errors[0], equal_opportunity_se=errors[1], equalised_odds_se=errors[2],
    )  # fmt: skip


def _known(value: np.ndarray) -> float | None:
    return None if np.isnan(value) else float(value)


def _spread(replicates: np.ndarray) -> float | None:
    """Standard deviation of those replicates that have a value; None with fewer than two."""
    known = replicates[~np.isnan(replicates)]
    return float(known.std(ddof=1)) if len(known) > 1 else None


def _table(predicted: np.ndarray, y: np.ndarray, group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Counts [G, C, C] of (group, true class, predicted class) over the classes of either, and which classes y has [C]."""
    predicted, y, group = np.asarray(predicted), np.asarray(y), np.asarray(group)
    if predicted.ndim != 1 or not predicted.shape == y.shape == group.shape:
        shapes = f"{predicted.shape}, {y.shape} and {group.shape}"
        raise ValueError(f"predictions, labels and groups must be vectors of one length, got {shapes}")
    names, g = np.unique(group, return_inverse=True)
    if len(names) < 2:
        raise ValueError(f"fairness needs samples of at least two groups, got {len(names)}")
    classes, both = np.unique(np.concatenate([y, predicted]), return_inverse=True)
    c, (true, said) = len(classes), np.split(both, 2)
    counts = np.bincount((g * c + true) * c + said, minlength=len(names) * c * c).reshape(len(names), c, c)
    return counts, counts.sum(axis=(0, 2)) > 0


Differences = Callable[[np.ndarray, np.ndarray], np.ndarray]  # counts [..., G, C, C], classes that occur [C] -> [...]


def _measure(differences: Differences, counts: np.ndarray, occurs: np.ndarray) -> float:
    value = float(differences(counts, occurs))
    if np.isnan(value):
        raise ValueError("no two groups have a class in common: their rates cannot be compared")
    return value


def _parity(counts: np.ndarray, occurs: np.ndarray) -> np.ndarray:
    return _largest(_mean_gaps(counts.sum(axis=-2) / counts.sum(axis=(-2, -1))[..., None], occurs))


def _opportunity(counts: np.ndarray, occurs: np.ndarray) -> np.ndarray:
    return _largest(_mean_gaps(_rates(counts)[0], occurs))


def _odds(counts: np.ndarray, occurs: np.ndarray) -> np.ndarray:
    tpr, fpr = (_mean_gaps(rates, occurs) for rates in _rates(counts))
    return _largest((tpr + fpr) / 2)


def _rates(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """TPR and FPR [..., G, C] of each class against the rest; nan where a group has no sample to tell."""
    hits, true, said = np.einsum("...cc->...c", counts), counts.sum(axis=-1), counts.sum(axis=-2)
    others = true.sum(axis=-1, keepdims=True) - true
    with np.errstate(invalid="ignore"):  # 0 / 0 is nan
        return hits / true, (said - hits) / others


def _mean_gaps(rates: np.ndarray, occurs: np.ndarray) -> np.ndarray:
    """[..., pairs of groups]: mean over the classes that occur of the absolute difference of rates [..., G, C]."""
    gaps = [np.abs(rates[..., a, :] - rates[..., b, :])[..., occurs] for a, b in combinations(range(rates.shape[-2]), 2)]
    gap = np.stack(gaps, axis=-2)
    known = ~np.isnan(gap)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(known, gap, 0).sum(axis=-1) / known.sum(axis=-1))


def _largest(pairs: np.ndarray) -> np.ndarray:
    return np.asarray(np.fmax.reduce(pairs, axis=-1))
