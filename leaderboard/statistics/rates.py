"""TF01 over several units as a board shows it: in percent, with its interval."""

from __future__ import annotations

from collections.abc import Sequence

from fedbench.core.metrics import Interval
from fedbench.core.metrics.tpr import TF01_FPR
from fedbench.leaderboard.statistics.pooled import Sample, pooled_tpr


def tf01_of(samples: Sequence[Sample]) -> Interval | None:
    """Percent; None with too few non-members to say anything (``pooled_tpr``)."""
    found = pooled_tpr(samples, TF01_FPR) if samples else None
    if found is None:
        return None
    low, high = 100 * found.low, 100 * found.high
    return Interval(100 * found.value, (high - low) / 2, len(samples), between=True, ends=(low, high))
