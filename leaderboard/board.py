"""The report `board`: a results folder as Markdown with its figures, and its first tables for a
terminal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from threadpoolctl import threadpool_limits

from fedbench.core.contract.board import Block, Column, Content, Image, Value, opened
from fedbench.core.contract.components import Report, Summary
from fedbench.core.store.files import write_atomically
from fedbench.leaderboard.document import Source, document, source_of
from fedbench.leaderboard.markdown import render
from fedbench.leaderboard.page import one_page
from fedbench.leaderboard.statistics.rows import Row, privacy_claims
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.tables.common import amount, plain_text
from fedbench.leaderboard.tables.ranking import Trust, claimed, front_table

_READING = (
    "with 95 % intervals; delta-accuracy in points, against the undefended run; runtime over that "
    "of the row with 1; "
    "all else on the board"
)
_HEADERS = ("#", "defense", "worst AUC", "by", "mean AUC", "TF01 %", "delta-acc", "runtime")


class MarkdownBoard(Report):
    """``leaderboard/board.md``: one page, with links to PNG files; each is there as SVG, too."""

    name = "board"
    _last: tuple[Path, Source] | None = None  # what was written last: its summary is printed next

    def write(self, results: Path, plots: bool = True) -> Path:
        """Raises ``UserError`` for records that cannot be used; then nothing is written."""
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
        """The content of the file."""
        return one_page(source, plots)

    def summary(self, results: Path) -> Summary:
        """The folder's last plan, in the board's order."""
        source = self._source(results)
        return summary(source.sections, source.trust)

    def _source(self, results: Path) -> Source:
        if self._last is None or self._last[0] != results:
            self._last = results, source_of(results)
        return self._last[1]


class FullBoard(MarkdownBoard):
    """``leaderboard/full.md``: every table and figure."""

    name = "full"

    def _blocks(self, source: Source, plots: bool) -> list[Block]:
        """The content of the file."""
        return document(source, plots)


# -- for a terminal --------------------------------------------------------------------------------


def summary(sections: Sequence[Section], trust: Trust = None) -> Summary:
    """One row a defense under each setting, coalition and view, in the board's order.

    Cells without a score are counted in a column that is there where some row has any; claims of
    differential privacy are notes.
    """
    every = [(section, row) for section in sections for row in section.rows]
    lacking = any(map(_lacking, (row for _, row in every)))
    rows = []
    for section in sections:
        table = front_table(section, section.rows, trust)
        for row, cells in zip(section.rows, table.rows, strict=True):
            shown = list(map(short_text, cells, table.columns))
            shown[2:3] = (*shown[2].partition(" ")[::2],)  # the attack has a column of its own
            rows.append([*shown, *([_lacking(row)] if lacking else [])])
    claims = [
        f"{r.label} claims {plain_text(claimed(r))} ({s.where})"
        for s, r in every
        if privacy_claims(r)
    ]
    return Summary(
        [*_HEADERS, *(["trust"] if trust else []), *(["no score"] if lacking else [])],
        rows,
        headings=[s.where for s, _ in every],
        notes=[_READING] * bool(every) + list(dict.fromkeys(claims)),
    )


def _lacking(row: Row) -> str:
    return ", ".join(
        f"{n} {what}" for what, n in sorted(row.outcomes.items()) if n and what != "ok"
    )


def short_text(cell: Content, column: Column) -> str:
    """``.619±.033 fedmia-ii``, ``+1.2 [0.3, 2.1]``: one place of a table without blanks in a
    number.
    """
    if cell is None or (isinstance(cell, Value) and cell.mean is None):
        return "n/a"
    if not isinstance(cell, Value):
        return plain_text(cell)
    shown = amount(cell, column).replace(" ± ", "±")
    return (re.sub(r"(?<!\d)0\.", ".", shown) if column.digits > 2 else shown) + plain_text(
        cell.suffix
    )
