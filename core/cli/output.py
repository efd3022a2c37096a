"""Print to the terminal: text and tables, with control characters of plugins, suites and records shown as codes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedbench.core.words import printable, printable_lines

if TYPE_CHECKING:
    from fedbench.core.store.results import Results


def say(text: str, err: bool = False) -> None:
    """Print a text and a line break; its own line breaks stay."""
    click.echo(printable_lines(text), err=err)


def opened(root: Path) -> Results:
    """An existing results folder, for reading; notes on its state go to stderr. Raises ``UserError`` for another folder."""
    from fedbench.core.store.results import Results

    store = Results.open(root.absolute())
    for note in store.notes:
        say(note, err=True)
    return store


def show_table(
    headers: Sequence[str], rows: Iterable[Sequence[object]], title: str = "", headings: Sequence[str] = ()
) -> None:
    """Print a table: ruled on a terminal, aligned lines in a pipe. ``headings``: one for each row; rows in sequence with the
    same one stand under it."""
    cells = [[printable(str(value)) for value in row] for row in rows]
    names = [printable(header) for header in headers]
    groups = groupby(zip([*headings] or [""] * len(cells), cells, strict=True), key=lambda pair: pair[0])
    sections = [(printable(heading), [row for _, row in pairs]) for heading, pairs in groups] or [("", [])]
    if sys.stdout.isatty():
        _ruled(names, sections, title)
        return
    widths = [max(len(row[i]) for row in [names, *cells]) for i in range(len(names))]
    if title:
        say(title)
    for i, (heading, section) in enumerate(sections):
        if heading:
            say(f"\n{heading}" if i else heading)
        for row in [names, *section]:
            say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _ruled(names: Sequence[str], sections: list[tuple[str, list[list[str]]]], title: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    for heading, section in sections:
        table = Table(*names, title=heading or title or None, title_justify="left")
        for row in section:
            table.add_row(*(Text(cell) for cell in row))  # labels hold brackets, which rich would read as markup
        Console().print(table)
