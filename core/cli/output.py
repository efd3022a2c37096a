"""Print text and tables; control characters of plugins, suites and records are shown as codes."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedbench.core.words import one_line, printable, printable_lines

if TYPE_CHECKING:
    from fedbench.core.store.results import Results

QUIET = "fedbench.quiet"
"""key in ``click.Context.meta``"""


def quiet() -> bool:
    """Return whether the command was called with ``--quiet`` and prints only failures."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and ctx.meta.get(QUIET, False)


def say(text: str, err: bool = False, failure: bool = False) -> None:
    """Print a text with its line breaks.

    Args:
        err: print to standard error, also with ``--quiet``.
        failure: print also with ``--quiet``.
    """
    if err or failure or not quiet():
        click.echo(printable_lines(text), err=err)


def counted(outcome: str) -> str:
    """Return the name of an outcome in a count of cells."""
    return "timed out" if outcome == "timeout" else outcome


def cause(outcome: str, reason: str) -> tuple[str, str]:
    """Return what failures of one cause share: outcome and reason, without the numbers in it."""
    return outcome, re.sub(r"\d+", "0", reason)


def say_json(content: Any) -> None:
    """Print one JSON document."""
    say(json.dumps(content, indent=1, ensure_ascii=False, default=str), failure=True)


def clipped(text: str, limit: int = 600) -> str:
    """Return ``text`` on one line, cut at ``limit`` on a terminal."""
    return one_line(text, limit if sys.stdout.isatty() else len(text) * 10 + 1)


def opened(root: Path) -> Results:
    """Open an existing results folder for reading. Raises ``UserError`` for another folder."""
    from fedbench.core.store.results import Results

    return Results.open(root.absolute())


def show_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    title: str = "",
    headings: Sequence[str] = (),
    failure: bool = False,
) -> None:
    """Print a table: ruled on a terminal, aligned lines in a pipe.

    Args:
        headings: a heading for each row; rows of one heading stand together under it.
        failure: print also with ``--quiet``.
    """
    if quiet() and not failure:
        return
    names = [printable(header) for header in headers]
    cells = [[printable(str(value)) for value in row] for row in rows]
    sections: dict[str, list[list[str]]] = {} if cells else {"": []}
    for heading, row in zip(headings or [""] * len(cells), cells, strict=True):
        sections.setdefault(printable(heading), []).append(row)
    show = _show_ruled if sys.stdout.isatty() else _show_aligned
    for i, (heading, section) in enumerate(sections.items()):
        if i:
            click.echo()
        show(names, section, heading or printable(title))


def _show_aligned(names: list[str], rows: list[list[str]], title: str) -> None:
    from tabulate import tabulate

    if title:
        click.echo(title)
    click.echo(tabulate(rows, names, "plain", disable_numparse=True))


def _show_ruled(names: list[str], rows: list[list[str]], title: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*names, title=title or None, title_justify="left")
    for row in rows:
        table.add_row(*map(Text, row))  # labels hold brackets, which rich would read as markup
    Console().print(table)
