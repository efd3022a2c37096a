"""Ceilings of a gate: the most that a number of a ranking may be, compared with the upper end of
its interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedbench.core import UserError
from fedbench.core.contract.board import Table, Words
from fedbench.core.words import DOCS
from fedbench.leaderboard.columns import COLUMNS, RankingColumn
from fedbench.leaderboard.document import source_of
from fedbench.leaderboard.statistics.audits import epsilon_bound
from fedbench.leaderboard.statistics.rows import DefenseRow
from fedbench.leaderboard.statistics.sections import BoardSection
from fedbench.leaderboard.tables.common import amount, numbers, table_of, words

EPSILON = "epsilon_lower"
DOUBTFUL = "this recording is doubtful"
"""how the remark begins on a recording with uploads that do not give its next models"""
BY_NAME = {column.ceiling: column for column in COLUMNS if column.ceiling}
NAMES = (*BY_NAME, EPSILON)
_LEAKS: Mapping[str, Literal["auc", "tf01"]] = {"worst": "auc", "mean": "auc", "tf01": "tf01"}
"""columns that have no number where no attack beats chance"""
_COLUMNS = (
    *map(words, ("verdict", "setting", "coalition", "view", "defense", "number")),
    *map(numbers, ("most", "measured")),
    words("reason"),
)


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """A row of a section under one ceiling."""

    setting: str
    coalition: str
    view: str
    defense: str
    name: str
    most: float
    measured: str
    """the number with its interval; empty without a number"""
    high: float | None
    """upper end; None without one"""
    reason: str = ""
    """why there is no upper end, or what the number leaves out"""

    @property
    def unit(self) -> str:
        """Unit of the numbers; empty of an AUC and of epsilon."""
        return BY_NAME[self.name].unit if self.name in BY_NAME else ""

    @property
    def passed(self) -> bool:
        """Whether an upper end is known and not above the ceiling."""
        return self.high is not None and self.high <= self.most

    @property
    def verdict(self) -> str:
        """``below``, ``above`` or ``not known``."""
        if self.high is None:
            return "not known"
        return "below" if self.passed else "above"


def ceilings_of(results: Path, most: Mapping[str, float]) -> list[Ceiling]:
    """Return each defense of the folder's last plan under each ceiling: name -> largest value.

    Floors are left out, and the undefended row where a defense stands beside it.

    Raises:
        UserError: for records that cannot be used, and where no row is left.
    """
    ceilings: list[Ceiling] = []
    for section in source_of(results).sections:
        for row in _judged_rows(section):
            ceilings += _of_row(section, row, most)
        section.comparison.scores.forget()
    if not ceilings:
        raise UserError(
            f"{results}: no row to hold against a ceiling; `fedbench run SUITE` computes the "
            "suite's seeds"
        )
    return ceilings


def ceiling_table(ceilings: Sequence[Ceiling]) -> Table:
    """Return a line a ceiling, those that fail first."""
    lines = []
    for c in sorted(ceilings, key=lambda ceiling: ceiling.passed):
        place = (Words(c.verdict), c.setting, c.coalition, c.view, c.defense)
        name = Words(f"{c.name} ({c.unit})" if c.unit else c.name)
        measured = (name, Words(f"{c.most:g}"), Words(c.measured or "n/a"))
        lines.append((*place, *measured, c.reason))
    return table_of("Ceilings", "", _COLUMNS, lines)


def _judged_rows(section: BoardSection) -> list[DefenseRow]:
    rows = [row for row in section.rows if not row.floor]
    return [row for row in rows if not row.undefended] or rows


def _of_row(section: BoardSection, row: DefenseRow, most: Mapping[str, float]) -> Iterator[Ceiling]:
    for name, limit in most.items():
        if name == EPSILON:
            measured, high, reason = _epsilon(section, row)
        else:
            measured, high, reason = _number(section, row, BY_NAME[name])
        if lacking := _lacking(section, row):
            high, reason = None, lacking
        yield Ceiling(
            setting=section.setting,
            coalition=section.coalition,
            view=section.view,
            defense=row.label,
            name=name,
            most=limit,
            measured=measured,
            high=high,
            reason=reason,
        )


def _lacking(section: BoardSection, row: DefenseRow) -> str:
    """Say why no number of the row counts for a gate; empty where all do."""
    if row.refuted:
        return "a record of it was run again and not reproduced"
    if not row.complete:
        return "it lacks scores of an attack"
    if attacks := section.comparison.worst_cases.inapplicable(row.label):
        return f"its numbers do not count {', '.join(attacks)}, which other rows' do"
    doubts = [remark for remark in row.remarks if remark.startswith(DOUBTFUL)]
    if doubts:
        return doubts[0]
    if section.left_out:
        return f"no number counts {', '.join(section.left_out)}, which lacks scores"
    return ""


def _number(
    section: BoardSection, row: DefenseRow, column: RankingColumn
) -> tuple[str, float | None, str]:
    """Return (number as printed, upper end, reason)."""
    interval = column.number(section.summaries[row.label])
    reason = ""
    if interval is None and column.key in _LEAKS and not section.comparison.worst_cases.eligible:
        highest = section.highest(row.label, _LEAKS[column.key])
        if highest is not None:
            attack, interval = highest
            reason = f"no attack beats chance; the highest of all is {attack}"
    if interval is None and column.key == "tf01":
        return "", None, f"too few seeds or outside non-members ({DOCS}/method.md#tf01)"
    if interval is None:
        return "", None, f"the records do not give this number ({DOCS}/method.md)"
    text = amount(interval, column.heading)
    if interval.between:
        return text, interval.high * column.scale, reason
    if not section.is_recorded or math.isnan(interval.high):
        return text, None, "no interval with one seed"
    text = f"{text}, at most {interval.high * column.scale:.{column.digits}f}"
    return text, interval.high * column.scale, "of this one training, over candidates"


def _epsilon(section: BoardSection, row: DefenseRow) -> tuple[str, float | None, str]:
    """Return (bound as printed, the bound, reason): it is the end of a one-sided interval."""
    if not section.shares_pool:
        return "", None, f"the seeds share no pool of data ({DOCS}/auditing.md)"
    bound = epsilon_bound(section.comparison.calibrated_scores, row.label)
    if bound is None:
        return "", None, "an attack lacks scores of some coins"
    text = f"\u03b5 at least {bound.epsilon:.2f}"
    return text, bound.epsilon, f"right guesses alone could show {bound.limit:.2f}"
