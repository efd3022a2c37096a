"""Which of the registry's metrics a board shows, and what is good in them."""

from __future__ import annotations

from collections.abc import Mapping

from fedbench.core.metrics import registry

RANKING = "auc"  # rows are ranked by it, and paired on it


def shown_metrics() -> list[registry.Metric]:
    """The metrics that have a table of their own, in the registry's order."""
    return [m for m in registry.METRICS if m.board]


def best(values: list[float], name: str) -> float | None:
    """The value that whoever is attacked likes best; None of nothing."""
    return (min if registry.metric(name).direction == "lower" else max)(values, default=None)


def worst(values: Mapping[str, float], name: str) -> str | None:
    """The key of the value that whoever is attacked likes least, a tie going to the first by name; None of nothing."""
    sign = 1 if registry.metric(name).direction == "lower" else -1
    return max(sorted(values), key=lambda k: sign * values[k], default=None)
