"""The board in a screenful, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from fedbench.core.contract.report import Summary
from fedbench.core.metrics import Interval
from fedbench.leaderboard.statistics.row import Row
from fedbench.leaderboard.statistics.section import Section
from fedbench.leaderboard.tables.common import rank_of

_HEADERS = ["setting", "coalition", "view", "#", "defense", "worst AUC", "by", "mean AUC", "worst TF01 %", "delta-acc pp",
            "members' share pp", "runtime", "cells"]  # fmt: skip


def summary(sections: Sequence[Section]) -> Summary:
    """One row a defense of each setting, coalition and view, in the board's order.

    Skipped, failed and missing cells are counted in the last column.
    """
    rows = [
        [s.setting, s.coalition, s.view, rank_of(s, row).text, row.label, *_found(s, row), *_costs(s, row)]
        for s in sections for row in s.rows
    ]  # fmt: skip
    return Summary(_HEADERS, rows)


def _found(section: Section, row: Row) -> list[str]:
    worst, rate = section.contest.worst(row.label), section.contest.worst_tf01(row.label)
    return [
        _interval(worst.found if worst else None, ".3f"), worst.attack if worst else "",
        _interval(section.contest.mean(row.label), ".3f"), _interval(rate.found if rate else None, ".2f"),
    ]  # fmt: skip


def _costs(section: Section, row: Row) -> list[str]:
    found = section.compared[row.label]
    outcomes = ", ".join(f"{n} {what}" for what, n in sorted(row.outcomes.items()) if n)
    runtime = _interval(found.runtime, ".2f")
    return [_interval(found.delta_accuracy, "+.2f", scale=100), _interval(found.contribution, "+.2f", scale=100), runtime, outcomes]


def _interval(found: Interval | None, form: str, scale: float = 1.0) -> str:
    if found is None:
        return "n/a"
    digits = int(form.rpartition(".")[2][0])
    mean = f"{round(found.mean * scale, digits) + 0.0:{form}}"
    if found.ends is not None:
        return f"{mean} [{found.low * scale:.{digits}f}, {found.high * scale:.{digits}f}]"
    return mean if found.half_width != found.half_width else f"{mean} ± {found.half_width * scale:.{digits}f}"
