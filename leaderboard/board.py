"""The report `board`: a results folder as Markdown, with its figures in the same folder."""

from __future__ import annotations

from pathlib import Path

from threadpoolctl import threadpool_limits

from fedbench.core.contract.board import Image, opened
from fedbench.core.contract.components import Report, Summary
from fedbench.core.store.files import write_atomically
from fedbench.leaderboard.citation import CITATION, citation
from fedbench.leaderboard.document import Source, document, source_of
from fedbench.leaderboard.markdown import render
from fedbench.leaderboard.tables.summary import summary


class MarkdownBoard(Report):
    """``leaderboard/board.md`` with links to PNG files; each is there as SVG, too. ``board-id.json``: what its id is
    made of."""

    _last: tuple[Path, Source] | None = None  # what was written last: its summary is asked for next

    def write(self, results: Path, plots: bool = True) -> Path:
        """Raises ``UserError`` for records that cannot be used; then nothing is written."""
        self._last = None
        with threadpool_limits(1, "blas"):  # of thousands of small products: threads cost more time than they save
            blocks = document(self._source(results), plots, folds=True)
        text = render(blocks)
        folder = results / "leaderboard"
        for image in (b for b in opened(blocks) if isinstance(b, Image)):
            for name, content in image.files.items():
                if not ((folder / name).is_file() and (folder / name).read_bytes() == content):
                    write_atomically(folder / name, content)
        write_atomically(folder / CITATION, citation(self._source(results).newest[0]))
        write_atomically(folder / "board.md", text.encode())
        return folder / "board.md"

    def summary(self, results: Path) -> Summary:
        """The folder's last plan, in the board's order."""
        return summary(self._source(results).sections)

    def _source(self, results: Path) -> Source:
        if self._last is None or self._last[0] != results:
            self._last = results, source_of(results)
        return self._last[1]
