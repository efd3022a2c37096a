"""The report `board`: a results folder as Markdown, with its figures beside it."""

from __future__ import annotations

from pathlib import Path

from fedbench.core.contract.board import Image
from fedbench.core.contract.report import Report, Summary
from fedbench.core.store.files import write_atomically
from fedbench.leaderboard.document import document, source_of
from fedbench.leaderboard.markdown.render import render
from fedbench.leaderboard.statistics.build import build_sections
from fedbench.leaderboard.tables.summary import summary


class MarkdownBoard(Report):
    """``leaderboard/board.md`` with links to PNG files; each is there as SVG, too."""

    def write(self, results: Path, plots: bool = True) -> Path:
        """Raises ``UserError`` for records that cannot be used; then nothing is written."""
        blocks = document(source_of(results), plots)
        text = render(blocks)
        folder = results / "leaderboard"
        for image in (b for b in blocks if isinstance(b, Image)):
            for name, content in image.files.items():
                write_atomically(folder / name, content)
        write_atomically(folder / "board.md", text.encode())
        return folder / "board.md"

    def summary(self, results: Path) -> Summary:
        """The folder's last plan, in the board's order."""
        return summary(build_sections(source_of(results).records))
