"""Progress of a plan's runs: a bar with the time left on a terminal, plain lines in a log."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from fedbench.core.cli.output import cause, clipped, counted, say
from fedbench.core.run.executor import Watcher
from fedbench.core.run.job import Job
from fedbench.core.words import printable

_LOG_EVERY_S = 15.0
_DRAW_EVERY_S = 0.25


class Display(AbstractContextManager["Display"]):
    """Shows what an executor reports. ``done``, ``cells``: cells with a record, and all. It has no
    thread: it is drawn where the executor calls it.
    """

    def __init__(
        self,
        console: Console,
        jobs: Sequence[Job],
        title: str = "",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console, self._now = console, now
        self.done, self.cells = 0, sum(len(job.cells) for job in jobs)
        self.reported = set[str]()  # keys of cells with a new record
        self._outcomes = Counter[str]()
        self._causes = set[tuple[str, str]]()
        self._running: dict[str, tuple[Job, str]] = {}
        self._units: dict[str, int] = {}  # rounds and cells that are done, by run
        self._ended = Counter[str]()  # cells, by run
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[counts]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            auto_refresh=False,
            speed_estimate_period=3600,
            get_time=now,
        )
        total = sum(job.setting.federation.rounds + len(job.cells) for job in jobs)
        self._task = self._bar.add_task(printable(title), total=total, counts="")
        self._live = (
            Live(console=console, auto_refresh=False, transient=True)
            if console.is_terminal
            else None
        )
        self._drawn = self._logged = now()

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
            self._draw()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live is not None:
            self._live.stop()
        elif self.cells:
            self._log("stopped" if self.done < self.cells else "done")

    def watcher(self) -> Watcher:
        """The callbacks the executor calls."""
        return Watcher(
            started=lambda job: self._state(job, "starting"),
            advanced=self._advanced,
            judging=self._judging,
            cell=self._cell,
            traceback=lambda job, text: say(f"{job.title}: {text}", err=True),
            finished=self._finished,
            note=self._print,
            tick=self._tick,
        )

    def _state(self, job: Job, state: str) -> None:
        self._running[job.run_key] = job, state

    def _advanced(self, job: Job, round: int) -> None:
        self._state(job, f"round {round} of {job.setting.federation.rounds}")
        self._units[job.run_key] = round
        self._update()

    def _judging(self, job: Job, key: str) -> None:
        label = next(cell.attack.label for cell in job.cells if cell.key == key)
        self._state(job, f"attack {label}, {self._ended[job.run_key] + 1} of {len(job.cells)}")

    def _cell(self, job: Job, key: str, outcome: str, reason: str, by_adversary: bool) -> None:
        self.done += 1
        self.reported.add(key)
        self._ended[job.run_key] += 1
        self._units[job.run_key] = job.setting.federation.rounds + self._ended[job.run_key]
        if outcome != "ok":
            self._outcomes["diverged as intended" if by_adversary else counted(outcome)] += 1
            self._failure(
                job,
                key,
                f"{outcome}, as the adversary intended" if by_adversary else outcome,
                reason,
            )
        self._update()

    def _failure(self, job: Job, key: str, outcome: str, reason: str) -> None:
        """A line; of many with one cause, the first."""
        if (about := cause(outcome, reason)) in self._causes:
            return
        self._causes.add(about)
        cell = next(cell for cell in job.cells if cell.key == key)
        log = job.log_path
        where = f"records/{job.stem}.json" + (f" and logs/{log.name}" if log.exists() else "")
        self._print(
            f"{outcome}: {job.title}, {cell.attack.label}: {clipped(reason, 300)}; see {where}"
        )

    def _finished(self, job: Job) -> None:
        self._running.pop(job.run_key, None)

    def _tick(self) -> None:
        if self._live is not None and self._now() - self._drawn >= _DRAW_EVERY_S:
            self._draw()
        if self._live is None and self._now() - self._logged >= _LOG_EVERY_S:
            names = [f"{job.title} ({state})" for job, state in self._running.values()]
            more = [f"{len(names) - 3} more"] if len(names) > 3 else []
            self._log(f"running {', '.join([*names[:3], *more]) or 'nothing yet'}")

    def _update(self) -> None:
        self._bar.update(self._task, completed=sum(self._units.values()), counts=self._counts())

    def _counts(self) -> str:
        return ", ".join(
            [
                f"{self.done}/{self.cells} cells",
                *(f"{n} {what}" for what, n in self._outcomes.items()),
            ]
        )

    def _draw(self) -> None:
        self._drawn = self._now()
        height = max(self.console.size.height - 4, 1)
        lines = [f"  {job.title}  {state}" for job, state in self._running.values()]
        shown = (
            lines
            if len(lines) <= height
            else [*lines[: height - 1], f"  and {len(lines) - height + 1} more"]
        )
        text = "\n".join(map(printable, shown))
        if self._live is not None:
            self._live.update(
                Group(self._bar, Text(text, no_wrap=True, overflow="ellipsis")), refresh=True
            )

    def _log(self, text: str) -> None:
        self._logged = self._now()
        task = self._bar.tasks[0]
        left = (
            f", about {_clock(task.time_remaining)} left"
            if task.time_remaining and self.done < self.cells
            else ""
        )
        self._print(f"[{self._counts()}; {_clock(task.elapsed or 0)}{left}] {text}")

    def _print(self, text: str) -> None:
        self.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def _clock(seconds: float) -> str:
    """``1:02:03``, ``2:03``."""
    minutes, rest = divmod(int(seconds), 60)
    return (
        f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
        if minutes >= 60
        else f"{minutes}:{rest:02d}"
    )
