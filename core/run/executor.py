"""Executors of runs: their contract."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from fedbench.core.run.job import Job


@dataclass(kw_only=True)
class Watcher:
    """Callbacks of a display, called in the process of the command."""

    started: Callable[[Job], None] = lambda job: None
    measured: Callable[[Job, list[Any]], None] = lambda job, numbers: None
    """accuracy and training loss of the round that is over next, where it is audited"""
    advanced: Callable[[Job, int], None] = lambda job, round: None
    judging: Callable[[Job, str], None] = lambda job, key: None
    """the attack of the cell with this key starts"""
    cell: Callable[[Job, str, str, str, bool], None] = (
        lambda job, key, outcome, reason, by_adversary: None
    )
    """a cell has a record"""
    traceback: Callable[[Job, str], None] = lambda job, text: None
    finished: Callable[[Job], None] = lambda job: None
    board: Callable[[str, dict[str, Any]], None] = lambda path, summary: None
    """a provisional board was written"""
    note: Callable[[str], None] = lambda text: None
    tick: Callable[[], None] = lambda: None


class Executor(Protocol):
    """Computes runs, each by ``worker.run_job``, so that every cell has its record in the results
    folder. An entry point of the group ``fedbench.executors`` gives its class.
    """

    workers: int | None
    """runs at a time; None: as many as fit"""

    def execute(self, jobs: Iterable[Job], watcher: Watcher) -> None:
        """Compute every job. A failure of a component is recorded with its reason; a run that lost
        its process has no record. On an interrupt the work is stopped, and finished runs are kept.

        Raises ``OSError`` when the results folder cannot be written.
        """
