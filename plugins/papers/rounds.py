"""Attacks by the choice of their round, as papers report them: last, calibrated, best, and the
maximum over attacks and rounds.
"""

from __future__ import annotations

from typing import Any

from fedbench.core import Analysis
from fedbench.core.contract.board import Block, Content, Table, Value, Words, value
from fedbench.core.metrics.roc import TF01_MIN_NONMEMBERS
from fedbench.leaderboard.statistics.intervals import mean_of
from fedbench.leaderboard.statistics.sections import BoardSection
from fedbench.leaderboard.tables.common import (
    ATTACK,
    DEFENSE,
    name_of,
    numbers,
    spanned,
    table_of,
)
from fedbench.plugins.papers.maximum import has_maxima, row_maximum


class Rounds(Analysis):
    """Tables of attacks by the choice of their round."""

    by_default = False
    every_board = True
    place = "costs"

    def draw(self, section: Any, label: str) -> list[Block]:
        tables = decisions_by_round(section) + round_table(section) + maximum_table(section)
        return list(tables)


_DECISIONS = {
    "last accuracy": "last_accuracy",
    "calibrated accuracy": "calibrated_accuracy",
    "best_round accuracy": "best_accuracy",
    "null of best": "null_best_accuracy",
    "last precision": "last_precision",
    "last recall": "last_recall",
    "calibrated precision": "calibrated_precision",
    "calibrated recall": "calibrated_recall",
    "best_round precision": "best_precision",
    "best_round recall": "best_recall",
}
_CHOICE = (
    " (calibrated: the round chosen on half of the candidates, judged on the other half; "
    "best_round: the labelled oracle, to be "
    "read with its mean under shuffled membership"
)


def decisions_by_round(section: BoardSection) -> list[Table]:
    """Return accuracy, precision and recall of attacks that decide by a threshold of their own."""
    rows: list[tuple[Content, ...]] = []
    for row in section.rows:
        for attack in section.deciding:
            entry = row.entries[attack]
            if entry.decisions:
                means = (Value(mean=entry.decision_mean(field)) for field in _DECISIONS.values())
                rows.append((name_of(row), attack, *means))
    if not rows:
        return []
    caption = f"{_CHOICE}; precision n/a where no candidate is called a member)"
    columns = (DEFENSE, ATTACK, *map(numbers, _DECISIONS))
    return [table_of("Accuracy, precision and recall by round", caption, columns, rows)]


_ROUNDS = {
    "last_auc": "last AUC",
    "calibrated_auc": "calibrated AUC",
    "best_auc": "best_round AUC",
    "null_best_auc": "null of best",
    "last_tf01": "last TF01",
    "calibrated_tf01": "calibrated TF01",
    "best_tf01": "best_round TF01",
    "null_best_tf01": "null of best TF01",
}


def round_table(section: BoardSection) -> list[Table]:
    """Return single-round attacks by their round, means over seeds x targets; nothing where the
    section has none.
    """
    rows: list[tuple[Content, ...]] = []
    for row in section.rows:
        for attack, entry in row.entries.items():
            if entry.single_rounds:
                values = ([getattr(r, field) for r in entry.single_rounds] for field in _ROUNDS)
                rows.append((row.label, attack, *(Value(mean=mean_of(v)) for v in values)))
    if not rows:
        return []
    empty = Words(
        f"a target by itself needs {TF01_MIN_NONMEMBERS:,} non-members for the TF01 of a round"
    )
    columns = [numbers(name, digits=2 if "tf01" in field else 3) for field, name in _ROUNDS.items()]
    return [
        table_of(
            "Single-round attacks by their round",
            f"{_CHOICE})",
            (DEFENSE, ATTACK, *columns),
            rows,
            empty=empty,
        )
    ]


_MAXIMUM = (
    " (the papers' statistic, against outside non-members: every target's largest auR (AUC) and, "
    "for itself, largest advantage\n"
    "TPR - FPR over all attacks of this view and all rounds; means over seeds x targets. A maximum "
    "of many looks is above\n"
    "chance without any leak. Its null is the same maximum under shuffled memberships: the mean "
    "and, in brackets, what 95 %\n"
    "of the shuffles stay below. Excess: above the null's mean)"
)


def maximum_table(section: BoardSection) -> list[Table]:
    """Return the maximum over attacks and rounds of each defense; nothing where fewer than two
    attacks score every round.
    """
    if not has_maxima(section):
        return []
    columns = [DEFENSE]
    for name in ("auR", "Adv"):
        columns += [
            numbers(f"max {name}", direction="lower"),
            numbers(f"null of {name}"),
            numbers(f"excess {name}", direction="lower", signed=True),
        ]
    rows: list[tuple[Content, ...]] = []
    for row in section.rows:
        maximum = row_maximum(row)
        if maximum is None:
            rows.append((name_of(row), *[None] * 7))
            continue
        cells: list[Content] = []
        for largest in (maximum.auc, maximum.advantage):
            null = Value(mean=largest.null_mean, suffix=Words(f" ({largest.null_high:.3f})"))
            within = Words(" within null") if largest.within else ()
            cells += [value(largest.found), null, Value(mean=largest.excess, suffix=within)]
        rows.append((name_of(row), *cells, Words(spanned(maximum.looks))))
    return [
        table_of(
            "Maximum over attacks and rounds",
            _MAXIMUM,
            (*columns, numbers("looks")),
            rows,
            empty=Words("the records hold no maxima over rounds"),
            footnotes=(
                Words(
                    "within null: more than 5 % of the shuffles reach the maximum. Looks: attacks "
                    "x rounds of a target."
                ),
            ),
        )
    ]
