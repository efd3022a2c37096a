"""The command `fedbench baseline`: keep what a results folder says in a small file, to compare
later results with.
"""

from __future__ import annotations

from pathlib import Path

import click

from fedbench.core import UserError
from fedbench.core.cli.options import examples, results_argument
from fedbench.core.cli.output import opened, say


@click.command(
    short_help="Keep what results say in a small file for `compare`.",
    epilog=examples(
        "fedbench baseline results/partial_defense -o baseline.json",
        "fedbench baseline results/partial_defense -o baseline.json --force    renew it when a "
        "change is meant",
    ),
)
@results_argument
@click.option(
    "-o",
    "--output",
    "file",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The file to write: JSON of one line a cell, made for git.",
)
@click.option("--force", is_flag=True, help="Replace FILE where it exists.")
def command(results: Path, file: Path, force: bool) -> None:
    """Write the values of every cell in RESULTS to a file, with what makes them comparable.

    Every number is counted again from the scores first. Cells that an attack does not apply to, or
    that diverged, are left out; with cells that failed nothing is written.
    """
    from fedbench.core.words import bounded
    from fedbench.leaderboard.comparison.cells import failures
    from fedbench.leaderboard.gate.file import snapshot_in, write_baseline

    root = opened(results).root
    snapshot = snapshot_in(root)
    if failed := failures(snapshot):
        remedy = "a baseline needs its scores: `fedbench run SUITE --rerun failed`"
        raise UserError(*bounded(f"{root}: {cell}; {remedy}" for cell in failed))
    if not snapshot.cells:
        raise UserError(
            f"{root}: no cell has scores, so there is nothing to compare with later; nothing was "
            "written"
        )
    write_baseline(file, snapshot, force)
    left_out = sum(map(len, snapshot.unscored.values()))
    rest = f", without {left_out} that were skipped or diverged" if left_out else ""
    say(f"{file}: {len(snapshot.cells)} cells on {len(snapshot.seeds)} seeds{rest}")
