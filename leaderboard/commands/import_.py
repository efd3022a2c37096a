"""The command `fedbench import`: check a bundle, recompute its metrics, unpack it."""

from __future__ import annotations

from pathlib import Path

import click

from fedbench.core.cli.options import examples
from fedbench.core.cli.output import say
from fedbench.core.contract.errors import UserError


@click.command(
    name="import",
    short_help="Check a bundle, recompute its metrics, unpack it.",
    epilog=examples(
        "fedbench import theirs.zip -o results/theirs",
        "fedbench leaderboard results/theirs            their board, every row marked `claimed`",
    ),
)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="The results folder to make; not there, or empty.",
)
def command(bundle: Path, output: Path) -> None:
    """Check BUNDLE and unpack it as a results folder; whole, or not at all.

    Every metric is recomputed from the scores of single samples. No code of its author runs or has
    to be installed. Its records lie in `imported/` of the folder and are `claimed`.
    """
    from fedbench.leaderboard.submissions.recompute import NOT_RECOMPUTED
    from fedbench.leaderboard.submissions.transfer import merge

    if bundle.is_dir():
        raise UserError(f"{bundle}: is a folder; `fedbench merge` takes folders")
    merged = merge([bundle], output.absolute())
    say(f"{output}: {merged.records} records, claimed; every metric is what their scores give.")
    say("Only claimed, since no scores decide it:")
    for item in NOT_RECOMPUTED:
        say(f"  {item}")
    if merged.other_draws:
        say(
            f"  standard errors of {merged.other_draws} records, drawn with another numpy than is "
            "installed here"
        )
    say(f"board: fedbench leaderboard {output}; run a part again: fedbench reproduce {output}")
