"""The board in a screenful, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from fedbench.core.contract.report import Summary
from fedbench.core.metrics import Interval
from fedbench.core.metrics.registry import Metric
from fedbench.leaderboard.statistics.metrics import RANKING, shown_metrics
from fedbench.leaderboard.statistics.row import Row
from fedbench.leaderboard.statistics.section import Section


def summary(sections: Sequence[Section]) -> Summary:
    """One row a defense of each setting, coalition and view, in the board's order.

    Skipped, failed and missing cells are counted in the last column.
    """
    metrics = shown_metrics()
    headers = ["setting", "coalition", "view", "#", "defense", *(h for m in metrics for h in _headers(m)),
               "delta-acc pp", "runtime", "cells"]  # fmt: skip
    rows = [
        [s.setting, s.coalition, s.view, str(rank) if row.complete else "-", row.label,
         *(c for m in metrics for c in _metric(s, row, m)), *_costs(s, row)]
        for s in sections for rank, row in enumerate(s.rows, 1)
    ]  # fmt: skip
    return Summary(headers, rows)


def _headers(metric: Metric) -> list[str]:
    worst = f"worst {metric.title} {metric.unit}".rstrip()
    return [worst, "by", f"mean {metric.title}"] if metric.name == RANKING else [worst]


def _metric(section: Section, row: Row, metric: Metric) -> list[str]:
    worst = row.worst(metric.name)
    shown = "n/a" if worst is None else f"{worst[1]:.{metric.digits}f}"
    if metric.name != RANKING:
        return [shown]
    return [shown, worst[0] if worst else "", _interval(section.compared[row.label].mean_auc, f".{metric.digits}f")]


def _costs(section: Section, row: Row) -> list[str]:
    found = section.compared[row.label]
    runtime = "n/a" if found.runtime is None else f"{found.runtime:.2f}x"
    outcomes = ", ".join(f"{n} {what}" for what, n in sorted(row.outcomes.items()) if n)
    return [_interval(found.delta_accuracy, "+.2f", scale=100), runtime, outcomes]


def _interval(found: Interval | None, form: str, scale: float = 1.0) -> str:
    if found is None:
        return "n/a"
    digits = int(form.rpartition(".")[2][0])
    mean = f"{round(found.mean * scale, digits) + 0.0:{form}}"
    return mean if found.half_width != found.half_width else f"{mean} ± {found.half_width * scale:.{digits}f}"
