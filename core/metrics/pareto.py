"""Privacy against utility: which points no other beats, and how much they dominate. Both coordinates are losses."""

from __future__ import annotations

import numpy as np


def pareto_front(points: np.ndarray) -> np.ndarray:
    """[n] bool for points [n, 2], lower is better in both: True where no other point is as good and once better."""
    p = _checked(points)
    no_worse = (p[:, None] <= p[None]).all(axis=2)
    better = (p[:, None] < p[None]).any(axis=2)
    best: np.ndarray = np.logical_not(np.any(no_worse & better, axis=0))
    return best


def hypervolume(points: np.ndarray) -> float:
    """Area dominated between the points [n, 2] and (1, 1); larger = better defense. Exact 2-D sweep.

    FedMIA (Zhu et al., CVPR 2025, appendix, definition 1): a point is (privacy loss, utility loss), e.g. (TF01 as a
    fraction, test error), with the reference (1, 1). Points beyond it add nothing.
    """
    p = _checked(points)
    p = p[(p < 1).all(axis=1)]
    area, ceiling = 0.0, 1.0
    for x, y in p[np.lexsort((p[:, 1], p[:, 0]))]:
        if y < ceiling:
            area += (1 - x) * (ceiling - y)
            ceiling = y
    return float(area)


def _checked(points: np.ndarray) -> np.ndarray:
    p = np.asarray(points, dtype=np.float64)
    if p.size == 0:
        return p.reshape(0, 2)
    if p.ndim != 2 or p.shape[1] != 2 or not np.isfinite(p).all():
        raise ValueError(f"points must be finite and of shape [n, 2], got {p.shape}")
    return p
