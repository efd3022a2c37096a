"""Privacy against utility: paired differences, accuracy under active attacks, the Pareto front."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from fedbench.core.contract.board import Content, Table, Value, Words, value
from fedbench.core.metrics import pareto_front
from fedbench.leaderboard.columns import column_for, with_utility
from fedbench.leaderboard.statistics.intervals import mean_of
from fedbench.leaderboard.statistics.rows import DefenseRow, adversary_of
from fedbench.leaderboard.statistics.sections import BoardSection
from fedbench.leaderboard.tables.common import NAMED, joined, numbers, row_table, sentence

Point = tuple[float, float]
"""(privacy loss as a fraction, test error as of :meth:`BoardSection.test_error`)"""


def adversary_table(section: BoardSection) -> list[Table]:
    """Return the test accuracy of the runs that were trained with an active adversary inside;
    nothing where there are none.
    """
    by_attack = _active_accuracies(section)
    if not by_attack:
        return []

    def accuracy(attack: str, row: DefenseRow) -> Content:
        return Value(mean=mean_of(by_attack[attack].get(row.label, [])))

    columns = [NAMED]
    column = column_for("accuracy", section.utility)
    for attack in sorted(by_attack):
        heading = replace(column.heading, name=attack, unit="")
        columns.append((heading, partial(accuracy, attack)))
    unit = f" ({column.unit})" if column.unit else ""
    title = f"{column.title.capitalize()}{unit} with the active adversary in the federation"
    active = {row.label: row.active_attack for row in section.rows if row.active_attack}
    notes = []
    if active:
        why = (
            "Rows without a passive run: accuracy, delta-accuracy and runtime above are those "
            "under the attack in brackets, compared with the undefended run under the same attack: "
            "{}."
        )
        why = with_utility(why, section.utility)
        notes.append(sentence(why, joined([sentence("{} ({})", *pair) for pair in active.items()])))
    caption = " (the table above: without)"
    return [row_table(title, caption, section.rows, columns, footnotes=tuple(notes))]


def _active_accuracies(section: BoardSection) -> dict[str, dict[str, list[float]]]:
    """Return attack -> row label -> test accuracies of the runs with that attack inside."""
    by_attack: dict[str, dict[str, list[float]]] = {}
    for row in section.rows:
        usual_runs = {loaded.record.run_key for loaded in row.utility_records.values()}
        for entry, seed in product(row.entries.values(), row.seeds):
            loaded = entry.ok(seed)
            if loaded is None or not loaded.record.utility:
                continue
            if adversary_of(loaded) or loaded.record.run_key not in usual_runs:
                accuracies = by_attack.setdefault(loaded.record.attack.label, {})
                accuracies.setdefault(row.label, []).append(loaded.record.accuracy)
    return by_attack


def paired_table(section: BoardSection) -> list[Table]:
    """Return each worst case minus the undefended one; nothing where there is none to compare."""
    base, comparison = section.base, section.comparison
    if base is None or len(section.rows) < 2 or not comparison.worst_cases.of(base.label).worst:
        return []
    against = comparison.pairwise.against(base.label)

    def difference(row: DefenseRow) -> Content:
        pair = against.get(row.label)
        return None if pair is None else value(pair.interval)

    def verdict(row: DefenseRow) -> Content:
        pair = against.get(row.label)
        if pair is None:
            return None
        if not pair.shown:
            return Words("no difference shown")
        return Words("less" if pair.interval.mean < 0 else "MORE")

    columns = [
        NAMED,
        (numbers("minus undefended", direction="lower", signed=True), difference),
        (numbers("leaks", direction="lower", signed=True), verdict),
    ]
    rows = [row for row in section.rows if not row.undefended]
    caption = ", on the same candidates; verdicts at 95 % for all rows together (Holm)"
    return [row_table("Worst case compared", caption, rows, columns)]


def on_front(section: BoardSection) -> dict[str, bool]:
    """Return row label -> whether it is on the Pareto front, of the rows of :func:`trade_off`."""
    points = trade_off(section)
    front = pareto_front(np.array(list(points.values())))
    return dict(zip(points, map(bool, front), strict=True))


def trade_off(section: BoardSection) -> dict[str, Point]:
    """Return row label -> privacy loss and test error, of the rows with a rank that have both."""
    losses = _privacy_losses(section)
    points: dict[str, Point] = {}
    for row in section.rows:
        if row.label in losses and row.accuracy:
            points[row.label] = losses[row.label], section.test_error(row.accuracy.mean)
    return points


def _privacy_losses(section: BoardSection) -> dict[str, float]:
    """Return row label -> worst case over attacks in [0, 1], chosen on other folds.

    TF01 as a fraction where every row has it, else 2 AUC - 1 (below 0.5: 0).
    """
    ranked = section.comparison.pairwise.ranked
    rows = [section.summaries[row.label] for row in section.rows if row.label in ranked]
    rates = {s.label: s.tf01.mean / 100 for s in rows if s.tf01}
    if rows and len(rates) == len(rows):
        return rates
    return {s.label: min(1.0, max(0.0, 2 * s.worst.mean - 1)) for s in rows if s.worst}
