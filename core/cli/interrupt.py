"""Signals that ask a command to end are all an interrupt: it stops what runs, says what is kept, and ends with 130."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_ASK_TO_END = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside, each of them raises ``KeyboardInterrupt``; one that is ignored (`nohup`) stays so."""
    before = {s: signal.getsignal(s) for s in _ASK_TO_END}
    ours = [s for s in _ASK_TO_END if before[s] == signal.SIG_DFL]
    for s in ours:
        signal.signal(s, signal.default_int_handler)
    try:
        yield
    finally:
        for s in ours:
            signal.signal(s, before[s])
