"""The command `fedbench merge`: several folders and bundles as one results folder."""

from __future__ import annotations

from pathlib import Path

import click

from fedbench.core.cli.options import examples
from fedbench.core.cli.output import say


@click.command(
    short_help="Put several folders and bundles into one folder.",
    epilog=examples(
        "fedbench merge results/ours theirs.zip -o results/all",
        "fedbench leaderboard results/all",
    ),
)
@click.argument(
    "sources", metavar="SOURCE...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="The results folder to make; not there, or empty.",
)
def command(sources: tuple[Path, ...], output: Path) -> None:
    """Put the records of several results folders and bundles (each SOURCE) into one results folder.

    A bundle is checked as `fedbench import` does. Records of one key must be equal but for time and
    machine: the first is kept.
    """
    from fedbench.leaderboard.submissions.transfer import merge

    merged = merge(sources, output.absolute())
    for note in merged.notes:
        say(f"note: {note}")
    say(f"{output}: {merged.records} records of {len(sources)} sources")
