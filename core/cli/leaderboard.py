"""`fedbench leaderboard`: rebuild the reports from records."""

from __future__ import annotations

from pathlib import Path

import click

from fedbench.core.cli import complete
from fedbench.core.cli.folder import opened
from fedbench.core.cli.options import examples, results_argument
from fedbench.core.cli.reports import DEFAULT, reports_named, write_reports
from fedbench.core.cli.say import say


@click.command(epilog=examples(
    "fedbench leaderboard results/partial_defense",
    "fedbench leaderboard results/partial_defense --output board.md --no-plots",
    "fedbench leaderboard results/partial_defense --report board --report html    reports of other packages, too",
))  # fmt: skip
@results_argument
@click.option("--report", "reports", multiple=True, metavar="NAME", default=(DEFAULT,), show_default=True,
              shell_complete=complete.reports,
              help="What to make of the records: a report of an installed package. May be given several times.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Also write the (first) report to this file.")
@click.option("--plots/--no-plots", default=True, show_default=True, help="Draw ROC curves and trade-offs beside the board.")
def command(results: Path, reports: tuple[str, ...], output: Path | None, plots: bool) -> None:
    """Write RESULTS/leaderboard/ from the records in RESULTS alone; trains nothing."""
    from fedbench.core.store.files import write_atomically

    written = write_reports(opened(results).root, reports_named(reports), plots)
    if output:
        write_atomically(output.absolute(), written[0].read_bytes())
        say(f"copied to {output}")
