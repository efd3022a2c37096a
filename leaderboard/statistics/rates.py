"""TF01 over several units as a board shows it: in percent, with its interval."""

from __future__ import annotations

from collections.abc import Sequence

from fedbench.core.metrics import Interval
from fedbench.core.metrics.tpr import TF01_FPR
from fedbench.leaderboard.statistics.pooled import MAX_FPR, MIN_FALSE_POSITIVES, Sample, pooled_tpr, pooled_value

FEWEST = 3  # non-members of a unit, whose scale nobody knows otherwise


def tf01_of(samples: Sequence[Sample], n: int | None = None) -> Interval | None:
    """Percent, of ``n`` units (so many as samples by default); None with too few non-members to say anything."""
    found = pooled_tpr(_usable(samples), TF01_FPR)
    if found is None:
        return None
    low, high = 100 * found.low, 100 * found.high
    n = len(samples) if n is None else n
    return Interval(100 * found.value, (high - low) / 2, n, between=True, ends=(low, high))


def low_rate(samples: Sequence[Sample]) -> float:
    """The value of TF01 as a fraction, at as low a false-positive rate as there are non-members for; 0 with hardly any."""
    usable = _usable(samples)
    n = sum(len(s.nonmember) for s in usable)
    if (n + 1) * MAX_FPR < MIN_FALSE_POSITIVES:
        return 0.0
    lowest = MIN_FALSE_POSITIVES * (1 + 1e-9) / (n + 1)  # or rounding would leave less than that many
    return pooled_value(usable, min(max(TF01_FPR, lowest), MAX_FPR)) or 0.0


def _usable(samples: Sequence[Sample]) -> list[Sample]:
    return [s for s in samples if len(s.nonmember) >= FEWEST and len(s.member)]
