"""Reports by name: somebody's code makes something to look at of a results folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from fedbench.core.cli.table import show_table

DEFAULT = "board"


def write_reports(folder: Path, names: Sequence[str] = (DEFAULT,), plots: bool = True) -> list[Path]:
    """Write every report of a results folder, print its summary, and say where it lies.

    Raises ``UserError`` for a name that nobody or more than one package provides, before anything is written.
    """
    from fedbench.core.registry.components import Registry

    registry = Registry.discover()
    reports = {name: registry.get("report", name).load()() for name in dict.fromkeys(names)}
    written = []
    for name, report in reports.items():
        written.append(report.write(folder, plots))
        if (summary := report.summary(folder)) is not None:
            show_table(summary.headers, summary.rows)
        click.echo(f"{name}: {written[-1]}")
    return written
