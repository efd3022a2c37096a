"""`fedbench run`: train what is missing, judge it, write the board."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from fedbench.core.cli.leaderboard import reports_named, write_reports
from fedbench.core.cli.options import (
    ONLY,
    debug_and_quiet,
    overrides_option,
    parse_only,
    suite_argument,
)
from fedbench.core.cli.output import cause, clipped, counted, quiet, say, show_table
from fedbench.core.contract.errors import UserError
from fedbench.core.registry.discovery import of_leaderboard

if TYPE_CHECKING:
    from fedbench.core.run.local import Executor

_EPILOG = """\b
Examples:
  fedbench run partial_defense --dry-run
  fedbench run partial_defense
  fedbench run suites/partial_defense.yaml --set settings.0.federation.rounds=20 --set seeds=[0] --results /tmp/quick
  fedbench run partial_defense --only defense=none,defense=cofedmid,attack=fedmia-ii
  fedbench run partial_defense --executor ray --ray-address head:6379     runs on the machines of a Ray cluster
  fedbench run partial_defense --results /shared/partial --part 3/8       the third of eight jobs on one folder
  fedbench run partial_defense --verify 5                                 train five runs twice and compare

\b
The same command again computes what is missing and redoes nothing.
Exit status: 0 fine, 1 some cell failed or is not repeatable, 2 your mistake, 130 interrupted. A federation that an
adversary inside made diverge is a result: status 0."""

LOCAL, RAY = "local", "ray"
_MOST_PARTS = 100_000
_LOST = "it has no new record: its process was ended, or the results folder was changed meanwhile; run the same command again"


@click.command(epilog=_EPILOG)
@suite_argument
@overrides_option
@click.option(
    "--only",
    multiple=True,
    metavar="KIND=NAME,...",
    help=f"Run a part: {', '.join(ONLY)}. Several values of one kind add up. Does not change any "
    "key, and of settings "
    "without such a part no data have to be there. By default all; of a suite that a results "
    "folder stored, the "
    "part that was run.",
)
@click.option(
    "--results", type=click.Path(path_type=Path), help="Results folder.  [default: results/<suite>]"
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    help="Runs side by side, one thread each; same results.  "
    "[default: the cores; with ray, as many as fit]",
)
@click.option(
    "--device",
    default="auto",
    show_default=True,
    help="auto, cpu, cuda or cuda:N; with ray, auto is cuda where limits.gpus is above 0.",
)
@click.option(
    "--executor",
    type=click.Choice([LOCAL, RAY]),
    default=LOCAL,
    show_default=True,
    help="The executor of the runs: this machine, or a Ray cluster (pip install "
    "'fedbench-privacy[ray]'), where each "
    "takes limits.cpus, limits.gpus and limits.memory_gb of a node; same results.",
)
@click.option(
    "--ray-address",
    metavar="HOST:PORT",
    help="The cluster's head; auto: one on this machine.  [default: RAY_ADDRESS, else a cluster "
    "that runs here, else "
    "one for this command alone]",
)
@click.option(
    "--part",
    metavar="I/N",
    help="Run part I of N, every N-th run: jobs of a scheduler share a results folder, or have one "
    "each. The "
    "part that finishes last writes the board.",
)
@click.option(
    "--rerun",
    type=click.Choice(["missing", "failed", "always", "never"]),
    default="missing",
    show_default=True,
    help="Which cells to compute: those without a record, also failed ones, all of them again, or "
    "none.",
)
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
    "the board marks "
    "rows that are not repeatable.",
)
@click.option(
    "--plots/--no-plots",
    default=True,
    show_default=True,
    help="Draw ROC curves and trade-offs beside the board.",
)
@debug_and_quiet
def command(**asked: Any) -> None:
    """Train every defense x setting x seed of SUITE once, let every attack judge it, write the
    leaderboard.

    SUITE is a file, or the name of a shipped suite (`fedbench list suites`).
    """
    _, complete = run_suite(**asked)
    if not complete:
        sys.exit(1)


def run_suite(
    suite: str,
    overrides: tuple[str, ...] = (),
    only: tuple[str, ...] = (),
    results: Path | None = None,
    *,
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
    """Compute what is missing of a suite and write its board, as the options of `fedbench run` say.
    Prints what it does.

    Returns (the results folder, whether no cell failed and those verified are repeatable). Raises
    ``UserError``.
    """
    from fedbench.core.run.local import start_early

    share = parse_part(part)
    if ray_address is not None and executor != RAY:
        raise UserError("--ray-address goes with --executor ray")
    if not dry_run and executor == LOCAL:
        start_early()  # it imports while the suite is planned
    from fedbench.core.store.results import Results

    plan, whole = plan_part(suite, overrides, only, results, device, executor)
    if not only and plan.stored.only:
        said = " --only ".join(plan.stored.only)
        say(
            f"note: the part that was run of this stored suite: --only {said}; a copy of the file "
            "elsewhere runs whole"
        )
    wanted = whole.part(*share) if share else whole
    folder = _folder(plan.suite, results)
    for note in plan.notes:
        say(f"note: {clipped(note, 10_000)}")
    if share:
        say(f"part {part}: {len(wanted.jobs)} of {len(whole.jobs)} runs")
    if dry_run:
        _print_plan(wanted, folder)
        return folder, True
    reports = reports_named()  # before hours of training
    store = Results.create(folder, plan.suite)
    with store.lock(share):
        if not share:  # temporary files of other parts stay
            store.sweep()
        runs_on = executor_of(executor, workers, ray_address)
        failures = _compute(plan, wanted, store, rerun, runs_on)
        repeatable = verify is None or of_leaderboard("verify")(
            folder, wanted.jobs, verify, runs_on
        )
        missing = (
            sum(len(job.cells) for job in whole.jobs if not store.path(job.stem).exists())
            if share
            else 0
        )
        # of many cells they are large, and a board is made in a copy of this process
        del plan, whole, wanted
        if missing:
            say(
                f"{missing} cells of other parts have no record yet: the part that finishes last "
                "writes the board"
            )
        elif any(store.records.glob("*.json")):
            write_reports(folder, reports, plots)
        failures.show(store.logs)
        return folder, not failures.counts and repeatable


def _compute(plan: Any, wanted: Any, store: Any, rerun: str, executor: Any) -> _Failures:
    """Compute what is missing of ``wanted``, or asked for again."""
    from fedbench.core.run.plan import seed_by_seed
    from fedbench.core.run.resume import other_cpus, pending, recorded

    found = recorded(wanted.jobs, store)
    jobs = seed_by_seed(pending(wanted.jobs, found, rerun))
    # records of one key agree bit by bit on one type of CPU only
    if others := other_cpus(wanted.jobs, found):
        what = (
            "what is computed now may differ from them in the last digits"
            if jobs
            else "nothing is computed anew"
        )
        say(
            f"note: some of these records were made on another type of CPU ({'; '.join(others)}): "
            f"{what}, and the board says "
            "so. For the same bits throughout use one type of CPU, or --rerun always here"
        )
    _print_stale(jobs, {state.stem for state in found}, store)
    store.set_manifest(
        plan.and_left_out(store.marker()["cells"]),
        plan.title,
        plan.published,
        plan.analyses,
        plan.stored,
    )
    reported = execute(jobs, executor, wanted.suite, store.root, found)
    # its earlier record is no result of now
    lost = {cell.stem for job in jobs for cell in job.cells if cell.key not in reported}
    states = recorded(wanted.jobs, store) if jobs else found
    ended = {state.stem: state for state in states if state.stem not in lost}
    return failures_of(wanted.jobs, ended, {cell.stem for job in jobs for cell in job.cells})


def _print_stale(jobs: Sequence[Any], found: Collection[str], store: Any) -> None:
    """Print why cells that have an earlier record are computed anew. ``found``: the names of those
    that have a record.
    """
    from fedbench.core.run.resume import why_stale

    if lines := why_stale(jobs, found, store):
        say("\n  ".join([f"note: {lines[0]}", *lines[1:]]))


def plan_part(
    suite: str,
    overrides: tuple[str, ...],
    only: tuple[str, ...],
    results: Path | None = None,
    device: str = "auto",
    executor: str = LOCAL,
) -> tuple[Any, Any]:
    """(the plan of a suite, the part of it that ``only`` says); of a suite that a results folder
    stored, by default the part that was run. Raises ``UserError``.
    """
    from fedbench.core.store.stored_suites import only_of

    only = only or only_of(suite)
    parts = parse_only(only)
    plan = build_plan(suite, overrides, results, device, parts, executor)
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
    """The plan of a suite, or of those of its settings in which something of ``only`` (kind ->
    names) runs; raises ``UserError`` with every mistake found.
    """
    from fedbench.core.process.ask import ask
    from fedbench.core.registry.components import Registry
    from fedbench.core.run.plan import plan_json, plan_of, settings_of_parts
    from fedbench.core.spec.resolve import load_and_check

    registry = Registry.discover()

    def plan() -> str:
        from fedbench.core.run.expand import make_plan

        loaded, resolved = load_and_check(suite, registry, overrides)
        settings = settings_of_parts(resolved, only or {})
        where = device_of(device, executor, loaded.spec.limits)
        return plan_json(
            make_plan(
                loaded, resolved, registry, _folder(loaded.spec.name, results), where, settings
            )
        )

    # other people's classes are imported and made there, never in the process that writes
    return plan_of(ask(plan))


def _folder(suite: str, results: Path | None) -> Path:
    return (results or Path("results") / suite).absolute()


def _print_plan(plan: Any, folder: Path) -> None:
    from fedbench.core.run.resume import recorded
    from fedbench.core.store.results import Results

    store = Results(folder)
    cells = [c for job in plan.jobs for c in job.cells]
    done = {state.stem for state in recorded(plan.jobs, store)}
    say(
        f"{plan.title}: {len(plan.jobs)} runs, {len(cells)} cells, {len(done)} of them recorded in "
        f"{folder}"
    )
    _print_stale(plan.jobs, done, store)
    say(f"attacks: {', '.join(dict.fromkeys(c.attack.label for c in cells))}")
    for line in dict.fromkeys(
        f"coalition {j.coalition} of {j.setting.name}: {j.members_text}"
        for j in plan.jobs
        if j.coalitions
    ):
        say(clipped(line, 10_000))
    show_table(
        [
            "setting",
            "coalition",
            "defense",
            "adversary",
            "seed",
            "clients",
            "rounds",
            "targets",
            "cells",
            "to do",
        ],
        [
            (
                j.setting.name,
                j.coalition,
                j.defense.label,
                j.attacker.label if j.attacker else "",
                j.seed,
                j.clients,
                j.setting.federation.rounds,
                len(j.targets),
                len(j.cells),
                sum(c.stem not in done for c in j.cells),
            )
            for j in plan.jobs
        ],
    )


def execute(
    jobs: list[Any], executor: Any, suite: str, folder: Path, found: Sequence[Any]
) -> set[str]:
    """Returns the keys of the cells that were reported as done."""
    from rich.console import Console

    from fedbench.core.cli.progress import Display

    anew = {cell.stem for job in jobs for cell in job.cells}
    kept = sum(state.stem not in anew for state in found)
    display = Display(Console(soft_wrap=True, quiet=quiet()), jobs, suite)
    before = f"; {kept} of {kept + display.cells} cells were done before" if kept else ""
    say(
        f"{suite}: {len(jobs)} runs with {display.cells} cells to compute, "
        f"{side_by_side(executor)} -> {folder}{before}"
    )
    done = "cells are done and kept"
    try:
        with display, without_main():
            executor.execute(jobs, display.watcher())
    except KeyboardInterrupt:
        say(
            f"interrupted: {display.done} of {display.cells} {done}; the same command goes on from "
            "here"
        )
        raise
    except OSError as error:
        raise UserError(
            f"{error.filename or folder}: {error.strerror}; {display.done} of {display.cells} "
            f"{done}: make room, then the same "
            "command goes on from here"
        ) from error
    return display.reported


@contextmanager
def without_main() -> Iterator[None]:
    """Hide the module that was started: multiprocessing would run a user's script again in every
    worker.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@dataclass
