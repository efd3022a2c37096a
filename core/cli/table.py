"""Tables: ruled on a terminal, plain aligned lines in a pipe; or, on both, in as many columns as there are."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from fedbench.core.cli.say import say
from fedbench.core.words.explain import printable
from fedbench.core.words.narrow import columns, cut, fitted, padded, wrapped

_IN_A_PIPE = 100  # columns: a log is read on any screen
_GAP = 2
_LEAST = 8  # columns that are left to a text
_NUMBER = re.compile(r"[-+\u2212]?(\d[\d,]*)?\.?\d")
_NONE = ("", "-", "\u2013", "n/a", "floor")


def show_table(headers: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Print one table. In a pipe every row is one line, columns are at least two spaces apart, nothing is cut."""
    cells = [[printable(str(value)) for value in row] for row in rows]
    names = [printable(header) for header in headers]
    if sys.stdout.isatty():
        _rich(names, cells, title)
    else:
        _plain(names, cells, title)


def room() -> int:
    """Columns of the terminal; 100 where there is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _IN_A_PIPE


def show_fitted(
    headers: Sequence[str], rows: Iterable[Sequence[object]], headings: Sequence[str] = (), least: Mapping[str, int] | None = None
) -> None:
    """Print a table whose texts lose their middle where it would be wider than :func:`room`; numbers stay whole. ``headings``:
    one a row; ``least``: columns that are left to the texts under a header, where that is not 8."""
    cells = [[printable(str(value)) for value in row] for row in rows]
    names = [printable(header) for header in headers]
    wanted = [max(columns(row[i]) for row in [names, *cells]) for i in range(len(names))]
    texts = [not all(_is_number(row[i]) for row in cells) for i in range(len(names))]
    few = [max((least or {}).get(name, _LEAST), columns(name)) if text else want
           for name, text, want in zip(names, texts, wanted, strict=True)]  # fmt: skip
    widths = fitted(wanted, room() - _GAP * (len(names) - 1), few)
    for i, (heading, under) in enumerate(groupby(range(len(cells)), lambda n: headings[n] if headings else "")):
        if heading:
            say(("\n" if i else "") + cut(printable(heading), room()))
        for row in [names, *(cells[n] for n in under)]:
            say((" " * _GAP).join(padded(cut(c, w), w) for c, w in zip(row, widths, strict=True)).rstrip())
    if not cells:
        say((" " * _GAP).join(names))


def say_wrapped(text: str) -> None:
    """Print a text of one line in lines of at most :func:`room` columns."""
    for line in wrapped(printable(text), room()):
        say(line)


def _is_number(cell: str) -> bool:
    return cell in _NONE or _NUMBER.match(cell) is not None


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
