"""Long work shows itself: a live display on a terminal, plain lines in a log."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from fedbench.core.cli.say import say
from fedbench.core.execution.executor import Watcher
from fedbench.core.experiment.job import Job
from fedbench.core.words.explain import printable

_LOG_EVERY_S = 15.0


class Display(AbstractContextManager):
    """Counts cells, names what runs, and says how long the rest will take."""

    def __init__(self, console: Console, cells: int, rounds: int) -> None:
        self.console, self.total, self.total_rounds = console, cells, rounds
        self.done, self.rounds_done, self.bad = 0, 0, 0
        self.began = self.last_line = time.monotonic()
        self.running: dict[str, tuple[Job, int]] = {}
        self.live = console.is_terminal
        self.progress = Progress(
            SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
            TimeElapsedColumn(), TextColumn("{task.fields[left]}"), console=console, transient=True,
        )  # fmt: skip
        self.overall = self.progress.add_task("cells", total=cells, left="")
        self.tasks: dict[str, Any] = {}

    def __enter__(self) -> Display:
        if self.live:
            self.progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self.live:
            self.progress.stop()

    def watcher(self) -> Watcher:
        """The callbacks the executor calls."""
        return Watcher(
            started=self._started, advanced=self._advanced, cell=self._cell, traceback=self._traceback,
            finished=self._finished, note=self._print, tick=self._tick,
        )  # fmt: skip

    def left(self) -> str:
        """Time left, from the rounds done so far; unknown before the first."""
        if not self.rounds_done:
            return "estimating"
        seconds = (time.monotonic() - self.began) * (self.total_rounds / self.rounds_done - 1)
        return f"{int(max(seconds, 0)) // 60}:{int(max(seconds, 0)) % 60:02d} left"

    def _started(self, job: Job) -> None:
        self.running[job.run_key] = (job, 0)
        if self.live:
            rounds = job.setting.federation.rounds
            self.tasks[job.run_key] = self.progress.add_task(f"  {printable(job.title)}", total=rounds, left="rounds")

    def _advanced(self, job: Job, round: int) -> None:
        self.rounds_done += round - self.running[job.run_key][1]
        self.running[job.run_key] = (job, round)
        if self.live:
            self.progress.update(self.tasks[job.run_key], completed=round)

    def _cell(self, job: Job, key: str, outcome: str, reason: str, by_adversary: bool = False) -> None:
        self.done += 1
        self.bad += outcome not in ("ok", "skipped") and not by_adversary
        if self.live:
            self.progress.update(self.overall, completed=self.done, left=self.left())
        if outcome != "ok":
            label = next(c.attack.label for c in job.cells if c.key == key)
            self._print(f"{outcome}: {job.title} {label}: {reason}")

    def _traceback(self, job: Job, text: str) -> None:
        say(f"{job.title}: {text}", err=True)

    def _finished(self, job: Job) -> None:
        self.rounds_done += job.setting.federation.rounds - self.running.pop(job.run_key)[1]
        if self.live:
            self.progress.remove_task(self.tasks.pop(job.run_key))
        else:
            self._line(f"finished {job.title}")

    def _tick(self) -> None:
        if self.live:
            self.progress.update(self.overall, left=self.left())
        elif time.monotonic() - self.last_line > _LOG_EVERY_S:
            now = ", ".join(f"{j.title} (round {r}/{j.setting.federation.rounds})" for j, r in self.running.values())
            self._line(f"running {now}")

    def _line(self, text: str) -> None:
        self.last_line = time.monotonic()
        bad = f", {self.bad} failed" if self.bad else ""
        self._print(f"[{self.done}/{self.total} cells{bad}, {self.left()}] {text}")

    def _print(self, text: str) -> None:
        """Names and reasons are other people's: nothing in them is markup or an order to the terminal."""
        self.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)
