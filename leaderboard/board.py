"""Writes a results folder's board: Markdown and plots, each file whole or not at all."""

from __future__ import annotations

from pathlib import Path

from fedbench.core.store.files import write_atomically
from fedbench.core.store.results import MARKER, Results
from fedbench.leaderboard.load import LoadedRecord, load_records
from fedbench.leaderboard.plots import table_plots
from fedbench.leaderboard.render import REGENERATE, render_board, summary_table


def write_board(
    results_dir: Path | str, title: str | None = None, regenerate: str = REGENERATE, plots: bool = True
) -> Path:
    """Render ``results_dir`` into ``results_dir/leaderboard/`` (board.md, *.png, *.svg); returns board.md.

    Raises UserError for records that cannot be used (see :func:`load_records`); then nothing is written.
    """
    root = Path(results_dir)
    records, superseded = planned(root, load_records(root))
    suites = sorted({r.record.suite for r in records})
    drawn = table_plots(records) if plots else {}
    links = {table: [name for name in files if name.endswith(".png")] for table, files in drawn.items()}
    board = render_board(records, title or f"Leaderboard: {', '.join(suites)}", regenerate, links, superseded)
    for files in drawn.values():
        for name, content in files.items():
            write_atomically(root / "leaderboard" / name, content)
    path = root / "leaderboard" / "board.md"
    write_atomically(path, board.encode())
    return path


def planned(root: Path, records: list[LoadedRecord]) -> tuple[list[LoadedRecord], int]:
    """(records of the folder's last plan, how many others there are); all of them where no plan is known."""
    if not (root / MARKER).is_file():
        return records, 0
    keys = set(Results.open(root).marker().get("cells") or ())
    kept = [r for r in records if r.record.key in keys]
    return (kept, len(records) - len(kept)) if kept else (records, 0)


def summary_of(results_dir: Path | str) -> tuple[list[str], list[list[str]]]:
    """(headers, rows) of the folder's last plan for a terminal, in the board's order."""
    root = Path(results_dir)
    return summary_table(planned(root, load_records(root))[0])
