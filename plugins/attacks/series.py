"""Series over the audited rounds: shared arithmetic, blind to rounds in which a client was absent (NaN)."""

from __future__ import annotations

import numpy as np

from fedbench.core import SkipCell


def time_average(series: np.ndarray) -> np.ndarray:
    """Mean over the rounds of [R, n], NaN left out; raises ``SkipCell`` when a candidate has no round at all."""
    if np.isnan(series).all(axis=0).any():
        raise SkipCell("the target took part in no audited round that this attack can use")
    return np.asarray(np.nanmean(series, axis=0, dtype=np.float64))


def slope(rounds: np.ndarray, series: np.ndarray) -> np.ndarray:
    """Ordinary least-squares slope of [R, n] against the round numbers [R], NaN left out.

    Raises ``SkipCell`` when a candidate has fewer than two rounds.
    """
    seen = ~np.isnan(series)
    count = seen.sum(axis=0)
    if (count < 2).any():
        raise SkipCell("a slope needs at least two audited rounds with the target in them")
    t = np.where(seen, np.asarray(rounds, np.float64)[:, None], 0.0)
    t = np.where(seen, t - t.sum(axis=0) / count, 0.0)
    return (t * np.where(seen, series, 0.0)).sum(axis=0) / (t * t).sum(axis=0)
