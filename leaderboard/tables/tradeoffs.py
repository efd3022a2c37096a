"""Privacy against utility: paired differences, accuracy under active attacks, the Pareto front."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedbench.core.contract.board import Column, Content, Table, Value, Words, value
from fedbench.core.metrics import hypervolume, pareto_front
from fedbench.leaderboard.statistics.intervals import mean_of
from fedbench.leaderboard.statistics.rows import adversary_of
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.statistics.verdict import Difference
from fedbench.leaderboard.tables.common import (
    DEFENSE,
    joined,
    name_of,
    numbers,
    sentence,
    table_of,
    tf01_notes,
)

Point = tuple[float, float]
"""(privacy loss, test error), both fractions"""


def adversary_table(section: Section) -> list[Table]:
    """Test accuracy of the runs that were trained with an active adversary inside; nothing where
    there are none.
    """
    shown: dict[str, dict[str, list[float]]] = {}
    for row in section.rows:
        usual = {loaded.record.run_key for loaded in row.utility_records.values()}
        for loaded in filter(
            None, (e.ok(seed) for e in row.entries.values() for seed in row.seeds)
        ):
            r = loaded.record
            if r.utility and (adversary_of(loaded) or r.run_key not in usual):
                shown.setdefault(r.attack.label, {}).setdefault(row.label, []).append(r.accuracy)
    if not shown:
        return []
    attacks = sorted(shown)
    columns = (
        DEFENSE,
        *(Column(name=attack, direction="higher", digits=1, scale=100) for attack in attacks),
    )
    rows = (
        (name_of(row), *(Value(mean=mean_of(shown[a].get(row.label, []))) for a in attacks))
        for row in section.rows
    )
    under = [
        sentence("{} ({})", row.label, row.active_attack)
        for row in section.rows
        if row.active_attack is not None
    ]
    why = sentence(
        "No passive run has scores for the following rows: their accuracy, delta-accuracy and "
        "runtime above are those of the "
        "run under the attack in brackets, and compared with the undefended run under the same "
        "attack: {}.",
        joined(under),
    )
    return [
        table_of(
            "Accuracy (%) with the active adversary in the federation",
            " (the table above: without)",
            columns,
            rows,
            footnotes=(why,) if under else (),
        )
    ]


def paired_table(section: Section) -> list[Table]:
    """Worst case minus the undefended one's and minus the free-riders'; nothing where there is
    nothing to compare.
    """
    comparison, floor = section.comparison, section.free_rider
    references = [
        r
        for r in (section.base, floor)
        if r is not None and comparison.worst_cases.of(r.label).worst is not None
    ]
    if section.base is None or section.base not in references or len(section.rows) < 2:
        return []
    rows: list[tuple[Content, ...]] = []
    for row in (row for row in section.rows if not row.undefended):
        found = [comparison.pairwise.against(r.label).get(row.label) for r in references]
        cells = [None if d is None else value(d.found) for d in found]
        rows.append((name_of(row), cells[0], _verdict(found[0]), *cells[1:]))
    names = ["minus undefended", "leaks", *(["minus free-riders"] if floor in references else [])]
    columns = (DEFENSE, *(numbers(name, direction="lower", signed=True) for name in names))
    caption = ", on the same candidates; verdicts at 95 % for all rows together (Holm)"
    return [table_of("Worst case compared", caption, columns, rows)]


def _verdict(difference: Difference | None) -> Content:
    if difference is None:
        return None
    if not difference.shown:
        return Words("no difference shown")
    return Words("less" if difference.found.mean < 0 else "MORE")


@dataclass(frozen=True, kw_only=True)
class TradeOff:
    """``points`` and ``on_front`` by row label; ``undefended``: its point, or nothing."""

    loss: Literal["tf01", "auc"]
    points: dict[str, Point]
    on_front: dict[str, bool]
    undefended: tuple[Point, ...]


def trade_off(section: Section) -> TradeOff | None:
    """Of the complete rows but the floors; None without one that has an accuracy."""
    loss, losses = _privacy_loss(section)
    points = {
        r.label: (losses[r.label], 1 - r.accuracy.mean)
        for r in section.rows
        if r.label in losses and r.accuracy
    }
    if not points:
        return None
    front = dict(zip(points, map(bool, pareto_front(np.array(list(points.values())))), strict=True))
    undefended = tuple(points[r.label] for r in section.rows if r.undefended and r.label in points)
    return TradeOff(loss=loss, points=points, on_front=front, undefended=undefended)


def _privacy_loss(section: Section) -> tuple[Literal["tf01", "auc"], dict[str, float]]:
    """(its metric, row label -> value in [0, 1]): the worst case over attacks, chosen on other
    folds.

    TF01 as a fraction where every row has it, else 2 AUC - 1 (below 0.5: 0).
    """
    rows = [section.summaries[r.label] for r in section.rows if r.complete and not r.floor]
    rates = {s.label: s.tf01.mean / 100 for s in rows if s.tf01}
    if rows and len(rates) == len(rows):
        return "tf01", rates
    return "auc", {s.label: min(1.0, max(0.0, 2 * s.worst.mean - 1)) for s in rows if s.worst}


def pareto_table(section: Section) -> list[Table]:
    """Front and hypervolume of the complete rows, the undefended point in every front."""
    found = trade_off(section)
    if found is None:
        return []
    loss = "worst TF01 / 100" if found.loss == "tf01" else "2 x worst AUC - 1"
    columns = (
        DEFENSE,
        numbers(f"privacy loss ({loss})", direction="lower"),
        numbers("test error", direction="lower"),
        numbers("on the front"),
        numbers("hypervolume", direction="higher"),
    )
    rows = (
        (
            name_of(row),
            *(Value(mean=v) for v in found.points[row.label]),
            Words("yes" if found.on_front[row.label] else "no"),
            Value(mean=hypervolume(np.array([found.points[row.label], *found.undefended]))),
        )
        for row in section.rows
        if row.label in found.points
    )
    caption = " (hypervolume: of the row and the undefended point; larger is better)"
    notes = tf01_notes(section) if found.loss == "tf01" else ()
    return [table_of("Privacy against utility", caption, columns, rows, footnotes=notes)]
