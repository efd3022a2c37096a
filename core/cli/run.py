"""`fedbench run`: train what is missing, judge it, write the board."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from fedbench.core.cli.leaderboard import DEFAULT, reports_named, write_reports
from fedbench.core.cli.options import (
    LOCAL,
    ONLY,
    debug_and_quiet,
    overrides_option,
    parse_only,
    parse_part,
    rerun_option,
    suite_argument,
)
from fedbench.core.cli.output import clipped, quiet, say, show_table
from fedbench.core.contract.errors import UserError
from fedbench.core.registry.components import Registry
from fedbench.core.registry.discovery import of_leaderboard

if TYPE_CHECKING:
    from fedbench.core.cli.events import Events
    from fedbench.core.cli.progress import Failures
    from fedbench.core.cli.provisional import ProvisionalBoards
    from fedbench.core.registry.component import RegisteredComponent

_EPILOG = """\b
Examples:
  fedbench run partial_defense --dry-run
  fedbench run partial_defense --seeds 1              a first ranking
  fedbench run partial_defense                        the other seeds, too
  fedbench run my.yaml --set settings.0.federation.rounds=20 --set seeds=[0] --results /tmp/quick
  fedbench run partial_defense --only defense=none,defense=cofedmid,attack=fedmia-ii
  fedbench run partial_defense --executor ray --ray-address head:6379     on a Ray cluster
  fedbench run partial_defense --results /shared/partial --part 3/8       the third of eight jobs
  fedbench run partial_defense --verify 5                                 train five runs twice

