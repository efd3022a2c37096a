"""The board in a screenful, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from fedbench.core.contract.report import Summary
from fedbench.core.metrics import Interval
from fedbench.core.metrics.registry import Metric
from fedbench.leaderboard.statistics.facts import claims
from fedbench.leaderboard.statistics.metrics import raw_metrics
from fedbench.leaderboard.statistics.row import Row
from fedbench.leaderboard.statistics.section import Section
from fedbench.leaderboard.tables.common import rank_of
from fedbench.leaderboard.tables.facts import claim_text

_HEADERS = ["setting", "coalition", "view", "#", "defense", "worst AUC", "by", "mean AUC", "worst TF01 %", "delta-acc pp",
            "members' share pp", "runtime", "cells"]  # fmt: skip


def summary(sections: Sequence[Section]) -> Summary:
    """One row a defense of each setting, coalition and view, in the board's order.

    What a defense claims of differential privacy stands in a column where some row claims any. Skipped, failed and missing
    cells are counted in the last column.
    """
    claimed = any(claims(row) for s in sections for row in s.rows)
    rows = [
        [s.setting, s.coalition, s.view, _rank(s, row), row.label, *_found(s, row), *_costs(s, row), *_more(s, row),
         *([claim_text(row)] if claimed else []),
         ", ".join(f"{n} {what}" for what, n in sorted(row.outcomes.items()) if n)]
        for s in sections for row in s.rows
    ]  # fmt: skip
    further = [f"worst {m.title} {m.unit}".rstrip() for m in _further()]
    return Summary([*_HEADERS[:-1], *further, *(["claims"] if claimed else []), _HEADERS[-1]], rows)


def _rank(section: Section, row: Row) -> str:
    return "-" if not row.floor and row.label not in section.contest.ranks else rank_of(section, row).text


def _found(section: Section, row: Row) -> list[str]:
    worst, rate = section.contest.worst(row.label), section.contest.worst_tf01(row.label)
    return [
        _interval(worst.found if worst else None, ".3f"), worst.attack if worst else "",
        _interval(section.contest.mean(row.label), ".3f"), _interval(rate.found if rate else None, ".2f"),
    ]  # fmt: skip


def _costs(section: Section, row: Row) -> list[str]:
    found = section.compared[row.label]
    accuracies = [_interval(i, "+.2f", scale=100) for i in (found.delta_accuracy, found.contribution)]
    return [*accuracies, _interval(found.runtime, ".2f")]


def _more(section: Section, row: Row) -> list[str]:
    """The largest (or, where less is worse, the smallest) mean over the attacks that count, as measured."""
    shown = []
    for metric in _further():
        means = [v for a, v in row.means(metric.name, "ofl").items() if a in section.contest.eligible]
        worst = (max if metric.direction == "lower" else min)(means, default=None)
        shown.append("n/a" if worst is None else f"{worst:.{metric.digits}f}")
    return shown


def _further() -> list[Metric]:
    return [m for m in raw_metrics() if m.name != "auc"]


def _interval(found: Interval | None, form: str, scale: float = 1.0) -> str:
    if found is None:
        return "n/a"
    digits = int(form.rpartition(".")[2][0])
    mean = f"{round(found.mean * scale, digits) + 0.0:{form}}"
    if found.ends is not None:
        return f"{mean} [{found.low * scale:.{digits}f}, {found.high * scale:.{digits}f}]"
    return mean if found.half_width != found.half_width else f"{mean} ± {found.half_width * scale:.{digits}f}"