class _Failures:
    """Cells without a score by cause: (outcome, run, attack, reason) of each. ``counts``: those to
    try again by outcome, with ``lost`` for no record; ``intended``: cells that an adversary made
    diverge; ``complaints``: mistakes of plugins that cost no score.
    """

    causes: dict[tuple[str, str], list[tuple[str, ...]]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    intended: int = 0
    complaints: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: str, job: Any, cell: Any, reason: str) -> None:
        """A cell without a score."""
        self.causes.setdefault(cause(outcome, reason), []).append(
            (outcome, job.title, cell.attack.label, clipped(reason))
        )

    def show(self, logs: Path) -> None:
        """Print a row a cause."""
        if self.causes:
            rows = [(len(alike), *alike[0]) for alike in self.causes.values()]
            show_table(
                ["cells", "outcome", "first run", "attack", "reason"],
                rows,
                title="cells without a score",
                failure=True,
            )
        if self.complaints:
            found = [(n, clipped(c)) for c, n in sorted(self.complaints.items())]
            show_table(["cells", "complaint"], found, title="cost no score")
        if self.intended:
            say(
                f"{self.intended} cells diverged as the adversary inside intended: results, no "
                "failures"
            )
        if self.counts:
            where = f"; tracebacks are in {logs}" if logs.exists() and any(logs.iterdir()) else ""
            counts = ", ".join(f"{n} {counted(outcome)}" for outcome, n in self.counts.items())
            say(
                f"cells without a score: {counts}. Fix the cause, then run again with --rerun "
                f"failed{where}",
                failure=True,
            )


