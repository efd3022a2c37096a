"""The command `fedbench export`: a results folder as one file that others can check."""

from __future__ import annotations

from pathlib import Path

import click

from fedbench.core.cli.options import ONLY, examples, parse_only, results_argument
from fedbench.core.cli.output import say


@click.command(
    short_help="Bundle results into one file that others can check.",
    epilog=examples(
        "fedbench export results/partial_defense -o ours.zip",
        "fedbench export results/partial_defense -o ours.zip --only "
        "defense=none,defense=my-defense",
        "fedbench export results/partial_defense -o ours.zip --observations     others can add an "
        "attack: fedbench judge",
    ),
)
@results_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="The bundle, a file that is not there yet.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="KIND=NAME,...",
    help=f"A part of the records: {', '.join(ONLY)}.",
)
@click.option(
    "--observations", is_flag=True, help="Also what attacks observe, as far as RESULTS has kept it."
)
def command(results: Path, output: Path, only: tuple[str, ...], observations: bool) -> None:
    """Bundle the records of RESULTS, their scores and their suites into one zip file, for `fedbench
    import` elsewhere.

    Logs and boards are left out, and observations unless asked for. The same folder gives the same
    bytes.
    """
    from fedbench.leaderboard.submissions.transfer import export

    bundle = export(
        results.absolute(), output.absolute(), parse_only(only), say if observations else None
    )
    say(
        f"{output}: {bundle.records} records, {bundle.size / 2**20:.1f} MiB, sha256 {bundle.sha256}"
    )
