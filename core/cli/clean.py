"""`fedbench clean`: delete caches, never results."""

from __future__ import annotations

from pathlib import Path

import click

from fedbench.core.cli.folder import opened
from fedbench.core.cli.options import results_argument
from fedbench.core.cli.say import say


@click.command(epilog="""\b
Examples:
  fedbench clean results/partial_defense --dry-run
  fedbench clean results/partial_defense""")
@results_argument
@click.option("--dry-run", is_flag=True, help="Say what would go; delete nothing.")
def command(results: Path, dry_run: bool) -> None:
    """Delete the cached observations and the workers' logs in RESULTS. Records, scores and boards stay.

    Without its cache, a run is trained again when a new attack is added to the suite.
    """
    store = opened(results)
    with store.lock():
        files = [*sorted(store.cache.glob("*.npz")), *sorted(store.logs.glob("*.log"))]
        size = sum(f.stat().st_size for f in files)
        if not dry_run:
            for f in files:
                f.unlink()
            store.sweep()
    verb = "would delete" if dry_run else "deleted"
    kept = len(list(store.records.glob("*.json")))
    say(f"{verb} {len(files)} cached runs and logs, {size / 2**20:.1f} MiB; {kept} records stay")
