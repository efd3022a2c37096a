"""A report makes something to look at of a results folder, from its records alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fedbench.core.contract.params import Configured


@dataclass(frozen=True)
class Summary:
    """A table for a terminal: plain text, not escaped for any markup. ``headers``: one a column; ``rows``: one text a column.

    With ``headings``, one a row, the rows under one heading stand together below it, in 100 columns or as many as the terminal
    has: texts that are too long for it lose their middle, numbers nothing. ``notes``: lines below the table.
    """

    headers: list[str]
    rows: list[list[str]]
    headings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Report(Configured):
    """Base of a report plugin; ``fedbench leaderboard RESULTS --report NAME`` calls it."""

    def write(self, results: Path, plots: bool = True) -> Path:
        """Write the report into ``results``/leaderboard, each file whole or not at all; the file to open.

        Raises ``UserError`` for records that cannot be used; then nothing is written.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement write(results, plots)")

    def summary(self, results: Path) -> Summary | None:
        """The report in a screenful, printed after it is written; None: it has none."""
        return None
