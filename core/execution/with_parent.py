"""Imported first by the server that workers are forked from: it ends with its parent, even in the middle of its imports."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h; not inherited by what is forked later

if sys.platform == "linux":  # elsewhere it ends when it has finished importing
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
