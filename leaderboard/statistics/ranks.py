"""Ranks as ranges: only what is told apart by pairwise tests, corrected for their number, is put in an order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedbench.core.metrics.intervals import LEVEL

Pair = tuple[str, str]


def holm(p_values: Mapping[Pair, float]) -> dict[Pair, float]:
    """Adjusted p-values that control the chance of any false claim (Holm, Scandinavian Journal of Statistics 1979)."""
    adjusted: dict[Pair, float] = {}
    largest = 0.0
    for i, (pair, p) in enumerate(sorted(p_values.items(), key=lambda item: (item[1], item[0]))):
        largest = max(largest, min(1.0, (len(p_values) - i) * p))
        adjusted[pair] = largest
    return adjusted


def rank_ranges(
    labels: Sequence[str], differences: Mapping[Pair, float], p_values: Mapping[Pair, float]
) -> dict[str, tuple[int, int]]:
    """Label -> (best, worst) rank that the tests leave it, 1 being the lowest value.

    ``differences[a, b]``: value of a minus that of b, one for each pair; ``p_values``: of them, not yet adjusted. Rows
    better than a row with significance stand before it, worse ones behind it, the others may stand on either side: with
    95 % confidence all true ranks lie within their ranges (Al Mohamad et al., Statistica Neerlandica 2022).
    """
    better: dict[str, int] = dict.fromkeys(labels, 0)
    worse: dict[str, int] = dict.fromkeys(labels, 0)
    for (a, b), p in holm(p_values).items():
        if p <= 1 - LEVEL and differences[a, b] != 0:
            low, high = (a, b) if differences[a, b] < 0 else (b, a)
            better[high] += 1
            worse[low] += 1
    return {label: (1 + better[label], len(labels) - worse[label]) for label in labels}
