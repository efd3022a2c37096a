"""`fedbench leaderboard`: rebuild the board from records."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(epilog="""\b
Examples:
  fedbench leaderboard results/partial_defense
  fedbench leaderboard results/partial_defense --output board.md --no-plots""")
@click.argument("results", type=click.Path(path_type=Path))
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Also write the Markdown to this file.")
@click.option("--plots/--no-plots", default=True, show_default=True, help="Draw ROC curves and trade-offs beside the board.")
def command(results: Path, output: Path | None, plots: bool) -> None:
    """Write RESULTS/leaderboard/ from the records in RESULTS alone; trains nothing."""
    from fedbench.core.cli.run import show_board
    from fedbench.core.store.files import write_atomically
    from fedbench.core.store.results import Results

    board = show_board(Results.open(results.absolute()).root, plots)
    if output:
        write_atomically(output.absolute(), board.read_bytes())
        click.echo(f"copied to {output}")
