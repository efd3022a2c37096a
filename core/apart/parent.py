"""A process that ends with the one that started it, however that ended. Linux alone can promise it."""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h; not inherited by what is forked later


def end_with_parent(parent: int | None = None) -> None:
    """From now on; at once where ``parent``, the process id of the one that started this, is gone already."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if parent is not None and os.getppid() != parent:
            os._exit(1)
