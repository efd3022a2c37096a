"""Tables: ruled on a terminal, plain aligned lines in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from fedbench.core.cli.say import say
from fedbench.core.words.explain import printable


def show_table(headers: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Print one table. In a pipe every row is one line, columns are at least two spaces apart, nothing is cut."""
    cells = [[printable(str(value)) for value in row] for row in rows]
    names = [printable(header) for header in headers]
    if sys.stdout.isatty():
        _rich(names, cells, title)
    else:
        _plain(names, cells, title)


def _plain(headers: Sequence[str], rows: list[list[str]], title: str) -> None:
    widths = [max(len(row[i]) for row in [list(headers), *rows]) for i in range(len(headers))]
    if title:
        say(title)
    for row in [list(headers), *rows]:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _rich(headers: Sequence[str], rows: list[list[str]], title: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*headers, title=title or None, title_justify="left")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # labels hold brackets, which rich would read as markup
    Console().print(table)
