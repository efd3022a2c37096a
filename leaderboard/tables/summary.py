"""The board in a screenful, for a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from fedbench.core.contract.report import Summary
from fedbench.core.metrics import Interval
from fedbench.core.metrics.registry import Metric
from fedbench.leaderboard.statistics.facts import claims
from fedbench.leaderboard.statistics.metrics import raw_metrics
from fedbench.leaderboard.statistics.rows import Row
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.tables.common import rank_of
from fedbench.leaderboard.tables.facts import claim_text

_READING = "with 95 % intervals; delta-acc in points and runtime as a factor, against the undefended run; all else on the board"
_HEADERS = ["#", "defense", "worst AUC", "by", "mean AUC", "TF01 %", "delta-acc", "runtime"]


def summary(sections: Sequence[Section]) -> Summary:
    """One row a defense under each setting, coalition and view, in the board's order; numbers are as short as a line needs.

    Cells without a score are counted in a column that is there where some row has any; what a defense claims of differential
    privacy is a note. All else, and all digits, are on the board.
    """
    every = [(s, row) for s in sections for row in s.rows]
    further = [f"worst {m.title} {m.unit}".rstrip() for m in _further()]
    lacking = any(_lacking(row) for _, row in every)
    return Summary(
        [*_HEADERS, *further, *(["no score"] if lacking else [])],
        [[_rank(s, row), row.label, *_found(s, row), *_costs(s, row), *_more(s, row), *([_lacking(row)] if lacking else [])]
         for s, row in every],
        headings=[f"{s.setting}, coalition {s.coalition}, view {s.view}" for s, _ in every],
        notes=[_READING] * bool(every) + list(dict.fromkeys(_claim(s, row, len(sections)) for s, row in every if claims(row))),
    )  # fmt: skip


def _claim(section: Section, row: Row, sections: int) -> str:
    where = f" ({section.setting}, coalition {section.coalition})" if sections > 1 else ""
    return f"{row.label} claims {claim_text(row)}{where}"


def _lacking(row: Row) -> str:
    return ", ".join(f"{n} {what}" for what, n in sorted(row.outcomes.items()) if n and what != "ok")


def _rank(section: Section, row: Row) -> str:
    return "-" if not row.floor and row.label not in section.comparison.ranks else rank_of(section, row).text


def _found(section: Section, row: Row) -> list[str]:
    worst, rate = section.comparison.worst(row.label), section.comparison.worst_tf01(row.label)
    return [
        _auc(worst.found if worst else None), worst.attack if worst else "", _auc(section.comparison.mean(row.label)),
        _interval(rate.found if rate else None, _percent),
    ]  # fmt: skip


def _costs(section: Section, row: Row) -> list[str]:
    found = section.compared[row.label]
    return [_interval(found.delta_accuracy, _points, "+"), _interval(found.runtime, lambda times: f"{times:.2f}")]


def _more(section: Section, row: Row) -> list[str]:
    """The largest (or, where less is worse, the smallest) mean over the attacks that count, as measured."""
    shown = []
    for metric in _further():
        means = [v for a, v in row.means(metric.name, "ofl").items() if a in section.comparison.eligible]
        worst = (max if metric.direction == "lower" else min)(means, default=None)
        shown.append("n/a" if worst is None else f"{worst:.{metric.digits}f}")
    return shown


def _further() -> list[Metric]:
    return [m for m in raw_metrics() if m.name != "auc"]


def _auc(found: Interval | None) -> str:
    """``.619±.033``."""
    return re.sub(r"(?<!\d)0\.", ".", _interval(found, lambda value: f"{value:.3f}"))


def _percent(value: float) -> str:
    """A tenth of a percent where that is much."""
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def _points(value: float) -> str:
    return f"{round(100 * value, 1) + 0.0:.1f}"  # no -0.0


def _interval(found: Interval | None, text: Callable[[float], str], sign: str = "") -> str:
    if found is None:
        return "n/a"
    mean = text(found.mean)
    mean = sign + mean if sign and not mean.startswith("-") else mean
    if found.ends is not None:
        return f"{mean} [{text(found.low)}, {text(found.high)}]"
    return mean if found.half_width != found.half_width else f"{mean}±{text(found.half_width)}"
