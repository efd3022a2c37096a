"""`fedbench judge`: let another attack judge trainings by the observations that were kept."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedbench.core.cli import complete
from fedbench.core.cli.options import examples
from fedbench.core.cli.output import opened, say
from fedbench.core.contract.errors import UserError

if TYPE_CHECKING:
    from fedbench.core.store.reading import LoadedRecord
    from fedbench.core.store.results import Results


@click.command(
    epilog=examples(
        "fedbench judge theirs.zip --attack my-attack -o results/theirs",
        "fedbench judge results/theirs --attack my-attack",
        "fedbench leaderboard results/theirs             their rows, ranked by this attack, too",
    )
)
@click.argument("source", type=click.Path(path_type=Path), shell_complete=complete.results)
@click.option(
    "--attack",
    "attacks",
    multiple=True,
    required=True,
    metavar="NAME",
    help="An installed attack with its default parameters. May be given several times.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="The results folder to make of a bundle.",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    help="Runs side by side, one thread each.  [default: the cores]",
)
@click.pass_context
def command(
    ctx: click.Context,
    source: Path,
    attacks: tuple[str, ...],
    output: Path | None,
    workers: int | None,
) -> None:
    """Let an attack judge the federations in SOURCE, a bundle of `fedbench export --observations`
    or a results folder.

    Nothing is trained but an attack's own shadow models. The cells are those that `fedbench run`
    gives with this attack; they lie beside the earlier ones, and are `claimed` where these are.
    Code, data and versions must be those of the records.
    """
    from fedbench.core.registry.components import Registry

    registry = Registry.discover()
    for name in attacks:
        registry.get("attack", name)
    store = opened(_folder(ctx, source, output))
    with store.lock():
        store.sweep()
        failures = _judge(store, attacks, workers)
    failures.show(store.logs)
    say(f"board: fedbench leaderboard {store.root}")
    sys.exit(1 if failures.counts else 0)


def _folder(ctx: click.Context, source: Path, output: Path | None) -> Path:
    """The results folder: SOURCE, or what `fedbench import` makes of it."""
    from fedbench.core.cli.main import cli

    if source.is_dir() == (output is not None):
        raise UserError(
            "a bundle needs --output FOLDER; of a results folder the cells are written there, "
            "without --output"
        )
    if output is None:
        return source
    if import_ := cli.get_command(ctx, "import"):
        ctx.invoke(import_, bundle=source, output=output)
    return output


def _judge(store: Results, attacks: Sequence[str], workers: int | None) -> Any:
    from fedbench.core.cli.run import LOCAL, execute, executor_of, failures_of
    from fedbench.core.run.resume import pending, recorded
    from fedbench.core.store.reading import load_records
    from fedbench.core.store.results import Results

    # own ones win
    runs = {
        loaded.path.stem: loaded for loaded in reversed(store.planned(load_records(store.root))[0])
    }
    jobs, whole = [], len(runs)
    for plan in _plans(store, attacks, runs):
        if mine := _observed(list(_jobs(plan, attacks, runs))):
            _note(store, plan, mine)
            jobs += mine
    left = (
        f"{whole - len(jobs)} of {whole} runs are not judged: what {' and '.join(attacks)} would "
        "observe was not kept, or "
        "code, data or versions are others here, or an adversary was inside"
    )
    if not jobs:
        raise UserError(left)
    if len(jobs) < whole:
        say(f"note: {left}")

    def states() -> list[Any]:
        return [state for job in jobs for state in recorded([job], Results(Path(job.results)))]

    todo = pending(jobs, found := states(), "failed")
    execute(todo, executor_of(LOCAL, workers, None), plan.suite, store.root, found)
    return failures_of(
        jobs,
        {state.stem: state for state in states()},
        {cell.stem for job in todo for cell in job.cells},
    )


def _plans(store: Results, attacks: Sequence[str], runs: dict[str, LoadedRecord]) -> Iterator[Any]:
    """The plans of the stored suites, the last one first, with the attacks added, as long as there
    are runs.
    """
    from fedbench.core.cli.run import build_plan
    from fedbench.core.store.stored_suites import SUITES, only_of

    for name in store.marker()["plans"][::-1]:
        if runs:
            device = next(iter(runs.values())).record.identity.run["device"]
            suite = store.root / SUITES / f"{name}.yaml"
            plan = build_plan(str(suite), _added(suite, attacks), store.root, device)
            if inside := [
                job.attacker.label
                for job in plan.jobs
                if job.attacker and job.attacker.name in attacks
            ]:
                raise UserError(
                    f"'{inside[0]}' takes part in the training, which no observations replace: use "
                    "`fedbench run`"
                )
            yield replace(plan, stored=replace(plan.stored, only=only_of(suite)))


def _added(suite: Path, attacks: Sequence[str]) -> tuple[str, ...]:
    """Changes of a suite (``--set``) that add the attacks to it, and to the settings that name
    theirs.
    """
    from fedbench.core.spec.document import read

    data = read(suite).data
    lists = {"attacks": data["attacks"]}
    lists |= {
        f"settings.{i}.attacks": s["attacks"]
        for i, s in enumerate(data["settings"])
        if s.get("attacks") is not None
    }

    def missing(uses: list[Any]) -> list[str]:
        labels = {use if isinstance(use, str) else use.get("label") or use["name"] for use in uses}
        return [name for name in attacks if name not in labels]

    return tuple(f"{path}={json.dumps([*uses, *missing(uses)])}" for path, uses in lists.items())


def _jobs(plan: Any, attacks: Sequence[str], runs: dict[str, LoadedRecord]) -> Iterator[Any]:
    """The plan's jobs of ``runs``, which are taken out, with the cells of the attacks: each in the
    folder of its record, and with the machine of the training, since the observations are its.
    """
    for job in plan.jobs:
        if not job.attacker and (loaded := runs.pop(job.stem, None)) is not None:
            cells = tuple(cell for cell in job.cells if cell.attack.label in attacks)
            yield replace(
                job,
                cells=cells,
                results=str(loaded.path.parents[1]),
                provenance=loaded.record.provenance,
            )


def _observed(jobs: Sequence[Any]) -> list[Any]:
    """Those that need no training."""
    from fedbench.core.process.ask import ask

    def stems() -> list[str]:
        from fedbench.core.run.trained_run import load_training

        return [job.stem for job in jobs if load_training(job) is not None]

    kept = set(ask(stems))
    return [job for job in jobs if job.stem in kept]


def _note(store: Results, plan: Any, jobs: Sequence[Any]) -> None:
    """Add the cells and the suite that asks for them to the folder's marker."""
    from fedbench.core.store.results import write_marker
    from fedbench.core.store.stored_suites import keep_suite

    facts, stored = store.marker(), keep_suite(store.root, plan.stored)
    cells = dict.fromkeys([*facts["cells"], *(cell.stem for job in jobs for cell in job.cells)])
    write_marker(
        store.root,
        facts | {"cells": [*cells], "plans": [*(p for p in facts["plans"] if p != stored), stored]},
    )
