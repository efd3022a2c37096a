"""`fedbench leaderboard`: rebuild the reports from records."""

from __future__ import annotations

import tempfile
from importlib.metadata import distribution
from pathlib import Path

import click
from click.core import ParameterSource

from fedbench.core.cli import complete
from fedbench.core.cli.folder import opened
from fedbench.core.cli.options import debug_option, examples
from fedbench.core.cli.reports import DEFAULT, reports_named, write_reports
from fedbench.core.cli.say import say
from fedbench.core.contract.errors import UserError


@click.command(epilog=examples(
    "fedbench leaderboard results/partial_defense",
    "fedbench leaderboard results/partial_defense --output board.md --no-plots",
    "fedbench leaderboard results/partial_defense --report board --report html    reports of other packages, too",
    "fedbench leaderboard results/ours theirs.zip --output both/board.md          several folders and bundles as one board",
    "fedbench leaderboard results/one results/two --html site                     pages to look at: open site/index.html",
))  # fmt: skip
@click.argument("results", metavar="RESULTS...", nargs=-1, required=True, type=click.Path(path_type=Path),
                shell_complete=complete.results)  # fmt: skip
@click.option("--report", "reports", multiple=True, metavar="NAME", default=(DEFAULT,), show_default=True,
              shell_complete=complete.reports,
              help="What to make of the records: a report of an installed package. May be given several times.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False),
              help="Also write the (first) report to this file; of several RESULTS, with its images beside it.")
@click.option("--html", "site", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
              help="Write a static site to DIR instead: a page a board, one for each of RESULTS, that opens from disk without a "
                   "network. A board.json that such a run kept is a RESULTS, too. Needs pip install 'fedbench[html]'.")
@click.option("--plots/--no-plots", default=True, show_default=True, help="Draw ROC curves and trade-offs beside the board.")
@debug_option
@click.pass_context
def command(
    ctx: click.Context, results: tuple[Path, ...], reports: tuple[str, ...], output: Path | None, site: Path | None, plots: bool
) -> None:
    """Write RESULTS/leaderboard/ from the records in RESULTS alone; trains nothing.

    Several RESULTS, each a folder or a bundle of `fedbench export`, are merged as by `fedbench merge`; their board goes to
    --output. With --html they are several boards of one site.
    """
    if site is not None:
        _site(ctx, results, site)
    elif len(results) == 1 and not results[0].is_file():
        from fedbench.core.store.files import write_atomically

        written = write_reports(opened(results[0]).root, reports_named(reports), plots)
        if output:
            write_atomically(output.absolute(), written[0].read_bytes())
            say(f"copied to {output}")
    elif output is not None and output.resolve() in [path.resolve() for path in results]:
        raise UserError(f"{output}: is one of the sources; nothing was written - name another file with --output")
    elif output is None:
        raise UserError("a board of a bundle, or of several RESULTS, needs --output FILE: none of them is its folder")
    else:
        _of_several(ctx, results, reports_named(reports), output, plots)


def _site(ctx: click.Context, results: tuple[Path, ...], folder: Path) -> None:
    """By what the leaderboard announces: the harness knows no page."""
    others = {"output": "--output", "reports": "--report", "plots": "--plots"}
    given = [option for name, option in others.items() if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT]
    if given:
        raise UserError(f"--html goes without {' and '.join(given)}: make the site and the report one after the other")
    found = next(iter(distribution("fedbench").entry_points.select(group="fedbench.site")), None)
    if found is None:
        raise UserError("this installation of fedbench makes no site: use --report or --output")
    files = found.load()(results, folder)
    pages = sum(name.endswith(".html") for name in files)
    say(f"site: {folder / 'index.html'} ({pages} pages, {sum(files.values()) / 1e6:.1f} MB)")


def _of_several(ctx: click.Context, results: tuple[Path, ...], reports: dict, output: Path, plots: bool) -> None:
    """Merged in a folder that is gone afterwards; the reports' files go beside ``output``."""
    from fedbench.core.cli.main import cli
    from fedbench.core.store.files import write_atomically

    merge = cli.get_command(ctx, "merge")
    if merge is None:
        raise UserError("this installation of fedbench has no command 'merge': name one results folder")
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
