"""`fedbench leaderboard`: write reports from records; report plugins run in a separate process."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from fedbench.core.cli import complete
from fedbench.core.cli.options import debug_and_quiet, examples
from fedbench.core.cli.output import opened, say, show_table
from fedbench.core.contract.errors import UserError
from fedbench.core.contract.hooks import DISTRIBUTION
from fedbench.core.process.ask import Ended, ask_each, long_plugin_limits, plugin_limits
from fedbench.core.process.channel import at_work, pass_on_interrupt
from fedbench.core.words import explain, one_line

if TYPE_CHECKING:
    from fedbench.core.contract.components import Report, Summary
    from fedbench.core.registry.component import RegisteredComponent

DEFAULT, FULL = "board", "full"

_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
# path of the report, empty where the folder is read-only; headers, rows, headings and notes of its
# summary
Written = tuple[str, list[str], list[list[str]], list[str], list[str]]


@click.command(
    epilog=examples(
        "fedbench leaderboard results/partial_defense",
        "fedbench leaderboard results/partial_defense --output board.md --no-plots",
        "fedbench leaderboard results/partial_defense --full        every table and figure",
        "fedbench leaderboard results/partial_defense --report board --report html    reports of "
        "other packages, too",
        "fedbench leaderboard results/ours theirs.zip --output both/board.md          several "
        "folders and bundles as one board",
        "fedbench leaderboard results/one results/two --html site                     pages to "
        "look at: open site/index.html",
    )
)
@click.argument(
    "results",
    metavar="RESULTS...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
    shell_complete=complete.results,
)
@click.option(
    "--report",
    "reports",
    multiple=True,
    metavar="NAME",
    default=(DEFAULT,),
    show_default=True,
    shell_complete=complete.reports,
    help="What to make of the records: a report of an installed package. May be given several "
    "times.",
)
@click.option(
    "--full",
    is_flag=True,
    help="Write every table and figure to full.md: the same as --report full.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write the (first) report to this file; of several RESULTS, with its images beside "
    "it.",
)
@click.option(
    "--html",
    "site",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write a static site to DIR instead: a page a board, one for each of RESULTS, that opens "
    "from disk without a "
    "network. A board.json that such a run kept is a RESULTS, too. Needs pip install "
    "'fedbench-privacy[html]'.",
)
@click.option(
    "--plots/--no-plots",
    default=True,
    show_default=True,
    help="Draw ROC curves and trade-offs beside the board.",
)
@debug_and_quiet
@click.pass_context
def command(
    ctx: click.Context,
    results: tuple[Path, ...],
    reports: tuple[str, ...],
    full: bool,
    output: Path | None,
    site: Path | None,
    plots: bool,
) -> None:
    """Write RESULTS/leaderboard/ from the records in RESULTS alone; trains nothing.

    Several RESULTS, each a folder or a bundle of `fedbench export`, are merged as by `fedbench
    merge`; their board goes to --output. With --html they are several boards of one site.
    """
    if full:
        reports = (FULL,)
    if site is not None:
        _site(ctx, results, site)
    elif len(results) == 1 and not results[0].is_file():
        from fedbench.core.store.files import write_atomically

        chosen = reports_named(reports)
        written = write_reports(opened(results[0]).root, chosen, plots)
        if output and not written:
            _of_several(ctx, results, chosen, output, plots)
        elif output:
            write_atomically(output.absolute(), written[0].read_bytes())
            say(f"copied to {output}")
    elif output is not None and output.resolve() in [path.resolve() for path in results]:
        raise UserError(
            f"{output}: is one of the sources; nothing was written - name another file with "
            "--output"
        )
    elif output is None:
        raise UserError(
            "a board of a bundle, or of several RESULTS, needs --output FILE: none of them is its "
            "folder"
        )
    else:
        _of_several(ctx, results, reports_named(reports), output, plots)


def _site(ctx: click.Context, results: tuple[Path, ...], folder: Path) -> None:
    """Write the pages by the function that the leaderboard announces as an entry point."""
    others = {"output": "--output", "reports": "--report", "full": "--full", "plots": "--plots"}
    given = [
        option
        for name, option in others.items()
        if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT
    ]
    if given:
        raise UserError(
            f"--html goes without {' and '.join(given)}: make the site and the report one after "
            "the other"
        )
    (found,) = distribution(DISTRIBUTION).entry_points.select(group="fedbench.site")
    files = found.load()(results, folder)
    pages = sum(name.endswith(".html") for name in files)
    say(f"site: {folder / 'index.html'} ({pages} pages, {sum(files.values()) / 1e6:.1f} MB)")


def _of_several(
    ctx: click.Context, results: tuple[Path, ...], reports: dict, output: Path, plots: bool
) -> None:
    """Write the reports of several sources, merged in a temporary folder; further files go beside
    ``output``.
    """
    from fedbench.core.cli.main import cli
    from fedbench.core.store.files import write_atomically

    merge = cli.get_command(ctx, "merge")
    if merge is None:
        raise UserError(
            "this installation of fedbench has no command 'merge': name one results folder"
        )
    with tempfile.TemporaryDirectory(prefix="fedbench-") as aside:
        folder = Path(aside) / "merged"
        ctx.invoke(merge, sources=results, output=folder, lasting=False)
        written = write_reports(folder, reports, plots, lasting=False)
        for path in sorted((folder / "leaderboard").iterdir()):
            if path.is_file() and path != written[0]:
                write_atomically(output.absolute().parent / path.name, path.read_bytes())
        write_atomically(output.absolute(), written[0].read_bytes())
    for name, path in zip(reports, written, strict=True):
        say(f"{name}: {output if path == written[0] else output.parent / path.name}")


# -- reports ---------------------------------------------------------------------------------------


def reports_named(names: Sequence[str] = (DEFAULT,)) -> dict[str, RegisteredComponent]:
    """The reports of these names; raises ``UserError`` for one that no package or several provide,
    or that cannot be made.
    """
    from fedbench.core.registry.components import Registry

    registry = Registry.discover()
    found = {name: registry.get("report", name) for name in dict.fromkeys(names)}
    for report in found.values():
        if report.distribution == DISTRIBUTION:
            report.load()  # built-in: imported once for all processes
    for answer in ask_each(list(found.values()), lambda report: _made(report) is None):
        answer.get()
    return found


def write_reports(
    folder: Path, reports: Mapping[str, RegisteredComponent], plots: bool, lasting: bool = True
) -> list[Path]:
    """Write every report of a results folder, print its summary and its path; of a read-only folder
    the summary alone. Not ``lasting``: the folder is temporary, and the caller prints where the
    files end up.
    """
    written: list[Path] = []
    failed: list[str] = []
    for name, answer in zip(
        reports, ask_each(list(reports.values()), lambda r: _write(r, folder, plots)), strict=True
    ):
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
        if not path:
            say(
                f"{name}: {folder} is read-only, nothing was written; --output FILE writes the "
                "report elsewhere"
            )
            continue
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
    """(what was written, why not): a report that fails does not stop others."""
    report = _made(found)
    try:
        with at_work(
            str(found), None if found.distribution == DISTRIBUTION else long_plugin_limits()
        ):
            path = _path(report, folder, plots)
            return (path, *_plain(report.summary(folder))), ""
    except (UserError, OSError):
        raise
    except BaseException as error:
        pass_on_interrupt(error)
        return None, explain(error)


def _path(report: Report, folder: Path, plots: bool) -> str:
    try:
        path = report.write(folder, plots)
    except OSError as error:
        if error.errno in _READ_ONLY:
            return ""
        raise
    if not isinstance(path, Path):
        raise TypeError(
            f"write returned {type(path).__name__}, expected the path of the file to open"
        )
    return str(path)


def _plain(summary: Summary | None) -> tuple[list[str], list[list[str]], list[str], list[str]]:
    """A summary's texts, each on one line, every row as long as the header."""
    if summary is None:
        return [], [], [], []
    headers = [one_line(str(h)) for h in summary.headers]
    rows = [[one_line(str(cell)) for cell in row] for row in summary.rows]
    if any(len(row) != len(headers) for row in rows):
        raise ValueError(f"its summary has {len(headers)} columns and a row of another length")
    headings, notes = (
        [one_line(str(text)) for text in texts] for texts in (summary.headings, summary.notes)
    )
    if headings and len(headings) != len(rows):
        raise ValueError(
            f"its summary has {len(rows)} rows and {len(headings)} headings, expected one a row"
        )
    return headers, rows, headings, notes
