"""Progress of a plan's runs, bars with the time left on a terminal and plain lines in a log, and
the table of what failed.
"""

from __future__ import annotations

import io
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedbench.core.cli.output import cause, clipped, counted, say, show_table
from fedbench.core.run.executor import Watcher
from fedbench.core.run.job import Job
from fedbench.core.words import printable

_LOG_EVERY_S = 15.0
_DRAW_EVERY_S = 0.25


class Display(AbstractContextManager["Display"]):
    """Progress that an executor reports, drawn where it calls, without a thread."""

    def __init__(
        self,
        console: Console,
        jobs: Sequence[Job],
        title: str = "",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console = console
        self._now = now
        self.done = 0
        self.cells = sum(len(job.cells) for job in jobs)
        self.reported = set[str]()  # keys of cells with a new record
        self._outcomes = Counter[str]()
        self._causes = set[tuple[str, str]]()
        self._units = Counter[str]()  # rounds and cells that are done, by run
        self._ended = Counter[str]()  # cells, by run
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[state]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            auto_refresh=False,
            transient=True,
            speed_estimate_period=3600,
            get_time=now,
        )
        self._running: dict[str, TaskID] = {}
        self._total_task = self._bars.add_task(
            printable(title), total=sum(map(_n_units, jobs)), state=self._counts()
        )
        self._drawn = self._logged = now()

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self._bars.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self.console.is_terminal:
            self._bars.stop()
        elif self.cells:
            self._log("stopped" if self.done < self.cells else "done")

    @contextmanager
    def above(self) -> Iterator[None]:
        """Print the lines that are printed meanwhile above the bars."""
        with redirect_stdout(io.StringIO()) as text:
            yield
        for line in text.getvalue().splitlines():
            self._print(line)

    def watcher(self) -> Watcher:
        """Return the callbacks that the executor calls."""
        return Watcher(
            started=lambda job: self._show(job, "starting"),
            advanced=lambda job, round: self._show(
                job, f"round {round} of {job.setting.federation.rounds}", round
            ),
            judging=self._judging,
            cell=self._cell,
            traceback=lambda job, text: say(f"{job.title}: {text}", err=True),
            finished=self._finished,
            note=self._print,
            tick=self._tick,
        )

    def _show(self, job: Job, state: str, units: int | None = None) -> None:
        """Show the state of a run and, where it changed, how much of it is done."""
        key = job.run_key
        if key not in self._running:
            self._running[key] = self._bars.add_task(
                printable(job.title), total=_n_units(job), state=state
            )
        self._bars.update(self._running[key], state=state, completed=units)
        if units is not None:
            self._units[key] = units
            self._bars.update(self._total_task, state=self._counts(), completed=self._units.total())

    def _judging(self, job: Job, key: str) -> None:
        label = next(cell.attack.label for cell in job.cells if cell.key == key)
        self._show(job, f"attack {label}, {self._ended[job.run_key] + 1} of {len(job.cells)}")

    def _cell(self, job: Job, key: str, outcome: str, reason: str, by_adversary: bool) -> None:
        self.done += 1
        self.reported.add(key)
        self._ended[job.run_key] += 1
        if by_adversary:
            outcome += " as the adversary intended"
        if outcome != "ok":
            self._outcomes[counted(outcome)] += 1
            self._print_failure(job, key, outcome, reason)
        ended = self._ended[job.run_key]
        self._show(
            job, f"{ended} of {len(job.cells)} attacks", job.setting.federation.rounds + ended
        )

    def _print_failure(self, job: Job, key: str, outcome: str, reason: str) -> None:
        """Print the first failure of each cause."""
        kind = cause(outcome, reason)
        if kind in self._causes:
            return
        self._causes.add(kind)
        label = next(cell.attack.label for cell in job.cells if cell.key == key)
        place = f"records/{job.stem}.json"
        if job.log_path.exists():
            place += f" and logs/{job.log_path.name}"
        self._print(f"{outcome}: {job.title}, {label}: {clipped(reason, 300)}; see {place}")

    def _finished(self, job: Job) -> None:
        if job.run_key in self._running:
            self._bars.remove_task(self._running.pop(job.run_key))

    def _tick(self) -> None:
        now = self._now()
        if self.console.is_terminal:
            if now - self._drawn >= _DRAW_EVERY_S:
                self._draw()
        elif now - self._logged >= _LOG_EVERY_S:
            _, *runs = self._bars.tasks
            names = [f"{run.description} ({run.fields['state']})" for run in runs[:3]]
            if len(runs) > 3:
                names.append(f"{len(runs) - 3} more")
            self._log(f"running {', '.join(names) or 'nothing yet'}")

    def _counts(self) -> str:
        outcomes = [f"{n} {outcome}" for outcome, n in self._outcomes.items()]
        return ", ".join([f"{self.done}/{self.cells} cells", *outcomes])

    def _draw(self) -> None:
        self._drawn = self._now()
        self._bars.refresh()

    def _log(self, text: str) -> None:
        self._logged = self._now()
        total = self._bars.tasks[0]
        times = _clock(total.elapsed or 0)
        if total.time_remaining and self.done < self.cells:
            times += f", about {_clock(total.time_remaining)} left"
        self._print(f"[{self._counts()}; {times}] {text}")

    def _print(self, text: str) -> None:
        self.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def _n_units(job: Job) -> int:
    """Return the number of rounds and cells of a run."""
    return job.setting.federation.rounds + len(job.cells)


