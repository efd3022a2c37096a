"""Long work shows itself: a live display on a terminal, plain lines in a log."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from fedbench.core.cli import screen
from fedbench.core.cli.say import say
from fedbench.core.cli.tally import Tally
from fedbench.core.execution.executor import Watcher
from fedbench.core.experiment.job import Job
from fedbench.core.words.explain import printable

_LOG_EVERY_S = 15.0
_LOG_SELDOM_S = 2.0  # between lines of runs that finish
_STANDINGS_EVERY_S = 60.0
_LOG_COLUMNS = 100
_DRAW_EVERY_S = 0.25
_DRAW_SHARE = 20  # drawing takes one part of so many of the time, however slow the terminal
_MOST_ALIKE = 5  # lines of failures with one reason


class Display(AbstractContextManager["Display"]):
    """Shows a tally while an executor works. It has no thread: it is drawn where the executor calls it."""

    def __init__(
        self, console: Console, tally: Tally, title: str = "", now: Callable[[], float] = time.monotonic, live: bool | None = None
    ) -> None:
        self.console, self.tally, self.title, self._now = console, tally, title, now
        shown = console.is_terminal if live is None else live
        self._live = Live(console=console, auto_refresh=False, transient=True) if shown else None
        self._next = self._said = self._stood = now()
        self._alike = Counter[tuple[str, str]]()

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
            self._draw()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live is not None:
            self._live.stop()
        self.tally.running.clear()
        self._print_failures()
        if self._live is None and self.tally.cells:
            self._line("stopped" if self.tally.done < self.tally.cells else "done", standings=True)

    def watcher(self) -> Watcher:
        """The callbacks the executor calls."""
        return Watcher(
            started=self._started, advanced=self._advanced, judging=self._judging, cell=self._cell, traceback=self._traceback,
            finished=self._finished, note=self._print, tick=self._tick,
        )  # fmt: skip

    def _started(self, job: Job) -> None:
        self.tally.started(job, self._now())

    def _advanced(self, job: Job, round: int) -> None:
        self.tally.advanced(job, round, self._now())

    def _judging(self, job: Job, key: str) -> None:
        self.tally.judging(job, key, self._now())

    def _cell(self, job: Job, key: str, outcome: str, reason: str, by_adversary: bool = False, auc: float | None = None) -> None:
        self.tally.cell(job, key, outcome, reason, by_adversary, auc, self._now())

    def _traceback(self, job: Job, text: str) -> None:
        say(f"{job.title}: {text}", err=True)

    def _finished(self, job: Job) -> None:
        self.tally.finished(job, self._now())
        self._print_failures()
        if self._live is None and self._now() - self._said >= _LOG_SELDOM_S:
            self._line(f"finished {printable(job.title)}")

    def _tick(self) -> None:
        self._print_failures()
        if self._live is not None:
            self._draw()
        elif self._now() - self._said >= _LOG_EVERY_S:
            self._line(f"running {screen.running_words(list(self.tally.running.values()))}", standings=True)

    def _draw(self) -> None:
        """Four times a second at most, and seldom enough that it costs a twentieth of the time."""
        began = self._now()
        if self._live is None or began < self._next:
            return
        size = self.console.size
        shown = screen.lines(self.tally, self.title, began, size.width - 1, size.height)
        self._live.update(Text("\n".join(shown), no_wrap=True, overflow="crop"), refresh=True)
        self._next = began + max(_DRAW_EVERY_S, _DRAW_SHARE * (self._now() - began))

    def _line(self, text: str, standings: bool = False) -> None:
        self._said = self._now()
        self._print(screen.log_line(self.tally, self._said, text))
        if standings and self._said - self._stood >= _STANDINGS_EVERY_S:
            self._stood = self._said
            for line in screen.standing_lines(self.tally, _LOG_COLUMNS):
                self._print(line)

    def _print_failures(self) -> None:
        """A line each; of many with one reason, the first ones."""
        for failure in self.tally.failures(self._now()):
            alike = (failure.outcome, failure.reason)
            self._alike[alike] += 1
            if self._alike[alike] <= _MOST_ALIKE:
                self._print(screen.failure_line(failure))
            if self._alike[alike] == _MOST_ALIKE:
                self._print(f"  ({failure.outcome} for this reason: what follows is counted, not named)")

    def _print(self, text: str) -> None:
        """Names and reasons are other people's: nothing in them is markup or an order to the terminal."""
        self.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)
