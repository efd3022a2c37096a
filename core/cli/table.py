"""Tables: ruled on a terminal, plain aligned lines in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import groupby

from fedbench.core.cli.say import say
from fedbench.core.words import printable


def show_table(
    headers: Sequence[str], rows: Iterable[Sequence[object]], title: str = "", headings: Sequence[str] = ()
) -> None:
    """Print a table. ``headings``: one for each row; rows in sequence with the same one stand under it."""
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
