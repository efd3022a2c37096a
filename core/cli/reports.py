"""Write reports of a results folder; the report plugins run in a separate process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench.core.cli.say import say
from fedbench.core.cli.table import show_table
from fedbench.core.contract.errors import UserError
from fedbench.core.contract.hooks import PROJECT
from fedbench.core.process.ask import Ended, ask_each, long_plugin_limits, plugin_limits
from fedbench.core.process.channel import at_work, pass_on_interrupt
from fedbench.core.words import explain, one_line

if TYPE_CHECKING:
    from fedbench.core.contract.components import Report, Summary
    from fedbench.core.registry.component import RegisteredComponent

DEFAULT = "board"

# path of the report; headers, rows, headings and notes of its summary
Written = tuple[str, list[str], list[list[str]], list[str], list[str]]


def reports_named(names: Sequence[str] = (DEFAULT,)) -> dict[str, RegisteredComponent]:
    """The reports of these names; raises ``UserError`` for one that no package or several provide, or that cannot
    be made."""
    from fedbench.core.registry.components import Registry

    registry = Registry.discover()
    found = {name: registry.get("report", name) for name in dict.fromkeys(names)}
    for report in found.values():
        if report.distribution == PROJECT:
            report.load()  # built-in: imported once for all processes
    for answer in ask_each(list(found.values()), lambda report: _made(report) is None):
        answer.get()
    return found


def write_reports(
    folder: Path, reports: Mapping[str, RegisteredComponent], plots: bool, lasting: bool = True
) -> list[Path]:
    """Write every report of a results folder, print its summary, and say where it lies; not ``lasting``: in a folder that goes
    with its name, so that the caller says where the files end up."""
    written: list[Path] = []
    failed: list[str] = []
    for name, answer in zip(reports, ask_each(list(reports.values()), lambda r: _write(r, folder, plots)), strict=True):
        if isinstance(answer.error, Ended):
            failed += answer.error.messages
            continue
        done, why = answer.get()
        if done is None:
            failed.append(f"report '{name}': {why}")
            continue
        path, headers, rows, headings, notes = done
        if headers:
            show_table(headers, rows, headings=headings)
        for note in notes:
            say(note)
        if lasting:
            say(f"{name}: {path}")
        written.append(Path(path))
    if failed:
        raise UserError(*failed)
    return written


def _made(found: RegisteredComponent) -> Report:
    cls = found.load()
    with at_work(str(found), plugin_limits()):
        try:
            return cls()
        except BaseException as error:
            pass_on_interrupt(error)
            raise UserError(f"{found}: cannot be made: {explain(error)}") from error


def _write(found: RegisteredComponent, folder: Path, plots: bool) -> tuple[Written | None, str]:
    """What was written, or why not: a report that fails costs itself alone."""
    report = _made(found)
    try:
        with at_work(str(found), None if found.distribution == PROJECT else long_plugin_limits()):
            path, summary = report.write(folder, plots), report.summary(folder)
            if not isinstance(path, Path):
                raise TypeError(f"write returned {type(path).__name__}, expected the path of the file to open")
            return (str(path), *_plain(summary)), ""
    except (UserError, OSError):
        raise
    except BaseException as error:
        pass_on_interrupt(error)
        return None, explain(error)


def _plain(summary: Summary | None) -> tuple[list[str], list[list[str]], list[str], list[str]]:
    """A summary's texts, each on one line, every row as long as the header."""
    if summary is None:
        return [], [], [], []
    headers = [one_line(str(h)) for h in summary.headers]
    rows = [[one_line(str(cell)) for cell in row] for row in summary.rows]
    if any(len(row) != len(headers) for row in rows):
        raise ValueError(f"its summary has {len(headers)} columns and a row of another length")
    headings, notes = ([one_line(str(text)) for text in texts] for texts in (summary.headings, summary.notes))
    if headings and len(headings) != len(rows):
        raise ValueError(f"its summary has {len(rows)} rows and {len(headings)} headings, expected one a row")
    return headers, rows, headings, notes
