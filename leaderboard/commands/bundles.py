"""The commands `fedbench export`, `import` and `merge`: results as a file that others can check."""

from __future__ import annotations

from pathlib import Path

import click

from fedbench.core.cli.options import ONLY, examples, parse_only, results_argument
from fedbench.core.cli.output import say
from fedbench.core.contract.errors import UserError


@click.command(
    name="export",
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
def export_command(results: Path, output: Path, only: tuple[str, ...], observations: bool) -> None:
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
def import_command(bundle: Path, output: Path) -> None:
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


@click.command(
    name="merge",
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
def merge_command(sources: tuple[Path, ...], output: Path) -> None:
    """Put the records of several results folders and bundles (each SOURCE) into one results folder.

    A bundle is checked as `fedbench import` does. Records of one key must be equal but for time and
    machine: the first is kept.
    """
    from fedbench.leaderboard.submissions.transfer import merge

    merged = merge(sources, output.absolute())
    for note in merged.notes:
        say(f"note: {note}")
    say(f"{output}: {merged.records} records of {len(sources)} sources")
