"""Boards of the seeds that are finished, while the other seeds of a plan are computed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from fedbench.core.cli.leaderboard import write_report
from fedbench.core.cli.options import parse_only
from fedbench.core.cli.output import quiet, say, show_table
from fedbench.core.cli.progress import Display
from fedbench.core.process.ask import Answer, Question
from fedbench.core.registry.component import RegisteredComponent
from fedbench.core.run.executor import Watcher
from fedbench.core.run.job import Job
from fedbench.core.run.plan import Plan, seeds_of
from fedbench.core.run.resume import CellState, recorded
from fedbench.core.store.results import Provisional, Results
from fedbench.core.words import message_of, one_line

_MOST_ROWS = 40
"""rows of tables that are printed after a seed"""
_NICE = 10
"""of the process that makes a board: runs that share a core with it lose a tenth of it, and their
times can still be compared
"""


class ProvisionalBoards(AbstractContextManager["ProvisionalBoards"]):
    """Writes and prints the board after each seed but the last.

    A seed is finished when each of its runs has ended, with scores or without. One board is made
    at a time, in a process that training does not wait for; seeds that finish meanwhile are in the
    next one. One that is not complete when the last run ends is dropped for the final one.

    Args:
        seeds: those of the plan.
        unfinished: those of them with cells that have no record.
        pending: the jobs to compute.
    """

    def __init__(
        self,
        store: Results,
        report: RegisteredComponent,
        seeds: Sequence[int],
        unfinished: Collection[int],
        pending: Sequence[Job],
    ) -> None:
        self._store = store
        self._report = report
        self._seeds = seeds
        self._open = set(unfinished)
        self._runs_left = Counter(job.seed for job in pending if job.seed in self._open)
        self._due = False
        self._question: Question | None = None

    @property
    def state(self) -> Provisional | None:
        """The finished seeds, where others are not."""
        if not self._open:
            return None
        finished = [seed for seed in self._seeds if seed not in self._open]
        return Provisional(seeds=finished, of=len(self._seeds))

    def watching(self, display: Display, watcher: Watcher) -> Watcher:
        """Return the callbacks with those of this object after them."""

        def finished(job: Job) -> None:
            watcher.finished(job)
            self._finished(job)

        def tick() -> None:
            watcher.tick()
            if answer := self._answer():
                with display.above():
                    _show(answer)
                if answer.error is None:
                    watcher.board(*answer.value)

        return replace(watcher, finished=finished, tick=tick)

    def __enter__(self) -> ProvisionalBoards:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Drop the board that is being made. After the last run, count its seed as finished."""
        self._drop()
        if kind is None:
            self._open -= self._runs_left.keys()
            self._store.set_provisional(self.state)

    def _drop(self) -> None:
        if self._question is not None:
            self._question.end()
            self._question = None

    def _finished(self, job: Job) -> None:
        if job.seed not in self._open:
            return
        self._runs_left[job.seed] -= 1
        if self._runs_left[job.seed]:
            return
        self._open.remove(job.seed)
        self._store.set_provisional(self.state)
        self._due = any(self._runs_left.values()) and not quiet()

    def _answer(self) -> Answer | None:
        """Return the board that was made, if one was; begin the next one."""
        answer = self._question.answer() if self._question else None
        if answer is not None:
            self._drop()
        if self._due and self._question is None:
            self._due = False
            self._question = Question(self._write)
        return answer

    def _write(self) -> tuple[str, dict[str, Any]]:
        os.nice(_NICE)
        return write_report(self._report, self._store.root, plots=False)


def unfinished(plan: Plan, wanted: Plan, states: Sequence[CellState], store: Results) -> set[int]:
    """Return the seeds of a plan with cells that have no record; of the rows and attacks that were
    asked for.

    Args:
        wanted: the part of the plan that was asked for.
        states: of its cells that have a record.
    """
    parts = parse_only(plan.stored.only if plan.stored else ())
    parts.pop("seed", None)
    jobs = plan.only(**parts).jobs
    seeds = seeds_of(wanted.jobs)
    beside = recorded([job for job in jobs if job.seed not in seeds], store)
    stems = {state.stem for state in [*states, *beside]}
    return {job.seed for job in jobs if any(cell.stem not in stems for cell in job.cells)}


def _show(answer: Answer) -> None:
    """Print the first tables of a board, and its path."""
    if answer.error is not None:
        say(f"note: no provisional board: {one_line(message_of(answer.error))}")
        return
    path, summary = answer.value
    headings = summary["headings"]
    rows = summary["rows"]
    shown = len(rows)
    while shown > _MOST_ROWS and len(set(headings[:shown])) > 1:
        shown = headings.index(headings[shown - 1])  # without the last table
    show_table(summary["headers"], rows[:shown], headings=headings[:shown])
    if shown < len(rows):
        say(f"more tables, in the file: {len(set(headings[shown:]))}")
    say(f"board: {path}")
