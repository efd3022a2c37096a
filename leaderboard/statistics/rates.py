"""TF01 over several units as a board shows it: in percent, with its interval."""

from __future__ import annotations

from collections.abc import Sequence

from fedbench.core.metrics import Interval
from fedbench.core.metrics.tpr import TF01_FPR
from fedbench.leaderboard.statistics.aligned import aligned_tpr, aligned_value
from fedbench.leaderboard.statistics.pooled import MAX_FPR, Sample, pooled_tpr, pooled_value


def tf01_of(samples: Sequence[Sample], n: int | None = None, aligned: bool = False) -> Interval | None:
    """Percent, of ``n`` units (so many as samples by default); None with too few non-members to say anything. ``aligned``: by one
    threshold for all of them."""
    found = (aligned_tpr if aligned else pooled_tpr)(_usable(samples), TF01_FPR)
    if found is None:
        return None
    low, high = 100 * found.low, 100 * found.high
    n = len(samples) if n is None else n
    return Interval(100 * found.value, (high - low) / 2, n, between=True, ends=(low, high))


def low_rate(samples: Sequence[Sample], aligned: bool = False) -> float:
    """The value of TF01 as a fraction, at as low a false-positive rate as every unit has non-members for; 0 with hardly any."""
    usable = _usable(samples)
    if aligned:
        return aligned_value(usable, TF01_FPR)
    lowest = max((1 / (len(s.nonmember) + 1) for s in usable), default=1.0)
    return pooled_value(usable, max(TF01_FPR, lowest)) if lowest <= MAX_FPR else 0.0


def _usable(samples: Sequence[Sample]) -> list[Sample]:
    return [s for s in samples if len(s.nonmember) and len(s.member)]
