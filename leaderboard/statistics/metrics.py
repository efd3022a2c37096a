"""Which of the registry's metrics a board shows as they were measured."""

from __future__ import annotations

from fedbench.core.metrics import registry

POOLED = "tf01"  # over targets and seeds: a single target rarely has the non-members for it


def raw_metrics() -> list[registry.Metric]:
    """The metrics that have a table of their own with one value a target, in the registry's order."""
    return [m for m in registry.METRICS if m.board and m.name != POOLED]