def failures_of(
    jobs: Sequence[Any], ended: Mapping[str, Any], computed: Collection[str]
) -> _Failures:
    found = _Failures()
    for job, cell in ((one, cell) for one in jobs for cell in one.cells):
        state = ended.get(cell.stem)
        if state is None and cell.stem in computed:
            found.add("lost", job, cell, _LOST)
            found.counts["lost"] += 1
        elif state is not None:
            found.complaints.update(state.complaints)
            if state.outcome != "ok":
                found.add(state.outcome, job, cell, state.reason)
                found.counts.update([] if state.is_result else [state.outcome])
                found.intended += state.by_adversary
    return found


# -- executor, device and part of a plan -----------------------------------------------------------


def executor_of(name: str, workers: int | None, address: str | None) -> Executor:
    """The executor of this name."""
    if name == RAY:
        from fedbench.core.run.ray_executor import RayExecutor

        return RayExecutor(address, workers)
    from fedbench.core.cli.machine import usable_cores
    from fedbench.core.run.local import LocalProcesses

    return LocalProcesses(workers or usable_cores())


def side_by_side(executor: Executor) -> str:
    """The number of runs at a time, in words."""
    workers = getattr(executor, "workers", None)
    return f"{workers} side by side" if workers else "as many side by side as fit on the cluster"


