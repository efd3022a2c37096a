"""Runs side by side, each in its own process group: a crash, a hang or a kill costs one run."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe, connection
from pathlib import Path
from typing import Any

from fedbench.core.execution.clock import Clock
from fedbench.core.execution.devices import gpus_for, placed
from fedbench.core.execution.executor import Watcher
from fedbench.core.execution.server import context
from fedbench.core.execution.worker import child_main, record_for
from fedbench.core.experiment.job import Cell, Job
from fedbench.core.experiment.process import log_path
from fedbench.core.store.record import Outcome
from fedbench.core.store.results import Results

_TICK_S = 0.5
_UNKNOWN = 255  # what multiprocessing says where the server is gone that would know how its worker ended


@dataclass(kw_only=True)
class _Running:
    job: Job
    process: Any
    pipe: Any
    clock: Clock
    done: set[str] = field(default_factory=set)
    judging: str | None = None
    """key of the cell whose attack is at work"""
    analysing: bool = False
    """whether that attack is done and the suite's analyses are asked"""
    complete: bool = False
    why: str = ""
    """what kept it from going on, in its own words"""

    def undone(self) -> list[Cell]:
        """The cells without a record."""
        return [c for c in self.job.cells if c.key not in self.done]


@dataclass(frozen=True)
class LocalProcesses:
    """At most ``workers`` runs at a time on this machine."""

    workers: int

    def execute(self, jobs: Iterable[Job], watcher: Watcher) -> None:
        """See :class:`Executor`."""
        waiting, running = list(jobs), list[_Running]()
        gpus = gpus_for(waiting)
        try:
            while waiting or running:
                while waiting and len(running) < self.workers:
                    running.append(_start(placed(waiting.pop(0), [r.job for r in running], gpus), watcher))
                _listen(running, watcher)
                for r in [r for r in running if _over(r, watcher)]:
                    running.remove(r)
                    watcher.finished(r.job)
                    if rest := r.undone():  # an attack took its process with it; the training is in the cache
                        waiting.insert(0, replace(r.job, cells=tuple(rest)))
                watcher.tick()
        finally:
            for r in running:
                _kill(r)


def _start(job: Job, watcher: Watcher) -> _Running:
    mine, theirs = Pipe(duplex=False)
    process = context().Process(target=child_main, args=(job, theirs), daemon=True)
    process.start()
    theirs.close()
    watcher.started(job)
    return _Running(job=job, process=process, pipe=mine, clock=Clock.start())


def _listen(running: list[_Running], watcher: Watcher) -> None:
    """Wait a moment for news; hand it on."""
    sources = [r.pipe for r in running if not r.pipe.closed] + [r.process.sentinel for r in running]
    ready = connection.wait(sources, timeout=_TICK_S)
    for r in running:
        if r.pipe in ready:
            _drain(r, watcher)


def _drain(r: _Running, watcher: Watcher) -> None:
    while not r.pipe.closed:
        try:
            if not r.pipe.poll():
                return
            kind, what = r.pipe.recv()
        except (EOFError, OSError):
            r.pipe.close()
        else:
            _hand_on(r, kind, what, watcher)


def _hand_on(r: _Running, kind: str, what: Any, watcher: Watcher) -> None:
    if kind == "round":
        watcher.advanced(r.job, what)
    elif kind == "cell":
        r.done.add(what[0])
        watcher.cell(r.job, *what)
    elif kind == "traceback":
        watcher.traceback(r.job, what)
    elif kind == "judging":
        r.judging, r.analysing = what, False
        watcher.judging(r.job, what)
    elif kind == "analysing":
        r.analysing = True
    elif kind == "stopped":
        r.why = what
    else:
        r.complete = True


def _over(r: _Running, watcher: Watcher) -> bool:
    """Whether this run has ended; what it leaves undone is recorded with the reason, or ``OSError`` raised where that cannot be.

    The worker itself watches what it forks. Where an attack was at work and took the worker with it, only its cell is
    recorded; the run's other cells stay undone.
    """
    if r.process.is_alive():
        return False
    _drain(r, watcher)
    if not r.complete:
        _blame(r, "failed", r.why or _death(r), watcher)
    _kill(r)  # reaps the process, and whatever a plugin left running in its group
    return True


def _death(r: _Running) -> str:
    code = r.process.exitcode
    if code is not None and code < 0:
        hint = " - out of memory?" if -code == signal.SIGKILL else ""
        reason = f"the worker was killed by {signal.Signals(-code).name}{hint}"
    elif code == _UNKNOWN:
        reason = "the server that workers are forked from was ended, and the worker with it"
    else:
        reason = f"the worker, where no plugin's code runs, ended early with exit status {code}"
    log = log_path(r.job)
    return f"{reason}; see logs/{log.name}" if log.exists() and log.stat().st_size else reason


def _blame(r: _Running, outcome: Outcome, reason: str, watcher: Watcher) -> None:
    results, undone = Results(Path(r.job.results)), r.undone()
    reason += "; the suite's analyses were at work, not the attack" if r.analysing else ""
    for cell in [c for c in undone if c.key == r.judging] or undone:
        results.write(cell.stem, record_for(r.job, cell, outcome, reason, r.clock.outside()))
        r.done.add(cell.key)
        watcher.cell(r.job, cell.key, outcome, reason, False, None)


def _kill(r: _Running) -> None:
    for how in (lambda: os.killpg(r.process.pid, signal.SIGKILL), r.process.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            how()
    r.process.join()
    r.pipe.close()
    log = log_path(r.job)
    if log.exists() and not log.stat().st_size:
        log.unlink()
