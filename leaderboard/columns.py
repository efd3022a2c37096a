"""Columns of numbers of a ranking, declared once: board, terminal, page, CSV, Python and
``board.json`` read them from here.

A new column is an entry of ``COLUMNS`` and, where nothing has its number yet, a field of
``RowSummary``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from fedbench.core.contract.board import Column, Words
from fedbench.core.contract.section import RowSummary
from fedbench.core.metrics import Interval
from fedbench.core.store.record import Utility


@dataclass(frozen=True, kw_only=True)
class RankingColumn:
    """A number of a row."""

    key: str
    """its name in ``board.json``, CSV and Python"""
    title: str
    number: Callable[[RowSummary], Interval | None]
    hover: str
    """what it means, on the page; brackets there are 95 % intervals"""
    direction: Literal["lower", "higher"]
    unit: str = ""
    digits: int = 3
    scale: float = 1.0
    """factor of what is printed"""
    signed: bool = False
    terminal: str = ""
    """title in a terminal; empty: neither that nor the first table shows it"""
    ceiling: str = ""
    """name that ``fedbench compare --max`` takes; empty: more of it is better"""
    attack: Callable[[RowSummary], str] = lambda row: ""
    """attack that the number is of, written behind it"""

    @property
    def heading(self) -> Column:
        """Return the column of a table."""
        return Column(name=Words(self.title), **self._form)

    @property
    def described(self) -> dict[str, Any]:
        """Return the entry in ``board.json``."""
        return {"key": self.key, "title": self.title, "hover": self.hover, **self._form}

    @property
    def _form(self) -> dict[str, Any]:
        return {
            "unit": self.unit,
            "direction": self.direction,
            "digits": self.digits,
            "scale": self.scale,
            "signed": self.signed,
        }


COLUMNS = (
    RankingColumn(
        key="worst",
        title="worst case AUC",
        terminal="worst AUC",
        ceiling="worst_auc",
        number=lambda row: row.worst,
        attack=lambda row: row.attack,
        hover="AUC of an adversary who picks attack and sign on the other seeds. 0.5 is guessing, "
        "lower is better.",
        direction="lower",
    ),
    RankingColumn(
        key="mean",
        title="mean AUC",
        terminal="mean AUC",
        ceiling="mean_auc",
        number=lambda row: row.mean,
        hover="AUC over all attacks that beat chance on the undefended run. Lower is better.",
        direction="lower",
    ),
    RankingColumn(
        key="tf01",
        title="worst TF01",
        terminal="TF01 %",
        ceiling="tf01",
        number=lambda row: row.tf01,
        attack=lambda row: row.tf01_attack,
        hover="Share of members found while 0.1 % of the non-members are called members. Lower is "
        "better.",
        direction="lower",
        unit="%",
        digits=2,
    ),
    RankingColumn(
        key="delta",
        title="delta-accuracy",
        terminal="delta-acc",
        number=lambda row: row.delta_accuracy,
        hover="Test accuracy minus that of the undefended run of the same seed.",
        direction="higher",
        unit="pp",
        digits=2,
        scale=100,
        signed=True,
    ),
    RankingColumn(
        key="accuracy",
        title="accuracy",
        number=lambda row: row.accuracy,
        hover="Test accuracy, the mean over the last three audited rounds.",
        direction="higher",
        unit="%",
        digits=1,
        scale=100,
    ),
    RankingColumn(
        key="contribution",
        title="members' share",
        number=lambda row: row.contribution,
        hover="Test accuracy minus that with members that upload nothing.",
        direction="higher",
        unit="pp",
        digits=2,
        scale=100,
        signed=True,
    ),
    RankingColumn(
        key="runtime",
        title="runtime",
        terminal="runtime",
        ceiling="runtime",
        number=lambda row: row.runtime,
        hover="Training CPU time over that of the row with 1.00 x.",
        direction="lower",
        unit="x",
        digits=2,
    ),
)
BY_KEY = {column.key: column for column in COLUMNS}
_OF_UTILITY = ("delta", "accuracy", "contribution")


def columns_for(utility: Utility | None) -> list[RankingColumn]:
    """Return the columns with name, unit and direction of what records measure for accuracy."""
    return [column_for(column.key, utility) for column in COLUMNS]


def column_for(key: str, utility: Utility | None) -> RankingColumn:
    """Return the column of that key, of a utility with its name, unit and direction."""
    column = BY_KEY[key]
    if utility is None or utility.name == "accuracy" or key not in _OF_UTILITY:
        return column
    return replace(
        column,
        title=with_utility(column.title, utility),
        hover=with_utility(column.hover, utility),
        unit=utility.unit,
        direction=utility.direction,
        digits=4,
        scale=1.0,
    )


def delta_for(utility: Utility | None) -> Column:
    """Return the column of delta-accuracy as short tables and sentences print it."""
    heading = column_for("delta", utility).heading
    if heading.unit == "pp":
        heading = replace(heading, digits=1)
    return heading


def with_utility(text: str, utility: Utility | None) -> str:
    """Return the text with the name of the utility for accuracy."""
    if utility is None:
        return text
    return text.replace("accuracy", utility.name)
