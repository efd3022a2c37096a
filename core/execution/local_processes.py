"""Runs side by side, each in its own process group: a crash, a hang or a kill costs one run."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing import Pipe, connection
from typing import Any

from fedbench.core.execution.devices import gpus_for, placed
from fedbench.core.execution.executor import Watcher
from fedbench.core.execution.server import context
from fedbench.core.execution.worker import child_main
from fedbench.core.experiment.job import Job
from fedbench.core.experiment.process import log_path

_TICK_S = 0.5
_UNKNOWN = 255  # what multiprocessing says where the server is gone that would know how its worker ended


@dataclass(kw_only=True)
class _Running:
    job: Job
    process: Any
    pipe: Any
    complete: bool = False
    why: str = ""
    """what kept it from going on, in its own words"""


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
    return _Running(job=job, process=process, pipe=mine)


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
        watcher.cell(r.job, *what)
    elif kind == "traceback":
        watcher.traceback(r.job, what)
    elif kind == "judging":
        watcher.judging(r.job, what)
    elif kind == "stopped":
        r.why = what
    elif kind == "done":
        r.complete = True


def _over(r: _Running, watcher: Watcher) -> bool:
    """Whether this run has ended. If its process died, it has no record: that is a fault of the machine, not a result."""
    if r.process.is_alive():
        return False
    _drain(r, watcher)
    if not r.complete:
        watcher.note(f"{r.job.title}: {r.why or _death(r)}; it has no record, and the same command tries it again")
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


def _kill(r: _Running) -> None:
    for how in (lambda: os.killpg(r.process.pid, signal.SIGKILL), r.process.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            how()
    r.process.join()
    r.pipe.close()
    log = log_path(r.job)
    if log.exists() and not log.stat().st_size:
        log.unlink()
