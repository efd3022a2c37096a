"""Most vulnerable candidates of rows: the lines of `fedbench show --vulnerable`."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from fedbench.leaderboard.document import source_of
from fedbench.leaderboard.statistics.audits import most_vulnerable
from fedbench.leaderboard.statistics.rows import DefenseRow
from fedbench.leaderboard.statistics.sections import BoardSection
from fedbench.leaderboard.tables.auditors import too_few
from fedbench.leaderboard.tables.common import no_attack


def vulnerable(results: Path, stems: Collection[str], most: int) -> list[dict[str, Any]]:
    """Return the most vulnerable candidates of each row that has one of the records ``stems``, or
    why there are none, as JSON values: what `fedbench show --vulnerable` prints.
    """
    lines: list[dict[str, Any]] = []
    for section in source_of(results).sections:
        for row in section.rows:
            if not any(loaded.stem in stems for loaded in row.records):
                continue
            place = {"section": section.where, "defense": row.label}
            for fields in _vulnerable(section, row, most):
                lines.append({**place, **fields})
        section.comparison.scores.forget()
    return lines


def _vulnerable(section: BoardSection, row: DefenseRow, most: int) -> list[dict[str, Any]]:
    if not section.calibrates:
        return [{"reason": too_few(section)}]
    worst = section.comparison.worst_cases.of(row.label).worst
    if worst is None:
        reason = f"n/a: {no_attack(section).lower()} beats chance on the undefended federation"
        return [{"reason": reason}]
    scores = section.comparison.calibrated_scores
    candidates = most_vulnerable(scores, row.label, worst.attack, worst.sign)[:most]
    return [{"attack": worst.attack, **vars(candidate)} for candidate in candidates]
