"""What a defense costs in accuracy, paired with the undefended run of the same seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedbench.core.contract.interval import Interval
from fedbench.core.metrics.intervals import combined_interval


def delta_accuracy(
    defended: Sequence[np.ndarray], undefended: Sequence[np.ndarray], rng: np.random.Generator, n: int = 1000
) -> Interval:
    """Mean over seeds of accuracy(defended) - accuracy(undefended), a fraction, with its 95 % interval.

    One [n_test] bool array a seed on each side: which test samples are classified correctly, in the same order.
    With two seeds and more it is Student's t over them, which has the variance of training in it, never narrower than the
    within-run part. That is a paired bootstrap over test samples with ``n`` replicates. Seeds may share one test set,
    so a sample is drawn for all seeds at once (right for distinct test sets too); sets of unequal size are drawn apart.
    """
    if len(defended) != len(undefended) or not defended:
        raise ValueError(f"one pair a seed is needed, got {len(defended)} defended and {len(undefended)} undefended")
    differences = [_difference(a, b) for a, b in zip(defended, undefended, strict=True)]
    values = [float(d.mean()) for d in differences]
    if len({len(d) for d in differences}) == 1:
        se = _bootstrap_se(np.mean(differences, axis=0), rng, n)
    else:
        se = float(np.sqrt(sum(_bootstrap_se(d, rng, n) ** 2 for d in differences)) / len(differences))
    # combined_interval divides by sqrt(n): hand it the error a single run would have
    return combined_interval(values, [se * np.sqrt(len(values))] * len(values))


def _difference(defended: np.ndarray, undefended: np.ndarray) -> np.ndarray:
    a, b = np.asarray(defended), np.asarray(undefended)
    if a.dtype != bool or b.dtype != bool or a.ndim != 1 or a.shape != b.shape or len(a) == 0:
        raise ValueError(f"two bool vectors over the same test samples are needed, got {a.shape} and {b.shape}")
    difference: np.ndarray = a.astype(np.float64) - b
    return difference


def _bootstrap_se(difference: np.ndarray, rng: np.random.Generator, n: int) -> float:
    """Standard error of the mean: resampling counts of the few distinct values is resampling the samples."""
    values, counts = np.unique(difference, return_counts=True)
    drawn = rng.multinomial(len(difference), counts / len(difference), size=n)
    return float((drawn @ values / len(difference)).std(ddof=1))
