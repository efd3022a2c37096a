"""Reports by name: somebody's code makes something to look at of a results folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench.core.cli.say import say
from fedbench.core.cli.table import show_table
from fedbench.core.contract.errors import UserError
from fedbench.core.words.explain import explain

if TYPE_CHECKING:
    from fedbench.core.contract.report import Report

DEFAULT = "board"


def reports_named(names: Sequence[str] = (DEFAULT,)) -> dict[str, Report]:
    """The reports of these names; raises ``UserError`` for one that nobody or more than one package provides."""
    from fedbench.core.registry.components import Registry

    registry = Registry.discover()
    return {name: registry.get("report", name).load()() for name in dict.fromkeys(names)}


def write_reports(folder: Path, reports: Mapping[str, Report], plots: bool) -> list[Path]:
    """Write every report of a results folder, print its summary, and say where it lies."""
    written, failed = [], []
    for name, report in reports.items():
        try:
            path, summary = report.write(folder, plots), report.summary(folder)
            if not isinstance(path, Path):
                raise TypeError(f"write returned {type(path).__name__}, expected the path of the file to open")
        except (UserError, OSError):
            raise
        except (Exception, SystemExit) as error:  # somebody's code
            failed.append(f"report '{name}': {explain(error)}")
            continue
        if summary is not None:
            show_table(summary.headers, summary.rows)
        say(f"{name}: {path}")
        written.append(path)
    if failed:
        raise UserError(*failed)
    return written
