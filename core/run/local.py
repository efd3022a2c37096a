"""Runs side by side, each in its own process group: a crash, a hang or a kill costs one run."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from multiprocessing import Pipe, connection, forkserver
from multiprocessing.context import ForkServerContext
from typing import Any, Protocol

from fedbench.core.process.ask import ask
from fedbench.core.run.job import Job
from fedbench.core.run.process import log_path
from fedbench.core.run.worker import child_main

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


# -- Who gets jobs computed: what the command line needs of an executor, and what an executor tells a display --


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


# -- Which GPU a run goes to, where a machine has several --


def gpus_for(jobs: Iterable[Job]) -> tuple[str, ...]:
    """The GPUs that runs on ``cuda`` share: all of the first one's model, since on another one they could have other bits. None
    where no job asks for ``cuda``, or for a certain GPU. Looked up in a process apart: CUDA, once started, is lost in forks."""
    return tuple(ask(_alike)) if any(job.device == "cuda" for job in jobs) else ()


def placed(job: Job, running: Iterable[Job], gpus: Sequence[str]) -> Job:
    """The job on the GPU with the fewest runs; as it is where it asks for a certain device."""
    if job.device != "cuda" or not gpus:
        return job
    busy = Counter(other.device for other in running)
    return replace(job, device=min(gpus, key=lambda gpu: busy[gpu]))


def _alike() -> list[str]:
    import torch

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return [f"cuda:{i}" for i, name in enumerate(names) if name == names[0]]


# -- The process that workers are forked from. It imports for some seconds, so it can be started while a suite is planned --


# Imported once by the server; importing starts no threads and touches no GPU.
_PRELOAD = [f"fedbench.core.run.{name}" for name in ("preload", "worker", "frozen")]


def context() -> ForkServerContext:
    """What makes processes from the server, which is started by the first of them unless it runs."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(_PRELOAD)
    return made


def start_early() -> None:
    """Have the server begin its imports now."""
    context()
    forkserver.ensure_running()
