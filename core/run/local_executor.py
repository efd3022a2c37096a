"""Runs side by side on this machine, each in its own session: a crash, a hang or a kill costs one
run.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from multiprocessing import Pipe, connection, forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Any

import psutil

from fedbench.core.contract.errors import UserError
from fedbench.core.process.ask import ask
from fedbench.core.process.channel import Channel, Message
from fedbench.core.process.child import exit_reason, kill_session, kill_tree, open_standard_input
from fedbench.core.run.executor import Watcher
from fedbench.core.run.job import Job, job_json
from fedbench.core.words import describe_error

_TICK_S = 0.5
SILENCE_S = 300.0
"""a worker that neither sends a message nor uses the CPU for so long is ended; it sends one every
few seconds
"""
SAFE_PATH = "PYTHONSAFEPATH"
_UNKNOWN = 255  # multiprocessing's exit code where the fork server, which would know it, has ended


@dataclass(frozen=True)
class LocalProcesses:
    """At most ``workers`` runs at a time on this machine; ``measured``: on GPUs as many of them as
    :class:`Places` finds.
    """

    workers: int
    measured: bool = False

    def execute(self, jobs: Iterable[Job], watcher: Watcher) -> None:
        """See :class:`fedbench.core.run.executor.Executor`."""
        waiting = list(jobs)
        running = list[_Worker]()
        gpus = gpus_for(waiting)
        on_gpus = any(job.device.startswith("cuda") for job in waiting)
        places = Places(self.workers, max(1, len(gpus))) if self.measured and on_gpus else None
        try:
            while waiting or running:
                limit = places.number if places else self.workers
                while waiting and len(running) < limit:
                    job = placed(waiting.pop(0), [worker.job for worker in running], gpus)
                    running.append(_Worker(job, watcher))
                sources = []
                for worker in running:
                    sources += worker.sources()
                connection.wait(sources, timeout=_TICK_S)
                for worker in list(running):
                    worker.listen()
                    if worker.ended():
                        running.remove(worker)
                        watcher.finished(worker.job)
                        if places and worker.memory:
                            places.ended(worker.rounds, *worker.memory)
                watcher.tick()
        finally:
            for worker in running:
                worker.kill()


class _Worker:
    """The process of one run, as the command sees it."""

    def __init__(self, job: Job, watcher: Watcher) -> None:
        self.job = job
        self.watcher = watcher
        receiver, sender = Pipe()
        self._process: Any = context().Process(
            target=_work, args=(job_json(job), sender), daemon=True
        )
        start_early()
        try:
            self._process.start()
        except EOFError as error:
            raise UserError(
                "the process that workers are forked from ended; what is finished is kept, and the "
                "same command continues"
            ) from error
        sender.close()
        self._channel = Channel(receiver)
        self._complete = False
        self._reason = ""
        self._heard = time.monotonic()
        self._cpu = 0.0
        self.rounds = 0
        self.memory: tuple[int, int] | None = None
        watcher.started(job)

    def sources(self) -> list[Any]:
        """Return what a wait for this process waits for."""
        pipe = self._channel.connection
        return [self._process.sentinel] if pipe.closed else [self._process.sentinel, pipe]

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
            self._heard = time.monotonic()
            self._cpu = _cpu_of(self._process.pid)
        if time.monotonic() - self._heard > SILENCE_S and self._process.is_alive():
            used = _cpu_of(self._process.pid)
            if used <= self._cpu:
                self._reason = f"the worker gave no sign of life for {SILENCE_S:g} s"
                self.kill()
            self._heard = time.monotonic()
            self._cpu = used

    def _take(self, message: Message) -> None:
        if message.kind == "cell":
            self.watcher.cell(self.job, *message.value)
        elif message.kind == "stopped":
            self._reason = message.value
        elif message.kind == "done":
            self._complete = True
        elif message.kind == "gpu memory":
            sizes = message.value  # which code of a plugin may have sent
            if len(sizes) == 2 and all(type(size) is int and size > 0 for size in sizes):
                self.memory = sizes[0], sizes[1]
        elif message.kind in ("measured", "advanced", "judging", "traceback"):
            self.rounds += message.kind == "advanced"
            getattr(self.watcher, message.kind)(self.job, message.value)

    def ended(self) -> bool:
        """Return whether the run has ended. If its process died, no record is made of its cells: a
        fault of the machine is no result.
        """
        if self._process.is_alive():
            return False
        self.listen()
        if not self._complete:
            reason = self._reason or self._death()
            self.watcher.note(
                f"{self.job.title}: {reason}; the same command tries again what has no record"
            )
        self.kill()
        return True

    def _death(self) -> str:
        code = self._process.exitcode
        if code == _UNKNOWN:
            reason = "the server that workers are forked from was ended, and the worker with it"
        elif code < 0:
            reason = f"the worker {exit_reason(code).removeprefix('it ')}"
        else:
            reason = f"the worker, where no plugin's code runs, ended early with exit status {code}"
        log = self.job.log_path
        return f"{reason}; see logs/{log.name}" if log.exists() and log.stat().st_size else reason

    def kill(self) -> None:
        """End the process and all its descendants."""
        if self._process.is_alive():  # the id of one that ended may belong to another process now
            kill_tree(self._process.pid)
        kill_session(self._process.pid)
        self._process.kill()  # where it has no session yet
        self._process.join()
        self._channel.connection.close()
        log = self.job.log_path
        if log.exists() and not log.stat().st_size:
            log.unlink()


def _cpu_of(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


# --- GPUs -----------------------------------------------------------------------------------------


_PAYS = 1.1  # times the rounds a second with which twice as many runs are worth it
_MOST_HELD = 0.9  # of a GPU's memory


class Places:
    """How many runs train at once on ``gpus`` GPUs, at most ``most``: one each, then twice as many
    whenever all of them have ended, while that paid the last time and the memory that the largest
    run held leaves room.
    """

    def __init__(self, most: int, gpus: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._gpus = gpus
        self._clock = clock
        self._each = 1
        self._best = 0.0
        self._held = 0.0
        self._settled = False
        self._restart()

    @property
    def number(self) -> int:
        """Runs at once."""
        return min(self._most, self._each * self._gpus)

    def ended(self, rounds: int, held: float, total: float) -> None:
        """Count a run that ended after these rounds, having held so many bytes of a GPU's."""
        self._rounds += rounds
        self._ended += 1
        self._held = max(self._held, held)
        room = max(1, int(_MOST_HELD * total / self._held))
        self._each = min(self._each, room)
        if self._settled or self._ended < self.number:
            return
        rate = self._rounds / max(self._clock() - self._began, 1e-9)
        if rate < _PAYS * self._best:
            self._each = max(1, self._each // 2)
            self._settled = True
        self._best = rate
        if not self._settled:
            self._each = min(2 * self._each, room)
        self._restart()

    def _restart(self) -> None:
        self._began = self._clock()
        self._rounds = self._ended = 0


def gpus_for(jobs: Iterable[Job]) -> tuple[str, ...]:
    """Return the GPUs that runs on ``cuda`` share: all of the first one's model, since another one
    could give other bits; none where no job asks for ``cuda``, or for a certain GPU.
    """
    if not any(job.device == "cuda" for job in jobs):
        return ()
    return tuple(ask(_gpus_of_one_model))  # in a process: forks cannot use a CUDA that has started


def _gpus_of_one_model() -> list[str]:
    import torch

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return [f"cuda:{i}" for i, name in enumerate(names) if name == names[0]]


def placed(job: Job, running: Iterable[Job], gpus: Sequence[str]) -> Job:
    """Return the job on the GPU with the fewest runs; unchanged where it asks for a certain one."""
    if job.device != "cuda" or not gpus:
        return job
    busy = Counter(neighbour.device for neighbour in running)
    return replace(job, device=min(gpus, key=lambda gpu: busy[gpu]))


# --- the process that workers are forked from -----------------------------------------------------


def context() -> ForkServerContext:
    """Return the maker of processes that are forked from the fork server, which imports for some
    seconds when the first of them starts it.
    """
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["fedbench.core.run.preload"])
    return server


def start_early() -> None:
    """Start the fork server now; modules in the current folder do not shadow those it imports."""
    open_standard_input()
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        context()
        forkserver.ensure_running()
    finally:
        del os.environ[SAFE_PATH]
        if before is not None:
            os.environ[SAFE_PATH] = before


def _work(job: str, pipe: Connection) -> None:
    from fedbench.core.run.worker import worker_main  # the command does not import torch

    worker_main(job, Channel(pipe))
