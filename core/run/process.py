"""The processes of a run: session, output, memory limit, global state that plugins can change."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import random
import resource
import sys
import warnings
from multiprocessing import connection
from pathlib import Path
from typing import Any

from fedbench.core.contract.errors import Diverged, SkipCell, UserError
from fedbench.core.federation.guard import PhaseError
from fedbench.core.numerics.rng import key_for
from fedbench.core.process.channel import Channel, in_fork, trace
from fedbench.core.process.child import (
    adopt_orphans,
    close_descriptors,
    end_children,
    kill_session,
    kill_tree,
    no_input,
)
from fedbench.core.run.job import Job
from fedbench.core.signals.probes import SignalError
from fedbench.core.words import DEBUG, debugging, describe_error, full_traceback

_MOST_LOG_BYTES = 8 << 20
# unless another exception caused them
_SAY_ALL = (UserError, SkipCell, Diverged, PhaseError, SignalError)
_guard = 0  # the process that ends this worker's group with the command
_logging = False  # whether this process's output goes to a log


def become_worker(job: Job, channel: Channel) -> None:
    """Start a session without a terminal, which ends when the command ends; write output to the
    run's log, read nothing. Of the descriptors only ``channel`` stays: a plugin's process can open
    this one's pipes to multiprocessing through /proc.
    """
    global _guard
    os.setsid()
    no_input()
    _guard = _end_with_command()
    close_descriptors(channel.connection.fileno())
    adopt_orphans()
    os.environ[DEBUG] = "1" if job.debug else "0"
    _write_to(job.log_path)
    settle(job, "start")  # one thread: forks could not use the others


def prepare_fork(job: Job) -> None:
    """Prepare for plugin code: deterministic kernels, float32, the suite's limit of memory."""
    # cuBLAS is deterministic only with it
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # attacks are shown such arrays
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    settle(job, "start")
    if job.limits.memory_gb:
        limit = int(job.limits.memory_gb * 2**30)
        before = resource.getrlimit(resource.RLIMIT_DATA)[1]
        if before != resource.RLIM_INFINITY:
            limit = min(limit, before)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def settle(job: Job, purpose: str) -> None:
    """Reset the process's global state: what one plugin changed never reaches the next.

    The harness draws nothing from the global generators. They are keyed so that a plugin that does
    is repeatable, whatever ran before it.
    """
    import numpy as np
    import torch

    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_grad_enabled(True)
    # use_deterministic_algorithms would import the compiler: two seconds a run
    torch.set_deterministic_debug_mode("error")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    key = key_for(job.seed, f"global generators/{purpose}")
    random.seed(key)
    np.random.seed(key % 2**32)
    torch.manual_seed(key >> 1)


def log_failure(error: BaseException) -> None:
    """Write the traceback of plugin code's exception to the log and, for debugging, to the command.

    It does nothing for an error of which the message says all, and outside a fork for plugin code.
    """
    if not in_fork() or (isinstance(error, _SAY_ALL) and error.__cause__ is None):
        return
    text = f"{describe_error(error)}\n{full_traceback(error)}"
    print(text, file=sys.stderr, flush=True)
    if debugging():
        trace(text)


def keep_log_short() -> None:
    """Truncate the log, with a note, if a plugin prints too much; without a log do nothing."""
    if _logging and os.fstat(1).st_size > _MOST_LOG_BYTES:
        os.ftruncate(1, 0)
        size = f"{_MOST_LOG_BYTES >> 20} MiB"
        os.write(1, f"[more than {size} were written here; what came before is gone]\n".encode())


def _write_to(path: Path) -> None:
    global _logging
    path.parent.mkdir(parents=True, exist_ok=True)  # the results folder may have been deleted
    with open(path, "ab") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    for text in (sys.stdout, sys.stderr):
        text.reconfigure(errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable()
    _logging = True


def end_strays() -> None:
    """End all processes that plugins left running, which would take CPU time from later ones;
    outside a worker do nothing.
    """
    if _guard:
        end_children(but=_guard)


def _end_with_command() -> int:
    """Fork a process that waits for the end of the command, then ends this session. Returns its id.

    A thread could not do that while a plugin holds the interpreter's lock.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return 0
    worker = os.getpid()
    if pid := os.fork():
        return pid
    try:
        sentinel: Any = parent.sentinel
        # the pipe to the command too: its end tells the command that the worker ended
        close_descriptors(sentinel)
        connection.wait([sentinel])
    finally:
        if os.getppid() == worker:  # else it has ended, and the parent is another process
            kill_tree(worker, but=os.getpid())  # also what has a session of its own
        kill_session(worker)
        os._exit(0)
