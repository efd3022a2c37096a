"""TF01 over several units as a board shows it: in percent, with its interval."""

from __future__ import annotations

from collections.abc import Sequence

from fedbench.core.metrics import Interval
from fedbench.core.metrics.tpr import TF01_FPR
from fedbench.leaderboard.statistics.aligned import aligned_tpr, values_elsewhere
from fedbench.leaderboard.statistics.pooled import MAX_FPR, pooled_tpr, pooled_value
from fedbench.leaderboard.statistics.sample import Sample


def tf01_of(samples: Sequence[Sample], n: int | None = None, aligned: bool = False) -> Interval | None:
    """Percent, of ``n`` units (so many as samples by default); None with too few non-members to say anything. ``aligned``: by one
    threshold for all of them."""
    found = (aligned_tpr if aligned else pooled_tpr)(_usable(samples), TF01_FPR)
    if found is None:
        return None
    low, high = 100 * found.low, 100 * found.high
    n = len(samples) if n is None else n
    return Interval(100 * found.value, (high - low) / 2, n, between=True, ends=(low, high))


def rates_elsewhere(samples: Sequence[Sample], folds: Sequence[int], aligned: bool) -> dict[int, float]:
    """Fold -> the value of TF01 as a fraction on the samples of all other folds. ``folds``: that of each sample."""
    there = [(s, fold) for s, fold in zip(samples, folds, strict=True) if len(s.nonmember) and len(s.member)]
    if aligned:
        return values_elsewhere([s for s, _ in there], [fold for _, fold in there], TF01_FPR)
    return {fold: low_rate([s for s, other in there if other != fold]) for fold in dict.fromkeys(folds)}


def low_rate(samples: Sequence[Sample]) -> float:
    """The value of TF01 as a fraction, at as low a false-positive rate as every unit has non-members for; 0 with hardly any."""
    usable = _usable(samples)
    lowest = max((1 / (len(s.nonmember) + 1) for s in usable), default=1.0)
    return pooled_value(usable, max(TF01_FPR, lowest)) if lowest <= MAX_FPR else 0.0


def _usable(samples: Sequence[Sample]) -> list[Sample]:
    return [s for s in samples if len(s.nonmember) and len(s.member)]
