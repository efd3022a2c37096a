"""Single-round attacks by how their round is chosen: the last, a calibrated one, and the oracle beside its null value."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedbench.core.store.record import RoundScores
from fedbench.leaderboard import text
from fedbench.leaderboard.collect import Cell, Table

_COLUMNS: tuple[tuple[str, str, Callable[[RoundScores], float | None]], ...] = (
    ("last AUC", "auc", lambda r: r.last_auc),
    ("calibrated AUC", "auc", lambda r: r.calibrated_auc),
    ("best_round AUC", "auc", lambda r: r.best_auc),
    ("null of best", "auc", lambda r: r.null_best_auc),
    ("last TF01", "tf01", lambda r: r.last_tf01),
    ("calibrated TF01", "tf01", lambda r: r.calibrated_tf01),
    ("best_round TF01", "tf01", lambda r: r.best_tf01),
    ("null of best", "tf01", lambda r: r.null_best_tf01),
)


def round_table(table: Table) -> list[str]:
    """Markdown: means over seeds x targets; nothing where the table has no single-round attack."""
    rows = []
    for row in table.rows:
        for attack, cell in row.cells.items():
            if scores := _scores(cell):
                rows.append([text.escape(row.label), text.escape(attack), *(_mean(scores, c) for c in _COLUMNS)])
    if not rows:
        return []
    note = (
        "**Single-round attacks by their round** (calibrated: chosen on half of the candidates, judged on the other half; "
        "best_round: the labelled oracle, chosen on the answers, to be read beside its mean under shuffled membership)"
    )
    return [note, text.table(["defense", "attack", *(name for name, _, _ in _COLUMNS)], rows, left=2)]


def _scores(cell: Cell) -> list[RoundScores]:
    return [
        t.rounds
        for seed, targets in cell.targets.items()
        if (loaded := cell.ok(seed)) is not None
        for t in loaded.record.targets
        if t.target in targets and t.rounds is not None
    ]


def _mean(scores: list[RoundScores], column: tuple[str, str, Callable[[RoundScores], float | None]]) -> str:
    _, metric, of = column
    values = [v for s in scores if (v := of(s)) is not None]
    return "n/a" if not values else text.number(float(np.mean(values)), 3 if metric == "auc" else 2)
