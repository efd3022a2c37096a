"""95 % intervals of a mean over runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from scipy.special import betaincinv, ndtri, stdtrit

from fedbench.core.contract.interval import Interval

LEVEL = 0.95


def t_interval(values: Sequence[float]) -> Interval:
    """Student's t interval of the mean of at least 2 independent values."""
    v = _finite(values, "values")
    if len(v) < 2:
        raise ValueError(f"a t interval needs at least 2 values, got {len(v)}")
    half = _student(len(v) - 1) * v.std(ddof=1) / np.sqrt(len(v))
    return Interval(float(v.mean()), float(half), len(v), between=True)


@cache
def _student(freedom: int) -> float:
    return float(stdtrit(freedom, (1 + LEVEL) / 2))


def combined_interval(values: Sequence[float], within_ses: Sequence[float]) -> Interval:
    """Interval of the mean over seeds x targets, with the within-run standard errors of the same values.

    With at least 2 values: the t interval, never narrower than the within-run one; of a single value: the within-run one
    and ``between`` False. Within: the mean of n independent values has the error sqrt(sum se^2) / n.
    """
    v, se = _finite(values, "values"), _finite(within_ses, "within_ses")
    if len(v) != len(se) or len(v) == 0:
        raise ValueError(f"one standard error a value is needed, got {len(v)} values and {len(se)} errors")
    if (se < 0).any():
        raise ValueError("a standard error is negative")
    within = float(ndtri((1 + LEVEL) / 2) * np.sqrt(np.sum(se**2)) / len(v))
    if len(v) < 2:
        return Interval(float(v.mean()), within, len(v), between=False)
    t = t_interval(values)
    return Interval(t.mean, max(t.half_width, within), t.n, between=True)


def exact_interval(hits: int, of: int) -> tuple[float, float]:
    """(low, high) of a share, 95 %, of which ``hits`` of ``of`` were counted; never too narrow (Clopper & Pearson, 1934)."""
    if not 0 <= hits <= of or of < 1:
        raise ValueError(f"expected 0 <= hits <= of and of >= 1, got {hits} of {of}")
    tail = (1 - LEVEL) / 2
    low = 0.0 if hits == 0 else float(betaincinv(hits, of - hits + 1, tail))
    return low, 1.0 if hits == of else float(betaincinv(hits + 1, of - hits, 1 - tail))


def _finite(values: Sequence[float], name: str) -> np.ndarray:
    v = np.asarray(values, dtype=np.float64)
    if v.ndim != 1 or not np.isfinite(v).all():
        raise ValueError(f"{name} must be a vector of finite numbers, got {values!r}")
    return v
