"""The process of one run: its group, its output, its limits, and global state that plugins may have changed."""

from __future__ import annotations

import faulthandler
import os
import random
import resource
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

from fedbench.core.contract.errors import Diverged, SkipCell, UserError
from fedbench.core.federation.guard import PhaseError
from fedbench.core.numerics.rng import key_for
from fedbench.core.process.channel import apart, trace
from fedbench.core.process.child import adopt_orphans, end_children
from fedbench.core.run.job import Job
from fedbench.core.signals.ask import SignalError
from fedbench.core.store.results import Results
from fedbench.core.words.explain import told
from fedbench.core.words.frames import DEBUG, debugging, whole

_MOST_LOG_BYTES = 8 << 20
_SAY_ALL = (UserError, SkipCell, Diverged, PhaseError, SignalError)  # where nobody's exception led to them
_guard = 0  # the process that ends this one's group with its parent
_logging = False  # whether this process's output goes to a log


def stand_alone(job: Job) -> None:
    """A process group of its own, gone when the parent is gone; output goes to the run's log."""
    global _guard
    os.setpgid(0, 0)
    _guard = _die_with_parent()
    adopt_orphans()
    os.environ[DEBUG] = "1" if job.debug else "0"
    _write_to(log_path(job))
    settle(job, "start")  # one thread above all: what is forked from here could not use the others


def prepare_process(job: Job) -> None:
    """For other people's code: deterministic kernels, float32 as declared, and no more memory than allowed."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with it
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # attacks are shown such arrays
    settle(job, "start")
    if job.limits.memory_gb:
        limit, most = int(job.limits.memory_gb * 2**30), resource.getrlimit(resource.RLIMIT_DATA)[1]
        limit = limit if most == resource.RLIM_INFINITY else min(limit, most)  # whoever set that one wants it kept
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def settle(job: Job, purpose: str) -> None:
    """Put the process's global state where it belongs: what one plugin changed never reaches the next.

    The harness draws nothing from the global generators. They are keyed all the same, so that a plugin that does is
    repeatable, whatever ran before it.
    """
    import numpy as np
    import torch

    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_grad_enabled(True)
    torch.set_deterministic_debug_mode("error")  # use_deterministic_algorithms would import the compiler: two seconds a run
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    key = key_for(job.seed, f"global generators/{purpose}")
    random.seed(key)
    np.random.seed(key % 2**32)
    torch.manual_seed(key >> 1)


def log_path(job: Job) -> Path:
    """Where a worker's own output goes: what plugins print, and the traceback of a crash."""
    return Results(Path(job.results)).logs / f"{job.run_key[:32]}.log"


def log_failure(error: BaseException) -> None:
    """The traceback of somebody's exception, in the log: his own frames, or all of them where the user asked for it, who then
    is shown it too. Nothing of an error that says all there is to say, and nothing outside a process forked for his code."""
    if not apart() or (isinstance(error, _SAY_ALL) and error.__cause__ is None):
        return
    text = f"{told(error)}\n{whole(error)}"
    print(text, file=sys.stderr, flush=True)
    if debugging():
        trace(text)


def keep_log_short() -> None:
    """A log that has grown too long begins anew, and says so: somebody prints in a loop. Nothing where no log is written."""
    if _logging and os.fstat(1).st_size > _MOST_LOG_BYTES:
        os.ftruncate(1, 0)
        os.write(1, f"[more than {_MOST_LOG_BYTES >> 20} MiB were written here; what came before is gone]\n".encode())


def _write_to(path: Path) -> None:
    global _logging
    path.parent.mkdir(parents=True, exist_ok=True)  # somebody may have deleted the results folder
    with open(path, "ab") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    for text in (sys.stdout, sys.stderr):
        text.reconfigure(errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable()
    _logging = True


def end_strays() -> None:
    """Whatever plugins started and left running, wherever it hid: it would take the processor from what comes next. Nothing in a
    process that does not stand alone."""
    if _guard:
        end_children(but=_guard)


def _die_with_parent() -> int:
    """A second process of the worker's group waits for the end of the parent, then ends the group. Returns its id.

    No thread could do that while a plugin holds the interpreter's lock; what the plugin has started goes too.
    """
    import multiprocessing
    from multiprocessing import connection

    parent = multiprocessing.parent_process()
    if parent is None:
        return 0
    if pid := os.fork():
        return pid
    try:
        kept: Any = parent.sentinel
        os.closerange(0, kept)
        os.closerange(kept + 1, 2**20)  # the pipe to the parent too: its end is how the parent sees the worker's
        connection.wait([kept])
    finally:
        os.killpg(0, signal.SIGKILL)
    raise AssertionError("this process was of the group that it ended")
