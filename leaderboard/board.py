"""The reports `board` and `full`: a results folder as Markdown with its figures, and its first
tables for a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from threadpoolctl import threadpool_limits

from fedbench.core.contract.board import Block, Column, Content, Image, Value, opened
from fedbench.core.contract.components import Report, Summary
from fedbench.core.store.files import write_atomically
from fedbench.leaderboard.columns import COLUMNS
from fedbench.leaderboard.document import Source, document, one_page, source_of
from fedbench.leaderboard.markdown import render
from fedbench.leaderboard.statistics.rows import DefenseRow
from fedbench.leaderboard.statistics.sections import BoardSection
from fedbench.leaderboard.tables.common import amount, plain_text
from fedbench.leaderboard.tables.ranking import Trust, front_table


class MarkdownBoard(Report):
    """``leaderboard/board.md``: one page, with links to PNG files; each is there as SVG, too."""

    name = "board"
    _last: tuple[Path, Source] | None = None  # what was written last: its summary is printed next

    def write(self, results: Path, plots: bool = True) -> Path:
        """Write the file and its figures.

        Raises:
            UserError: for records that cannot be used; then nothing is written.
        """
        self._last = None
        # of thousands of small products: threads cost more time than they save
        with threadpool_limits(1, "blas"):
            blocks = self._blocks(self._source(results), plots)
        text = render(blocks)
        folder = results / "leaderboard"
        for image in (b for b in opened(blocks) if isinstance(b, Image)):
            for name, content in image.files.items():
                write_atomically(folder / name, content)
        path = folder / f"{self.name}.md"
        write_atomically(path, text.encode())
        return path

    def _blocks(self, source: Source, plots: bool) -> list[Block]:
        return one_page(source, plots)

    def summary(self, results: Path) -> Summary:
        """Return the first tables of the folder's last plan, marked where it lacks seeds."""
        source = self._source(results)
        tables = summary(source.sections, source.trust)
        if source.provisional is None:
            return tables
        headings = [f"{where} ({source.provisional})" for where in tables.headings]
        return replace(tables, headings=headings)

    def _source(self, results: Path) -> Source:
        if self._last is None or self._last[0] != results:
            self._last = results, source_of(results)
        return self._last[1]


class FullBoard(MarkdownBoard):
    """``leaderboard/full.md``: every table and figure."""

    name = "full"

    def _blocks(self, source: Source, plots: bool) -> list[Block]:
        return document(source, plots)


# -- for a terminal --------------------------------------------------------------------------------


def summary(sections: Sequence[BoardSection], trust: Trust = None) -> Summary:
    """Return a row a defense under each setting, coalition and view, in the board's order.

    Cells without a score are counted in a column that is there where some row has any.
    """
    headers = ["#", "defense", *(column.terminal for column in COLUMNS if column.terminal)]
    headers.insert(3, "by")  # the attack has a column of its own
    if trust:
        headers.append("trust")
    if not all(section.measures_accuracy for section in sections):
        headers[headers.index("delta-acc")] = "delta"  # of each section's utility
    rows: list[list[str]] = []
    headings: list[str] = []
    for section in sections:
        rows += _texts(section, trust)
        headings += [section.where] * len(section.rows)
    if any(texts[-1] for texts in rows):
        headers.append("no score")
    notes = [_reading(sections)] if rows else []
    rows = [texts[: len(headers)] for texts in rows]
    return Summary(headers, rows, headings=headings, notes=notes)


def _reading(sections: Sequence[BoardSection]) -> str:
    """Say how the numbers are meant: a single seed has no intervals, and a recording no runtime."""
    parts = ["delta: utility minus that of the undefended run, of accuracy in points"]
    if any(len(section.seeds) > 1 for section in sections):
        parts.insert(0, "with 95 % intervals")
    if any(section.plain is not None for section in sections):
        parts.append("runtime over that of the row with 1")
    return "; ".join([*parts, "all else on the board"])


def _texts(section: BoardSection, trust: Trust) -> list[list[str]]:
    """Return the cells of the first table, the last those without a score."""
    table = front_table(section, section.rows, trust)
    lines = []
    for row, cells in zip(section.rows, table.rows, strict=True):
        rank, name, worst, *rest = map(short_text, cells, table.columns)
        attack = plain_text(getattr(cells[2], "suffix", ""))
        number = worst.removesuffix(attack)
        lines.append([rank, name, number, attack.strip(), *rest, _lacking(row)])
    return lines


def _lacking(row: DefenseRow) -> str:
    outcomes = [(name, n) for name, n in sorted(row.outcomes.items()) if n and name != "ok"]
    return ", ".join(f"{n} {name}" for name, n in outcomes)


def short_text(cell: Content, column: Column) -> str:
    """Return ``.619±.033 fedmia-ii``, ``+1.2 [0.3, 2.1]``: a cell without blanks in a number."""
    if cell is None or (isinstance(cell, Value) and cell.mean is None):
        return "n/a"
    if not isinstance(cell, Value):
        return plain_text(cell)
    text = amount(cell, column).replace(" ± ", "±")
    if column.digits > 2:
        text = re.sub(r"(?<!\d)0\.", ".", text)
    return text + plain_text(cell.suffix)
