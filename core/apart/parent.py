"""A process that ends with the one that started it, however that ended. Linux alone can promise it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h; not inherited by what is forked later


def end_with_parent(parent: int | None = None) -> None:
    """From now on; at once where ``parent``, the process id of the one that started this, is gone already."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if parent is not None and os.getppid() != parent:
            os._exit(1)


def adopt_orphans() -> None:
    """From now on this process is the parent of whatever its descendants leave running."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_children(but: int) -> None:
    """Kill and wait for every descendant of this process, except the child of this process id."""
    import psutil

    for one in psutil.Process().children(recursive=True):
        if one.pid != but:
            with contextlib.suppress(psutil.Error):
                one.kill()
    for one in psutil.Process().children():
        if one.pid != but:
            with contextlib.suppress(psutil.Error, ChildProcessError):
                one.wait()
