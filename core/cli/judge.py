"""`fedbench judge`: let another attack judge trainings by the observations that were kept."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedbench.core.cli.options import LOCAL, examples
from fedbench.core.cli.output import opened, say
from fedbench.core.contract.errors import UserError
from fedbench.core.registry.components import Registry

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
@click.argument("source", type=click.Path(path_type=Path))
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
@click.pass_context
def command(
    ctx: click.Context, source: Path, attacks: tuple[str, ...], output: Path | None
) -> None:
    """Let an attack judge the federations in SOURCE, a bundle of `fedbench export --observations`
    or a results folder.

    Nothing is trained but an attack's own shadow models. The cells are those that `fedbench run`
    gives with this attack; they lie beside the earlier ones, and are `claimed` where these are.
    Code, data and versions must be those of the records.
    """
    registry = Registry.discover()
    for name in attacks:
        registry.get("attack", name)
    store = opened(_folder(ctx, source, output))
    with store.lock():
        store.sweep()
        failures = _judge(store, attacks)
    failures.show(store.logs)
    say(f"board: fedbench leaderboard {store.root}")
    sys.exit(1 if failures.counts else 0)


def _folder(ctx: click.Context, source: Path, output: Path | None) -> Path:
    """Return the results folder: SOURCE, or what `fedbench import` makes of it."""
    from fedbench.core.cli.main import cli

    if source.is_dir() == (output is not None):
        raise UserError(
            "a bundle needs --output FOLDER; of a results folder the cells are written there, "
            "without --output"
        )
    if output is None:
        return source
    import_ = cli.get_command(ctx, "import")
    assert import_ is not None
    ctx.invoke(import_, bundle=source, output=output)
    return output


def _judge(store: Results, attacks: Sequence[str]) -> Any:
    """Compute the missing cells of the attacks; return the failures of all of them."""
    from fedbench.core.cli.machine import executor_of
    from fedbench.core.cli.progress import failures_of
    from fedbench.core.cli.run import cells_of, execute
    from fedbench.core.run.resume import pending, recorded
    from fedbench.core.store.reading import load_records
    from fedbench.core.store.results import Results

    records = store.planned(load_records(store.root))[0]
    runs = {loaded.path.stem: loaded for loaded in reversed(records)}  # own ones win
    jobs = []
    n_runs = len(runs)
    for name in reversed(store.marker()["plans"]):
        if runs:
            plan = _plan_with(attacks, store, name, runs)
            observed = _observed(_jobs(plan, attacks, runs))
            if observed:
                _note(store, plan, observed)
            jobs += observed
    left_out = (
        f"{n_runs - len(jobs)} of {n_runs} runs are not judged: what {' and '.join(attacks)} would "
        "observe was not kept, or code, data or versions are others here, or an adversary was "
        "inside"
    )
    if not jobs:
        raise UserError(left_out)
    if len(jobs) < n_runs:
        say(f"note: {left_out}")

    def states() -> list[Any]:
        return [state for job in jobs for state in recorded([job], Results(Path(job.results)))]

    earlier = states()
    todo = pending(jobs, earlier, "failed")
    execute(todo, executor_of(LOCAL, None, None), plan.suite, store.root, earlier)
    ended = {state.stem: state for state in states()}
    return failures_of(jobs, ended, {cell.stem for cell in cells_of(todo)})


def _plan_with(
    attacks: Sequence[str], store: Results, name: str, runs: dict[str, LoadedRecord]
) -> Any:
    """Return the plan of a stored suite with the attacks added."""
    from fedbench.core.cli.run import build_plan
    from fedbench.core.store.stored_suites import SUITES, only_of

    device = next(iter(runs.values())).record.identity.run["device"]
    suite = store.root / SUITES / f"{name}.yaml"
    plan = build_plan(str(suite), _added(suite, attacks), store.root, device)
    for job in plan.jobs:
        if job.attacker and job.attacker.name in attacks:
            raise UserError(
                f"'{job.attacker.label}' takes part in the training, which no observations "
                "replace: use `fedbench run`"
            )
    return replace(plan, stored=replace(plan.stored, only=only_of(suite)))


def _added(suite: Path, attacks: Sequence[str]) -> tuple[str, ...]:
    """Return changes (``--set``) that add the attacks to a suite, and to settings with a list."""
    from fedbench.core.spec.document import read

    data = read(suite).data
    labels = [use.get("label", use["name"]) for use in data["attacks"]]
    missing = [name for name in attacks if name not in labels]
    changes = [f"attacks={json.dumps([*data['attacks'], *missing])}"]
    for i, setting in enumerate(data["settings"]):
        if "attacks" in setting:
            listed = dict.fromkeys([*setting["attacks"], *attacks])
            changes.append(f"settings.{i}.attacks={json.dumps([*listed])}")
    return tuple(changes)


def _jobs(plan: Any, attacks: Sequence[str], runs: dict[str, LoadedRecord]) -> Iterator[Any]:
    """Yield the plan's jobs of ``runs``, which are taken out, with the cells of the attacks.

    Each has the folder of its record, and the machine that made the observations.
    """
    for job in plan.jobs:
        if not job.attacker and (loaded := runs.pop(job.stem, None)) is not None:
            yield replace(
                job,
                cells=tuple(cell for cell in job.cells if cell.attack.label in attacks),
                results=str(loaded.path.parents[1]),
                provenance=loaded.record.provenance,
            )


def _observed(jobs: Iterable[Any]) -> list[Any]:
    """Return the jobs that need no training."""
    from fedbench.core.process.ask import ask

    matched = list(jobs)

    def trained() -> list[bool]:
        from fedbench.core.run.trained_run import load_training

        return [load_training(job) is not None for job in matched]

    return list(compress(matched, ask(trained)))


def _note(store: Results, plan: Any, jobs: Sequence[Any]) -> None:
    """Add the cells and the suite that asks for them to the folder's marker."""
    from fedbench.core.cli.run import cells_of
    from fedbench.core.store.results import write_marker
    from fedbench.core.store.stored_suites import keep_suite

    facts = store.marker()
    added = keep_suite(store.root, plan.stored)
    cells = dict.fromkeys([*facts["cells"], *(cell.stem for cell in cells_of(jobs))])
    plans = [plan_id for plan_id in facts["plans"] if plan_id != added]
    write_marker(store.root, facts | {"cells": [*cells], "plans": [*plans, added]})
