"""The command `fedbench reproduce`: run a sample of the claimed records again and compare."""

from __future__ import annotations

import math
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedbench.core.cli.options import results_argument
from fedbench.core.cli.output import say
from fedbench.core.contract.errors import UserError

if TYPE_CHECKING:
    from fedbench.core.run.executor import Executor
    from fedbench.core.run.job import Job
    from fedbench.leaderboard.submissions.reproducing import Sample

_EPILOG = """\b
Examples:
  fedbench reproduce results/theirs --dry-run
  fedbench reproduce results/theirs
  fedbench reproduce results/theirs --sample 0.25 --seed 7

\b
The same command again goes on where it was stopped.
Exit status: 0 every cell of the sample agrees, 1 some cell does not, or is
stale, 2 your mistake or a missing package, 130 interrupted."""


def _share(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    if value is not None and math.isnan(value):  # it is in every range, for click
        raise click.BadParameter("nan is no share")
    return value


@click.command(short_help="Run a sample of imported cells again and compare.", epilog=_EPILOG)
@results_argument
@click.option(
    "--sample",
    type=click.FloatRange(0, 1, min_open=True),
    callback=_share,
    help="Share of the runs of every row, rounded up: at least one a row.  [default: 0.1]",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    help="Draws the sample.  [default: a fresh one, which cannot be predicted]",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    help="Runs side by side, one thread each.  [default: the cores]",
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@click.option("--dry-run", is_flag=True, help="Say what would be run; compute nothing.")
def command(
    results: Path,
    sample: float | None,
    seed: int | None,
    workers: int | None,
    device: str,
    dry_run: bool,
) -> None:
    """Run a sample of the imported cells in RESULTS again and compare: bit for bit, within
    tolerance, or not reproduced. Times, memory, machine and versions are not compared.

    The code that runs is what is installed here, never the bundle's. The records are kept in the
    folder, and its board shows the verdicts.
    """
    from fedbench.core.cli.output import opened
    from fedbench.core.cli.run import build_plan
    from fedbench.leaderboard.submissions.reproducing import drawn, prepare

    if results.is_file():
        raise UserError(
            f"{results}: is a file; `fedbench import` makes a results folder of a bundle"
        )
    folder = opened(results).root
    draw = drawn(folder, sample, seed)
    again = prepare(folder, draw, lambda suite, where: build_plan(str(suite), (), where, device))
    cells = sum(len(job.cells) for job in again.jobs)
    chosen = f"a share of {draw.share:g} with seed {draw.seed}"
    say(
        f"{folder}: {len(again.records)} cells in the sample ({chosen}), {len(again.jobs)} runs "
        f"with {cells} cells to compare"
    )
    if dry_run:
        _show(again)
        return
    if again.jobs:
        from fedbench.core.cli.machine import executor_of
        from fedbench.core.cli.options import LOCAL

        _run(folder, again, executor_of(LOCAL, workers, None), "failed")
    status = _report(folder, again)
    say(f"board: fedbench leaderboard {folder}")
    sys.exit(status)


def verify(folder: Path, jobs: Sequence[Job], n: int, executor: Executor) -> bool:
    """Train ``n`` of the jobs a second time, those with the smallest keys, and compare with the
    records of the folder. Return whether they agree; print the cells that do not.
    """
    from fedbench.core.store.reading import REPRODUCED
    from fedbench.core.store.results import Results
    from fedbench.leaderboard.submissions.reproducing import CLAIMS, Sample

    # keys are hashes: a random choice, the same each time
    chosen = sorted(jobs, key=lambda job: job.run_key)[:n]
    keys = {cell.key for job in chosen for cell in job.cells}
    # closely watched: what plugins write to that is not theirs fails the second training
    again = Sample(
        jobs=[replace(job, results=str(folder / REPRODUCED), debug=True) for job in chosen]
    )
    for stem in dict.fromkeys(job.stem for job in chosen):
        for r in Results(folder).cells(stem):
            if r.record.key in keys and r.record.outcome in CLAIMS:
                again.records.append(r)
    # a training of an earlier time would be taken from it
    shutil.rmtree(folder / REPRODUCED / "cache", ignore_errors=True)
    _run(folder, again, executor, "always")
    return _report(folder, again) == 0


def _show(again: Sample) -> None:
    from fedbench.core.cli.output import show_table

    rows = [(job.title, job.setting.federation.rounds, len(job.cells)) for job in again.jobs]
    show_table(["run", "rounds", "cells"], rows)
    for stem, why in again.stale.items():
        say(f"stale: {stem}: {why}")
    _advise(again)


def _advise(again: Sample) -> None:
    """Say what to install where cells are stale because of other versions of libraries."""
    from fedbench.leaderboard.submissions.trust import other_versions, pip_command

    stale = [loaded.record for loaded in again.records if loaded.stem in again.stale]
    versions: dict[str, str] = {}
    for record in stale:
        versions |= other_versions(record.identity.run)
    if versions:
        pythons = ", ".join(sorted({record.provenance.python for record in stale}))
        say(
            f"to compare the stale cells, in an environment with Python {pythons}: "
            f"{pip_command(versions)}",
            failure=True,
        )


def _run(folder: Path, again: Sample, executor: Executor, rerun: str) -> None:
    """Compute the cells of the sample that ``rerun`` asks for, in a results folder of its own."""
    from fedbench.core.cli.run import execute
    from fedbench.core.run.resume import pending, recorded
    from fedbench.core.store.reading import REPRODUCED
    from fedbench.core.store.results import Results

    store = Results.create(folder / REPRODUCED, Results.open(folder).marker()["suite"])
    with store.lock():
        store.sweep()
        states = recorded(again.jobs, store)
        store.set_manifest([cell.stem for job in again.jobs for cell in job.cells])
        execute(pending(again.jobs, states, rerun), executor, "reproduce", store.root, states)


def _report(folder: Path, again: Sample) -> int:
    """Print a table of what is not the same and a count of what is; return the exit status."""
    from fedbench.core.cli.output import show_table
    from fedbench.core.words import one_line
    from fedbench.leaderboard.submissions.reproducing import results

    cells = results(folder, again)
    counts = Counter(r.verdict for r in cells)
    agree = set(counts) <= {"bit for bit", "within tolerance"}
    rows = [(r.verdict, r.stem, one_line(r.how, 400)) for r in cells if r.verdict != "bit for bit"]
    if rows:
        show_table(["verdict", "cell", "how"], rows, failure=not agree)
    summary = "; ".join(f"{n} cells {verdict}" for verdict, n in sorted(counts.items()))
    say(summary or "no cell with a result to compare", failure=not agree)
    say("not compared: times, memory, machine and versions")
    _advise(again)
    return int(not agree)
