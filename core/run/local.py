"""Runs side by side on this machine, each in its own session: a crash, a hang or a kill costs one
run.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from multiprocessing import Pipe, connection, forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Any, Protocol

import psutil

from fedbench.core.contract.errors import UserError
from fedbench.core.process.ask import ask
from fedbench.core.process.channel import Channel, Message
from fedbench.core.process.child import kill_session, kill_tree, open_standard_input
from fedbench.core.run.job import Job, job_json
from fedbench.core.words import describe_error

_TICK_S = 0.5
SILENCE_S = 300.0
"""a worker that neither sends a message nor uses the CPU for so long is ended; it sends one every
few seconds
"""
SAFE_PATH = "PYTHONSAFEPATH"
_UNKNOWN = 255  # multiprocessing's exit code where the fork server, which would know it, has ended


@dataclass(kw_only=True)
class Watcher:
    """Callbacks of a display, called in the process of the command."""

    started: Callable[[Job], None] = lambda job: None
    advanced: Callable[[Job, int], None] = lambda job, round: None
    judging: Callable[[Job, str], None] = lambda job, key: None
    """the attack of the cell with this key starts"""
    cell: Callable[[Job, str, str, str, bool], None] = (
        lambda job, key, outcome, reason, by_adversary: None
    )
    """a cell has a record"""
    traceback: Callable[[Job, str], None] = lambda job, text: None
    finished: Callable[[Job], None] = lambda job: None
    note: Callable[[str], None] = lambda text: None
    tick: Callable[[], None] = lambda: None


class Executor(Protocol):
    """Computes runs, each by ``worker.run_job``, so that every cell has its record in the results
    folder.
    """

    def execute(self, jobs: Iterable[Job], watcher: Watcher) -> None:
        """Compute every job. A failure of a component is recorded with its reason; a run that lost
        its process has no record. On an interrupt the work is stopped, and finished runs are kept.

        Raises ``OSError`` when the results folder cannot be written.
        """


@dataclass(frozen=True)
class LocalProcesses:
    """At most ``workers`` runs at a time on this machine."""

    workers: int

    def execute(self, jobs: Iterable[Job], watcher: Watcher) -> None:
        """See :class:`Executor`."""
        waiting, running = list(jobs), list[_Worker]()
        gpus = gpus_for(waiting)
        try:
            while waiting or running:
                while waiting and len(running) < self.workers:
                    running.append(
                        _Worker(placed(waiting.pop(0), [r.job for r in running], gpus), watcher)
                    )
                connection.wait(
                    [source for r in running for source in r.sources()], timeout=_TICK_S
                )
                for r in running:
                    r.listen()
                for r in [r for r in running if r.ended()]:
                    running.remove(r)
                    watcher.finished(r.job)
                watcher.tick()
        finally:
            for r in running:
                r.kill()


class _Worker:
    """The process of one run, as the command sees it."""

    def __init__(self, job: Job, watcher: Watcher) -> None:
        self.job, self.watcher = job, watcher
        mine, theirs = Pipe()
        self._process: Any = context().Process(
            target=_work, args=(job_json(job), theirs), daemon=True
        )
        start_early()
        try:
            self._process.start()
        except EOFError as error:
            raise UserError(
                "the process that workers are forked from ended; what is finished is kept, and the "
                "same command "
                "continues"
            ) from error
        theirs.close()
        self._channel = Channel(mine)
        self._complete, self._reason = False, ""
        self._heard, self._cpu = time.monotonic(), 0.0
        watcher.started(job)

    def sources(self) -> list[Any]:
        """What to wait for."""
        pipe = self._channel.connection
        return [self._process.sentinel, *([] if pipe.closed else [pipe])]

    def listen(self) -> None:
        """Hand on its messages; end it if it is silent."""
        pipe = self._channel.connection
        while not pipe.closed and pipe.poll():
            try:
                message = self._channel.receive()
            except (EOFError, OSError):
                pipe.close()
                break
            except Exception as error:  # bytes that are no message
                self._reason = f"what the worker sent cannot be read ({describe_error(error)})"
                self.kill()
                break
            self._take(message)
            self._heard, self._cpu = time.monotonic(), _cpu_of(self._process.pid)
        if time.monotonic() - self._heard > SILENCE_S and self._process.is_alive():
            used = _cpu_of(self._process.pid)
            if used <= self._cpu:
                self._reason = f"the worker gave no sign of life for {SILENCE_S:g} s"
                self.kill()
            self._heard, self._cpu = time.monotonic(), used

    def ended(self) -> bool:
        """Whether the run has ended. If its process died, no record is made of its cells: a fault
        of the machine is no result.
        """
        if self._process.is_alive():
            return False
        self.listen()
        if not self._complete:
            why = self._reason or self._death()
            self.watcher.note(
                f"{self.job.title}: {why}; the same command tries again what has no record"
            )
        self.kill()
        return True

    def kill(self) -> None:
        """The process and all its descendants."""
        if self._process.is_alive():  # the id of one that ended may belong to another process now
            kill_tree(self._process.pid)
        kill_session(self._process.pid)
        self._process.kill()  # where it has no session yet
        self._process.join()
        self._channel.connection.close()
        log = self.job.log_path
        if log.exists() and not log.stat().st_size:
            log.unlink()

    def _take(self, message: Message) -> None:
        if message.kind == "cell":
            self.watcher.cell(self.job, *message.value)
        elif message.kind == "stopped":
            self._reason = message.value
        elif message.kind == "done":
            self._complete = True
        elif message.kind in ("advanced", "judging", "traceback"):
            getattr(self.watcher, message.kind)(self.job, message.value)

    def _death(self) -> str:
        code = self._process.exitcode
        if code is not None and code < 0:
            hint = " - out of memory?" if -code == signal.SIGKILL else ""
            reason = f"the worker was killed by {signal.Signals(-code).name}{hint}"
        elif code == _UNKNOWN:
            reason = "the server that workers are forked from was ended, and the worker with it"
        else:
            reason = f"the worker, where no plugin's code runs, ended early with exit status {code}"
        log = self.job.log_path
        return f"{reason}; see logs/{log.name}" if log.exists() and log.stat().st_size else reason


def _cpu_of(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


# --- GPUs -----------------------------------------------------------------------------------------


def gpus_for(jobs: Iterable[Job]) -> tuple[str, ...]:
    """The GPUs that runs on ``cuda`` share: all of the first one's model, since another one could
    give other bits. None where no job asks for ``cuda``, or for a certain GPU. Looked up in a
    separate process: forks cannot use a CUDA that has started.
    """
    return tuple(ask(_alike)) if any(job.device == "cuda" for job in jobs) else ()


def placed(job: Job, running: Iterable[Job], gpus: Sequence[str]) -> Job:
    """The job on the GPU with the fewest runs; unchanged where it asks for a certain device."""
    if job.device != "cuda" or not gpus:
        return job
    busy = Counter(other.device for other in running)
    return replace(job, device=min(gpus, key=lambda gpu: busy[gpu]))


def _alike() -> list[str]:
    import torch

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return [f"cuda:{i}" for i, name in enumerate(names) if name == names[0]]


# --- the process that workers are forked from -----------------------------------------------------


def context() -> ForkServerContext:
    """Makes processes from the fork server, which imports for some seconds when the first of them
    starts it.
    """
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["fedbench.core.run.preload"])
    return made


def start_early() -> None:
    """Start the fork server now. Modules in the current folder do not shadow those that it imports."""
    open_standard_input()
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        context()
        forkserver.ensure_running()
    finally:
        del os.environ[SAFE_PATH]
        os.environ |= {} if before is None else {SAFE_PATH: before}


def _work(job: str, pipe: Connection) -> None:
    from fedbench.core.run.worker import worker_main  # the command does not import torch

    worker_main(job, Channel(pipe))
