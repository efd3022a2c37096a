"""Writes a results folder's board: Markdown and plots, each file whole or not at all."""

from __future__ import annotations

from pathlib import Path

from fedbench.core.store.files import write_atomically
from fedbench.core.store.reading import load_records
from fedbench.core.store.results import MARKER, Results
from fedbench.leaderboard.plots import table_plots
from fedbench.leaderboard.render import REGENERATE, render_board, summary_table


def write_board(
    results_dir: Path | str, title: str | None = None, regenerate: str = REGENERATE, plots: bool = True
) -> Path:
    """Render ``results_dir`` into ``results_dir/leaderboard/`` (board.md, *.png, *.svg); returns board.md.

    Raises UserError for records that cannot be used (see :func:`load_records`); then nothing is written.
    """
    root = Path(results_dir)
    records, superseded = Results(root).planned(load_records(root))
    facts = Results(root).marker() if (root / MARKER).is_file() else {}
    title = title or facts.get("title") or f"Leaderboard: {', '.join(sorted({r.record.suite for r in records}))}"
    drawn = table_plots(records) if plots else {}
    links = {table: [name for name in files if name.endswith(".png")] for table, files in drawn.items()}
    board = render_board(records, str(title), regenerate, links, superseded, facts.get("reference") or ())
    for files in drawn.values():
        for name, content in files.items():
            write_atomically(root / "leaderboard" / name, content)
    path = root / "leaderboard" / "board.md"
    write_atomically(path, board.encode())
    return path


def summary_of(results_dir: Path | str) -> tuple[list[str], list[list[str]]]:
    """(headers, rows) of the folder's last plan for a terminal, in the board's order."""
    root = Path(results_dir)
    return summary_table(Results(root).planned(load_records(root))[0])
