"""Cost of a defense: differences of utility (in classification accuracy), and fronts."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np
from numpy import ndarray

from fedbench.core.contract.board import Interval
from fedbench.core.metrics.intervals import combined_interval

ROUNDS = 3  # last audited rounds in the accuracy of a run: a single one may be far off


def run_accuracy(by_round: Sequence[float]) -> float:
    """Utility of a run: mean over its last three audited rounds.

    ``by_round``: utility of the global model after each audited round, at least one.
    """
    return fmean(by_round[-ROUNDS:])


def delta_accuracy(
    values: Sequence[float],
    defended: Sequence[ndarray],
    undefended: Sequence[ndarray],
    rng: np.random.Generator,
    n: int = 1000,
) -> Interval:
    """Mean over seeds of utility(defended) - utility(undefended), with its 95 % interval.

    Student's t over ``values``, never narrower than the within-run part: a paired bootstrap over
    the test samples of the last round. Seeds may share one test set, so that a sample is drawn for
    all seeds at once (right for distinct test sets too); sets of unequal size are drawn separately.

    Args:
        values: difference of the two runs' :func:`run_accuracy`, one a seed.
        defended: [n_test] a seed, utility of the final model on the test samples: in
            classification whether each is right.
        undefended: in the same order.
        n: replicates.
    """
    if not len(values) == len(defended) == len(undefended) > 0:
        raise ValueError(
            f"one pair a seed is needed, got {len(values)}, {len(defended)} defended, "
            f"{len(undefended)} undefended"
        )
    differences = [_difference(a, b) for a, b in zip(defended, undefended, strict=True)]
    # combined_interval divides by sqrt(n): hand it the error a single run would have
    error = _error_of_mean(differences, rng, n) * np.sqrt(len(values))
    return combined_interval(values, [error] * len(values))


def _error_of_mean(differences: Sequence[ndarray], rng: np.random.Generator, n: int) -> float:
    if len({len(d) for d in differences}) == 1:
        return _bootstrap_se(np.mean(differences, axis=0), rng, n)
    squares = sum(_bootstrap_se(d, rng, n) ** 2 for d in differences)
    return float(np.sqrt(squares) / len(differences))


def _difference(defended: ndarray, undefended: ndarray) -> ndarray:
    a = np.asarray(defended)
    b = np.asarray(undefended)
    if a.ndim != 1 or a.shape != b.shape or not len(a):
        raise ValueError(
            f"two vectors over the same test samples are needed, got {a.shape} and {b.shape}"
        )
    return np.asarray(a.astype(np.float64) - b)


def _bootstrap_se(difference: ndarray, rng: np.random.Generator, n: int) -> float:
    """Standard error of the mean, by resampling the counts of the few distinct values."""
    values, counts = np.unique(difference, return_counts=True)
    drawn = rng.multinomial(len(difference), counts / len(difference), size=n)
    return float((drawn @ values / len(difference)).std(ddof=1))


# --- privacy against utility ----------------------------------------------------------------------


def pareto_front(points: ndarray) -> ndarray:
    """[n] bool for points [n, 2], lower is better: no other point is as good and once better."""
    p = _checked(points)
    no_worse = (p[:, None] <= p[None]).all(axis=2)
    better = (p[:, None] < p[None]).any(axis=2)
    return np.asarray(~np.any(no_worse & better, axis=0))


def hypervolume(points: ndarray) -> float:
    """Area dominated between the points [n, 2] and (1, 1); larger = better defense.

    FedMIA (Zhu et al., CVPR 2025, appendix, definition 1): a point is (privacy loss, utility loss),
    e.g. (TF01 as a fraction, test error), with the reference (1, 1). Points beyond it add nothing.
    """
    p = _checked(points)
    p = p[(p < 1).all(axis=1)]
    area = 0.0
    ceiling = 1.0
    for x, y in p[np.lexsort((p[:, 1], p[:, 0]))]:
        if y < ceiling:
            area += (1 - x) * (ceiling - y)
            ceiling = y
    return float(area)


def _checked(points: ndarray) -> ndarray:
    p = np.asarray(points, dtype=np.float64)
    if p.size == 0:
        return p.reshape(0, 2)
    if p.ndim != 2 or p.shape[1] != 2 or not np.isfinite(p).all():
        raise ValueError(f"points must be finite and of shape [n, 2], got {p.shape}")
    return p