\b
The same command again computes what is missing and redoes nothing.
Exit status: 0 fine, 1 some cell failed or is not repeatable, 2 your mistake,
130 interrupted. A federation that an adversary inside made diverge is a result:
status 0."""

RAY = "ray"
RESULTS = "FEDBENCH_RESULTS"
"""environment variable: the folder in which results folders are made"""


@click.command(epilog=_EPILOG)
@suite_argument
@overrides_option
@click.option(
    "--only",
    multiple=True,
    metavar="KIND=NAME,...",
    help=f"Run a part: {', '.join(ONLY)}. Several values of one kind add up. Does not change any "
    "key, and of settings without such a part no data have to be there. By default all; of a suite "
    "that a results folder stored, the part that was run.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1),
    metavar="N",
    help="Run the first N seeds of the suite: the short way to a ranking, which says of how many "
    "seeds it is. Does not change any key: without it the command goes on to the others.",
)
@click.option(
    "--results",
    type=click.Path(path_type=Path),
    help="Results folder.  [default: results/<suite>, or <suite> in the folder FEDBENCH_RESULTS]",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    envvar="FEDBENCH_WORKERS",
    show_envvar=True,
    help="Runs side by side, one thread each; same results.  [default: the cores; on GPUs up to "
    "as many, as their memory and speed allow; with ray, as many as fit]",
)
@click.option(
    "--device",
    default="auto",
    show_default=True,
    help="auto, cpu, cuda or cuda:N; with ray, auto is cuda where limits.gpus is above 0.",
)
@click.option(
    "--executor",
    type=click.Choice(sorted(entry_points(group="fedbench.executors").names)),
    default=LOCAL,
    show_default=True,
    help="The executor of the runs: this machine, or a Ray cluster (pip install "
    "'fedbench-privacy[ray]'), where each takes limits.cpus, limits.gpus and limits.memory_gb of a "
    "node; same results.",
)
@click.option(
    "--ray-address",
    metavar="HOST:PORT",
    help="The cluster's head; auto: one on this machine.  [default: RAY_ADDRESS, else a cluster "
    "that runs here, else one for this command alone]",
)
@click.option(
    "--part",
    metavar="I/N",
    help="Run part I of N, every N-th run: jobs of a scheduler share a results folder, or have one "
    "each. The part that finishes last writes the board.",
)
@rerun_option
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print the plan with the number of runs and cells; compute nothing.",
)
@click.option(
    "--verify",
    type=click.IntRange(1),
    metavar="N",
    help="Then train N runs of the plan, chosen by their keys, a second time and compare the bits; "
    "the board marks rows that are not repeatable.",
)
@click.option(
    "--plots/--no-plots",
    default=True,
    show_default=True,
    help="Draw ROC curves and trade-offs beside the board.",
)
@debug_and_quiet
def command(**options: Any) -> None:
    """Train every defense x setting x seed of SUITE once, let every attack judge it, write the
    leaderboard.

    SUITE is a file, or the name of a shipped suite (`fedbench list suites`).
    """
    _, complete = run_suite(**options)
    if not complete:
        sys.exit(1)


def run_suite(
    suite: str,
    overrides: tuple[str, ...] = (),
    only: tuple[str, ...] = (),
    results: Path | None = None,
    *,
    seeds: int | None = None,
    workers: int | None = None,
    device: str = "auto",
    executor: str = LOCAL,
    ray_address: str | None = None,
    part: str | None = None,
    rerun: str = "missing",
    dry_run: bool = False,
    verify: int | None = None,
    plots: bool = True,
) -> tuple[Path, bool]:
    """Compute what is missing of a suite, write its board, and print what is done.

    Args:
        suite: a file or a shipped name; the others are the options of `fedbench run`.

    Returns:
        The results folder, and whether no cell failed and those verified are repeatable.

    Raises:
        UserError: for a mistake in the suite or an option.
    """
    from fedbench.core.cli.events import Events
    from fedbench.core.cli.machine import executor_of
    from fedbench.core.run.local_executor import start_early

    share = parse_part(part)
    if ray_address is not None and executor != RAY:
        raise UserError("--ray-address goes with --executor ray")
    if not dry_run and executor == LOCAL:
        start_early()  # it imports while the suite is planned
    from fedbench.core.store.results import Results

    plan, whole_plan = plan_part(suite, overrides, only, results, device, executor, seeds)
    folder = _folder(plan.suite, results)
    _print_notes(plan, stored=not only and seeds is None)
    wanted = whole_plan
    if share:
        wanted = whole_plan.part(*share)
        say(f"part {part}: {len(wanted.jobs)} of {len(whole_plan.jobs)} runs")
    if dry_run:
        _print_plan(wanted, folder)
        return folder, True
    registry = Registry.discover()
    reports = reports_named(registry=registry)  # before hours of training
    store = Results.create(folder, plan.suite)
    with store.lock(share), Events(registry.listeners) as events:
        if not share:  # temporary files of other parts stay
            store.sweep()
        runs_on = executor_of(executor, workers, ray_address)
        # of parts the one that finishes last writes the board
        report = None if share else reports[DEFAULT]
        failures = _compute(plan, wanted, store, rerun, runs_on, report, events)
        repeatable = True
        if verify is not None:
            repeatable = of_leaderboard("verify")(folder, wanted.jobs, verify, runs_on)
        n_missing = sum(not store.path(job.stem).exists() for job in whole_plan.jobs)
        # of many cells they are large, and a board is made in a copy of this process
        del plan, whole_plan, wanted
        if share and n_missing:
            say(
                f"{n_missing} runs of other parts have no record yet: the part that finishes "
                "last writes the board"
            )
        elif any(store.records.glob("*.json")):
            write_reports(folder, reports, plots, partial(events.board, provisional=False))
        failures.show(store.logs)
        return folder, not failures.counts and repeatable


def _print_notes(plan: Any, stored: bool) -> None:
    """Print what is odd, and the part of a ``stored`` suite that is run."""
    if stored and plan.stored.only:
        say(
            "note: the part that was run of this stored suite: --only "
            f"{' --only '.join(plan.stored.only)}; a copy of the file elsewhere runs whole"
        )
    for note in plan.notes:
        say(f"note: {clipped(note, 10_000)}")


def _compute(
    plan: Any,
    wanted: Any,
    store: Any,
    rerun: str,
    executor: Any,
    report: RegisteredComponent | None,
    events: Events,
) -> Failures:
    """Compute what is missing of ``wanted``, or asked for again; return the failures.

    Args:
        report: the board to write after each seed; None: no board.
    """
    from fedbench.core.cli.progress import failures_of
    from fedbench.core.cli.provisional import ProvisionalBoards, unfinished
    from fedbench.core.run.plan import seed_by_seed, seeds_of
    from fedbench.core.run.resume import other_cpus, pending, recorded, require_arrays

    states = recorded(wanted.jobs, store)
    jobs = seed_by_seed(pending(wanted.jobs, states, rerun))
    require_arrays(jobs, store)
    # records of one key agree bit by bit on one type of CPU only
    if cpus := other_cpus(wanted.jobs, states):
        say(
            f"note: some of these records were made on another type of CPU ({'; '.join(cpus)}), "
            "and the board says so: the last digits may differ. For the same bits throughout use "
            "one type of CPU, or --rerun always here"
        )
    _print_stale(jobs, {state.stem for state in states}, store)
    cells = plan.and_left_out(store.marker()["cells"])
    boards: ProvisionalBoards | None = None
    if report is not None:
        open_seeds = unfinished(plan, wanted, states, store)
        boards = ProvisionalBoards(store, report, seeds_of(plan.jobs), open_seeds, jobs)
    provisional = boards.state if boards else None
    store.set_manifest(cells, plan.title, plan.published, plan.analyses, plan.stored, provisional)
    reported = execute(jobs, executor, wanted.suite, store.root, states, boards, events)
    computed = cells_of(jobs)
    # an earlier record of it is no result of now
    lost = {cell.stem for cell in computed if cell.key not in reported}
    if jobs:
        states = recorded(wanted.jobs, store)
    ended = {state.stem: state for state in states if state.stem not in lost}
    return failures_of(wanted.jobs, ended, {cell.stem for cell in computed})


def cells_of(jobs: Sequence[Any]) -> list[Any]:
    """Return the cells of all jobs."""
    return [cell for job in jobs for cell in job.cells]


def _print_stale(jobs: Sequence[Any], recorded: Collection[str], store: Any) -> None:
    """Print why cells that have an earlier record are computed anew."""
    from fedbench.core.run.resume import why_stale

    if lines := why_stale(jobs, recorded, store):
        say("\n  ".join([f"note: {lines[0]}", *lines[1:]]))


def plan_part(
    suite: str,
    overrides: tuple[str, ...],
    only: tuple[str, ...],
    results: Path | None = None,
    device: str = "auto",
    executor: str = LOCAL,
    seeds: int | None = None,
) -> tuple[Any, Any]:
    """Return the plan of a suite, and the part of it that ``only`` says, of the first ``seeds``.

    By default the part of a suite that a results folder stored is the one that was run.
    """
    from fedbench.core.store.stored_suites import only_of

    if seeds is not None and "seed" in parse_only(only):
        raise UserError("--seeds goes without --only seed=NAME")
    only = only or only_of(suite)
    parts = parse_only(only)
    plan = build_plan(suite, overrides, results, device, parts, executor)
    if seeds is not None:
        parts["seed"] = plan.first_seeds(seeds)
        only = tuple(f"{kind}={name}" for kind in parts for name in sorted(parts[kind]))
    plan = replace(plan, stored=replace(plan.stored, only=only))
    return plan, plan.only(**parts) if only else plan


def build_plan(
    suite: str,
    overrides: tuple[str, ...],
    results: Path | None,
    device: str,
    only: Mapping[str, set[str]] | None = None,
    executor: str = LOCAL,
) -> Any:
    """Return the plan of a suite, or of the settings in which something of ``only`` runs.

    Args:
        only: kind -> names.

    Raises:
        UserError: with every mistake found.
    """
    from fedbench.core.cli.machine import device_of
    from fedbench.core.process.ask import ask
    from fedbench.core.run.plan import plan_json, plan_of, settings_of_parts
    from fedbench.core.spec.resolve import load_and_check

    registry = Registry.discover()

    def plan() -> str:
        from fedbench.core.run.expand import Expansion

        loaded, resolved = load_and_check(suite, registry, overrides)
        settings = settings_of_parts(resolved, only or {})
        folder = _folder(loaded.spec.name, results)
        run_device = device_of(device, executor, loaded.spec.limits)
        expansion = Expansion(loaded, resolved, registry, folder, run_device)
        return plan_json(expansion.plan(settings))

    # plugin classes are imported and made there, never in the process that writes
    return plan_of(ask(plan))


def _folder(suite: str, results: Path | None) -> Path:
    parent = os.environ.get(RESULTS) or "results"
    return (results or Path(parent) / suite).absolute()


def _print_plan(plan: Any, folder: Path) -> None:
    from fedbench.core.run.resume import recorded
    from fedbench.core.store.results import Results

    store = Results(folder)
    cells = cells_of(plan.jobs)
    done = {state.stem for state in recorded(plan.jobs, store)}
    say(
        f"{plan.title}: {len(plan.jobs)} runs, {len(cells)} cells, {len(done)} of them recorded in "
        f"{folder}"
    )
    _print_stale(plan.jobs, done, store)
    wanted = [job for job in plan.jobs if not done.issuperset(cell.stem for cell in job.cells)]
    size = sum(plan.disk.get(job.stem, 0) for job in wanted)
    say(f"disk: about {size / 1e6:,.1f} MB for {len(wanted)} runs to do")
    say(f"attacks: {', '.join(dict.fromkeys(cell.attack.label for cell in cells))}")
    rows = []
    for job in plan.jobs:
        adversary = job.attacker.label if job.attacker else ""
        identity = (job.setting.name, job.coalition, job.defense.label, adversary, job.seed)
        rounds = job.setting.federation.rounds
        n_missing = sum(c.stem not in done for c in job.cells)
        rows.append((*identity, job.clients, rounds, len(job.targets), len(job.cells), n_missing))
    header = "setting,coalition,defense,adversary,seed,clients,rounds,targets,cells,to do"
    show_table(header.split(","), rows)


def execute(
    jobs: list[Any],
    executor: Any,
    suite: str,
    folder: Path,
    states: Sequence[Any],
    boards: ProvisionalBoards | None = None,
    events: Events | None = None,
) -> set[str]:
    """Compute the jobs under a display; return the keys of the cells that were reported as done.

    Args:
        states: of the cells that had a record before.
        boards: those to write after each seed.
        events: what hands them to listeners.
    """
    from rich.console import Console

    from fedbench.core.cli.progress import Display

    anew = {cell.stem for cell in cells_of(jobs)}
    n_before = sum(state.stem not in anew for state in states)
    display = Display(Console(soft_wrap=True, quiet=quiet()), jobs, suite)
    before = ""
    if n_before:
        before = f"; {n_before} of {n_before + display.cells} cells were done before"
    workers = getattr(executor, "workers", None) or "as many as fit"
    say(
        f"{suite}: {len(jobs)} runs with {display.cells} cells to compute, {workers} side by side "
        f"-> {folder}{before}"
    )
    again = "the same command goes on from here"
    try:
        with display, without_main(), boards or nullcontext():
            watcher = display.watcher()
            if events is not None:
                watcher = events.watching(watcher)
            if boards is not None:
                watcher = boards.watching(display, watcher)
            executor.execute(jobs, watcher)
    except KeyboardInterrupt:
        say(f"interrupted: {display.done} of {display.cells} cells are done and kept; {again}")
        raise
    except OSError as error:
        raise UserError(
            f"{error.filename or folder}: {error.strerror}; {display.done} of {display.cells} "
            f"cells are done and kept: make room, then {again}"
        ) from error
    return display.reported


@contextmanager
def without_main() -> Iterator[None]:
    """Hide the main module: multiprocessing would run a user's script again in every worker."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