def _clock(seconds: float) -> str:
    """Return ``1:02:03``."""
    return str(timedelta(seconds=int(seconds)))


# --- failures ------------------------------------------------------------------------------------

_LOST = (
    "it has no new record: its process was ended, or the results folder was changed meanwhile; run "
    "the same command again"
)


@dataclass
class Failures:
    """Cells without a score."""

    causes: dict[tuple[str, str], list[tuple[str, ...]]] = field(default_factory=dict)
    """cause -> (outcome, run, attack, reason) of each"""
    counts: Counter[str] = field(default_factory=Counter)
    """number of those to try again, by outcome; ``lost``: without a record"""
    intended: int = 0
    """number of cells that an adversary made diverge"""
    complaints: Counter[str] = field(default_factory=Counter)
    """mistakes of plugins that cost no score"""

    def show(self, logs: Path) -> None:
        """Print a row a cause, and the counts."""
        if self.causes:
            show_table(
                ["cells", "outcome", "first run", "attack", "reason"],
                [(len(cells), *cells[0]) for cells in self.causes.values()],
                title="cells without a score",
                failure=True,
            )
        if self.complaints:
            complaints = [(n, clipped(text)) for text, n in sorted(self.complaints.items())]
            show_table(["cells", "complaint"], complaints, title="cost no score")
        if self.intended:
            say(
                f"{self.intended} cells diverged as the adversary inside intended: results, no "
                "failures"
            )
        if self.counts:
            place = f"; tracebacks are in {logs}" if any(logs.glob("*")) else ""
            counts = ", ".join(f"{n} {counted(outcome)}" for outcome, n in self.counts.items())
            say(
                f"cells without a score: {counts}. Fix the cause, then run again with --rerun "
                f"failed{place}",
                failure=True,
            )


def failures_of(
    jobs: Sequence[Any], ended: Mapping[str, Any], computed: Collection[str]
) -> Failures:
    """Return the cells without a score.

    Args:
        ended: stem -> state, of the cells with a record.
        computed: stems of the cells that were computed now.
    """
    failures = Failures()
    for job in jobs:
        for cell in job.cells:
            state = ended.get(cell.stem)
            outcome = "lost"
            reason = _LOST
            if state is not None:
                outcome = state.outcome
                reason = state.reason
                failures.complaints.update(state.complaints)
            elif cell.stem not in computed:
                continue
            if outcome == "ok":
                continue
            row = (outcome, job.title, cell.attack.label, clipped(reason))
            failures.causes.setdefault(cause(outcome, reason), []).append(row)
            if state is None or not state.is_result:
                failures.counts[outcome] += 1
            else:
                failures.intended += state.by_adversary
    return failures
