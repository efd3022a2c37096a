"""`fedbench leaderboard`: write reports from records; report plugins run in a separate process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import click

from fedbench.core.cli.options import debug_and_quiet, examples
from fedbench.core.cli.output import opened, say, show_table
from fedbench.core.contract.errors import UserError
from fedbench.core.contract.hooks import DISTRIBUTION
from fedbench.core.process.ask import ask_each, long_plugin_limits
from fedbench.core.process.channel import at_work
from fedbench.core.registry.component import RegisteredComponent
from fedbench.core.registry.components import Registry

DEFAULT = "board"
FULL = "full"


@click.command(
    epilog=examples(
        "fedbench leaderboard results/partial_defense",
        "fedbench leaderboard results/partial_defense --no-plots",
        "fedbench leaderboard results/partial_defense --full     every table and figure",
        "fedbench leaderboard results/partial_defense --report audit --set records=5     two pages",
        "fedbench leaderboard results/one results/two --html site     pages: open site/index.html",
    )
)
@click.argument(
    "results", metavar="RESULTS...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--report",
    "reports",
    multiple=True,
    metavar="NAME",
    default=(DEFAULT,),
    show_default=True,
    help="What to make of the records: a report of an installed package. May be given several "
    "times.",
)
@click.option(
    "--set",
    "values",
    multiple=True,
    metavar="NAME=VALUE",
    help="A parameter of the reports (`fedbench list reports --params`). May be given several "
    "times.",
)
@click.option(
    "--full",
    is_flag=True,
    help="Write every table and figure to full.md: the same as --report full.",
)
@click.option(
    "--html",
    "site",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write a static site to DIR instead: a page a board, one for each of RESULTS, that opens "
    "from disk without a network. A board.json that such a run kept is a RESULTS, too. Needs pip "
    "install 'fedbench-privacy[html]'.",
)
@click.option(
    "--plots/--no-plots",
    default=True,
    show_default=True,
    help="Draw ROC curves and trade-offs beside the board.",
)
@debug_and_quiet
def command(
    results: tuple[Path, ...],
    reports: tuple[str, ...],
    values: tuple[str, ...],
    full: bool,
    site: Path | None,
    plots: bool,
) -> None:
    """Write RESULTS/leaderboard/ from the records in RESULTS alone; trains nothing.

    With --html, several RESULTS are several boards of one site. `fedbench merge` makes one folder,
    and so one board, of several folders and bundles.
    """
    if full:
        reports = (FULL,) if reports == (DEFAULT,) else (*reports, FULL)
    if site is not None:
        _write_site(results, site)
    elif len(results) > 1 or results[0].is_file():
        raise UserError(
            "a board is made of one results folder: `fedbench merge RESULTS... -o FOLDER` makes "
            "one of several folders and bundles"
        )
    else:
        folder = opened(results[0]).root
        write_reports(folder, reports_named(reports), plots, params=_params(values))


def _write_site(results: tuple[Path, ...], folder: Path) -> None:
    """Write the pages by the function that the leaderboard announces as an entry point."""
    (make_site,) = distribution(DISTRIBUTION).entry_points.select(group="fedbench.site")
    files = make_site.load()(results, folder)
    say(f"site: {folder / 'index.html'} ({sum(files.values()) / 1e6:.1f} MB)")


def _params(values: Sequence[str]) -> dict[str, str]:
    params = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--set {text}: expected NAME=VALUE, like records=5")
        params[name] = value
    return params


# -- reports ---------------------------------------------------------------------------------------


def reports_named(
    names: Sequence[str] = (DEFAULT,), registry: Registry | None = None
) -> dict[str, RegisteredComponent]:
    """Return the reports of these names.

    Raises:
        UserError: for one that no package or several provide.
    """
    registry = registry or Registry.discover()
    return {name: registry.get("report", name) for name in names}


def write_reports(
    folder: Path,
    reports: Mapping[str, RegisteredComponent],
    plots: bool,
    written: Callable[[str, dict[str, Any]], None] = lambda path, summary: None,
    params: Mapping[str, str] | None = None,
) -> None:
    """Write every report of a results folder, and print its summary and its path; ``written`` is
    called with both.

    Raises:
        UserError: for those that fail, after the others are written.
    """
    problems: list[str] = []
    answers = ask_each(
        list(reports.values()), lambda report: write_report(report, folder, plots, params)
    )
    for name, answer in zip(reports, answers, strict=True):
        if isinstance(answer.error, UserError):
            problems += answer.error.messages
            continue
        path, summary = answer.get()
        if summary["headers"]:
            show_table(summary["headers"], summary["rows"], headings=summary["headings"])
        for note in summary["notes"]:
            say(note)
        say(f"{name}: {path}")
        written(path, summary)
    if problems:
        raise UserError(*problems)


def write_report(
    report: RegisteredComponent,
    folder: Path,
    plots: bool,
    params: Mapping[str, str] | None = None,
) -> tuple[str, dict[str, Any]]:
    """Write one report; return its path and the fields of its summary.

    Raises:
        UserError: for a parameter that it does not take.
    """
    from fedbench.core.contract.components import Summary

    limits = None
    if report.distribution != DISTRIBUTION:
        limits = long_plugin_limits()
    with at_work(str(report), limits):
        component = _made(report, params or {})
        path = component.write(folder, plots)
        if not isinstance(path, Path):
            raise TypeError(
                f"write returned {type(path).__name__}, expected the path of the file to open"
            )
        summary = component.summary(folder) or Summary([], [])
        if len(summary.headings) not in (0, len(summary.rows)):
            raise ValueError("its summary has another number of headings than of rows")
    return str(path), asdict(summary)


def _made(report: RegisteredComponent, params: Mapping[str, str]) -> Any:
    """Return the report with its parameters. Raises ``UserError`` for one that it does not take."""
    from pydantic import ValidationError

    cls = report.load()
    try:
        return cls(**params)
    except ValidationError as error:
        mistake = error.errors(include_url=False)[0]
        name = ".".join(map(str, mistake["loc"]))
        names = ", ".join(cls.Params.model_fields) or "none"
        raise UserError(
            f"--set {name}: {mistake['msg']}; the parameters of {report} are {names}"
        ) from None