def device_of(wanted: str, executor: str, limits: Any) -> str:
    """The device of a plan: that of this machine, or the one that every run gets of its node.
    Raises ``UserError``.
    """
    if executor == RAY:
        return _device_of_nodes(wanted, limits.gpus)
    import torch

    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    device = _parsed(wanted)
    if device.type == "cuda" and (
        not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()
    ):
        raise UserError(
            f"--device {wanted}: this machine has {torch.cuda.device_count()} CUDA devices; use "
            "--device cpu"
        )
    return "cpu" if device.type == "cpu" else wanted


def _device_of_nodes(wanted: str, gpus: float) -> str:
    if wanted == "auto":
        return "cuda" if gpus else "cpu"
    device = _parsed(wanted)
    if device.index is not None:
        raise UserError(
            f"--device {wanted}: Ray gives every run a GPU of its node; write --device cuda"
        )
    if device.type == "cuda" and not gpus:
        raise UserError(
            "--device cuda: the suite asks for no GPU; add --set limits.gpus=1, or a fraction of "
            "one"
        )
    return device.type


def _parsed(wanted: str) -> Any:
    import torch

    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise UserError(
            f"--device {wanted}: not a device; use auto, cpu, cuda or cuda:N"
        ) from error
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"--device {wanted}: only cpu and cuda are supported")
    return device


def parse_part(text: str | None) -> tuple[int, int] | None:
    """``I/N`` as numbers; raises ``UserError`` for another form and for a part that there is not."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
    if found is None:
        raise UserError(f"--part {text}: expected I/N, for example 2/8: the second of eight parts")
    i, n = int(found[1]), int(found[2])
    if not 1 <= i <= n <= _MOST_PARTS:
        raise UserError(
            f"--part {text}: there is no such part; I goes from 1 to N, and N is {_MOST_PARTS:,} "
            "at most"
        )
    return i, n
