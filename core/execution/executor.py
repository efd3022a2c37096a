"""Who gets jobs computed: what the command line needs of an executor, and what an executor tells a display."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from fedbench.core.experiment.job import Job


@dataclass(kw_only=True)
class Watcher:
    """Callbacks of a display; each is called in the process that asked.

    A run that is lost and tried again, or whose rest goes on in another process, is ``finished`` and ``started`` anew.
    """

    started: Callable[[Job], None] = lambda job: None
    advanced: Callable[[Job, int], None] = lambda job, round: None
    judging: Callable[[Job, str], None] = lambda job, key: None
    """the attack of the cell of this key begins"""
    cell: Callable[[Job, str, str, str, bool, float | None], None] = lambda job, key, outcome, reason, by_adversary, auc: None
    """a cell's record is there; ``auc``: as :func:`fedbench.core.store.record.overall_auc` takes it"""
    traceback: Callable[[Job, str], None] = lambda job, text: None
    finished: Callable[[Job], None] = lambda job: None
    note: Callable[[str], None] = lambda text: None
    tick: Callable[[], None] = lambda: None


class Executor(Protocol):
    """Runs jobs somewhere, each by ``worker.run_job``, so that every cell has its record in the results folder."""

    def execute(self, jobs: Iterable[Job], watcher: Watcher) -> None:
        """Compute every job. What a plugin breaks is recorded with its reason; a run whose process dies has no record. On an
        interrupt the work is stopped, and finished runs are kept.

        Raises ``OSError`` when the results folder cannot be written.
        """
