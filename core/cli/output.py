"""Print to the terminal: text and tables, with control characters of plugins, suites and records
shown as codes.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedbench.core.words import one_line, printable, printable_lines

if TYPE_CHECKING:
    from fedbench.core.store.results import Results


QUIET = "fedbench.quiet"
"""key in ``click.Context.meta``"""


def quiet() -> bool:
    """Whether the command was called with ``--quiet``: it prints what failed, and nothing else."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and ctx.meta.get(QUIET, False)


def say(text: str, err: bool = False, failure: bool = False) -> None:
    """Print a text and a line break; its own line breaks stay. ``err``, ``failure``: also with
    ``--quiet``.
    """
    if err or failure or not quiet():
        click.echo(printable_lines(text), err=err)


def counted(outcome: str) -> str:
    """What cells with an outcome are called in a count."""
    return "timed out" if outcome == "timeout" else outcome


def cause(outcome: str, reason: str) -> tuple[str, str]:
    """What failures of one cause have in common: their outcome and reason, whatever the numbers in
    it.
    """
    return outcome, re.sub(r"\d+", "0", reason)


def say_json(content: Any) -> None:
    """Print one JSON document."""
    say(json.dumps(content, indent=1, ensure_ascii=False, default=str), failure=True)


def clipped(text: str, limit: int = 600) -> str:
    """``text`` on one line, cut at ``limit`` on a terminal."""
    return one_line(text, limit if sys.stdout.isatty() else len(text) * 10 + 1)


def opened(root: Path) -> Results:
    """An existing results folder, for reading. Raises ``UserError`` for another folder."""
    from fedbench.core.store.results import Results

    return Results.open(root.absolute())


def show_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    title: str = "",
    headings: Sequence[str] = (),
    failure: bool = False,
) -> None:
    """Print a table: ruled on a terminal, aligned lines in a pipe. ``headings``: one for each row;
    rows in sequence with the same one stand under it. ``failure``: as of :func:`say`.
    """
    if quiet() and not failure:
        return
    cells = [[printable(str(value)) for value in row] for row in rows]
    names = [printable(header) for header in headers]
    groups = groupby(
        zip([*headings] or [""] * len(cells), cells, strict=True), key=lambda pair: pair[0]
    )
    sections = [(printable(heading), [row for _, row in pairs]) for heading, pairs in groups] or [
        ("", [])
    ]
    if sys.stdout.isatty():
        _ruled(names, sections, title)
        return
    widths = [max(len(row[i]) for row in [names, *cells]) for i in range(len(names))]
    if title:
        say(title, failure=True)
    for i, (heading, section) in enumerate(sections):
        if heading:
            say(f"\n{heading}" if i else heading, failure=True)
        for row in [names, *section]:
            say(
                "  ".join(
                    cell.ljust(width) for cell, width in zip(row, widths, strict=True)
                ).rstrip(),
                failure=True,
            )


def _ruled(names: Sequence[str], sections: list[tuple[str, list[list[str]]]], title: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    for heading, section in sections:
        table = Table(*names, title=heading or title or None, title_justify="left")
        for row in section:
            # labels hold brackets, which rich would read as markup
            table.add_row(*(Text(cell) for cell in row))
        Console().print(table)
