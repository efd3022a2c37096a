"""Single-round attacks by how their round is chosen: the last, a calibrated one, and the oracle beside its null value."""

from __future__ import annotations

from collections.abc import Sequence

from fedbench.core.contract.board import Column, Content, Table, Text, Value, Words
from fedbench.core.metrics.tpr import TF01_MIN_NONMEMBERS
from fedbench.leaderboard.statistics.intervals import mean_of
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.tables.common import ATTACK, DEFENSE

_COLUMNS: tuple[tuple[str, str, int], ...] = (
    ("last AUC", "last_auc", 3), ("calibrated AUC", "calibrated_auc", 3), ("best_round AUC", "best_auc", 3),
    ("null of best", "null_best_auc", 3), ("last TF01", "last_tf01", 2), ("calibrated TF01", "calibrated_tf01", 2),
    ("best_round TF01", "best_tf01", 2), ("null of best", "null_best_tf01", 2),
)  # fmt: skip


def round_table(section: Section) -> list[Table]:
    """Means over seeds x targets; nothing where the section has no single-round attack."""
    rows: list[tuple[Content, ...]] = [
        (row.label, attack, *(Value(mean=mean_of([getattr(r, field) for r in entry.single_rounds])) for _, field, _ in _COLUMNS))
        for row in section.rows for attack, entry in row.entries.items() if entry.single_rounds
    ]  # fmt: skip
    if not rows:
        return []
    return [Table(
        title="Single-round attacks by their round",
        caption=Words(
            " (calibrated: chosen on half of the candidates, judged on the other half; best_round: the labelled oracle, "
            "chosen on the answers, to be read beside its mean under shuffled membership)"
        ),
        columns=(DEFENSE, ATTACK, *(Column(name=Words(name), digits=digits) for name, _, digits in _COLUMNS)),
        rows=tuple(rows), footnotes=_few(rows),
    )]  # fmt: skip


def _few(rows: Sequence[tuple[Content, ...]]) -> tuple[Text, ...]:
    """Why TF01 is n/a: of a single round it is the record's own, a target at a time."""
    known = [c for row in rows for column, c in zip(_COLUMNS, row[2:], strict=True) if "tf01" in column[1]]
    if any(isinstance(c, Value) and c.mean is not None for c in known):
        return ()
    said = f"TF01 of a single round: n/a, since a target by itself needs {TF01_MIN_NONMEMBERS:,} non-members for it."
    return (Words(said),)
