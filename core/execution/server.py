"""The process that workers are forked from. It imports for some seconds, so it can be started while a suite is planned."""

from __future__ import annotations

import multiprocessing
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext

# Imported once by the server; importing starts no threads and touches no GPU.
_PRELOAD = [f"fedbench.core.execution.{name}" for name in ("with_parent", "worker", "forked", "frozen")]


def context() -> ForkServerContext:
    """What makes processes from the server, which is started by the first of them unless it runs."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(_PRELOAD)
    return made


def start_early() -> None:
    """Have the server begin its imports now."""
    context()
    forkserver.ensure_running()
