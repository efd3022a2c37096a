"""Messages between a process and the process that started it: JSON values and plain arrays, never a
pickle.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    import numpy as np

_ALIVE_EVERY_S = 1.0


@dataclass(frozen=True, kw_only=True)
class TimeLimits:
    """Time limits of plugin code. ``cpu_s``: CPU seconds of the process and its descendants;
    ``idle_s``: seconds without a message, file traffic, or CPU time of a hundredth of them. None:
    no limit.
    """

    cpu_s: float | None = None
    idle_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Message:
    """``kind``: its type; ``value``: a JSON value; ``arrays``: by name."""

    kind: str
    value: Any = None
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


class Channel:
    """An end of a one-way pipe for messages."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def send(
        self, kind: str, value: Any = None, arrays: Mapping[str, np.ndarray] | None = None
    ) -> None:
        """Send a message. A copy of the process that plugin code forked ends at this call: only one
        process writes to a pipe.

        Raises ``TypeError`` or ``ValueError`` for a value that is not JSON and for an array of
        Python objects.
        """
        if self is _channel and not in_fork():
            os._exit(0)
        plain = {name: _plain(name, a) for name, a in (arrays or {}).items()}
        shapes = [[name, a.dtype.str, list(a.shape)] for name, a in plain.items()]
        self.connection.send_bytes(json.dumps([kind, value, shapes]).encode())
        for a in plain.values():
            if a.size:
                self.connection.send_bytes(_buffer(a))

    def receive(self) -> Message:
        """Return the next message. Raises ``EOFError`` or ``OSError`` after the other end closed,
        and any error of json and numpy for bytes that are not a message.
        """
        kind, value, shapes = json.loads(self.connection.recv_bytes())
        arrays = {}
        for name, dtype, shape in shapes:
            import numpy as np  # not imported for messages without arrays

            arrays[name] = a = np.empty(shape, np.dtype(dtype))
            size = self.connection.recv_bytes_into(_buffer(a)) if a.size else 0
            if size != a.nbytes:
                raise ValueError(f"{size} bytes where {a.nbytes} were announced")
        return Message(kind=kind, value=value, arrays=arrays)


def _plain(name: str, a: np.ndarray) -> np.ndarray:
    import numpy as np

    plain = np.ascontiguousarray(a).reshape(np.shape(a))
    if type(plain) is not np.ndarray or plain.dtype.hasobject or plain.dtype.names:
        raise TypeError(
            f"the array {name!r} holds Python objects or records; only plain numbers are sent"
        )
    return plain


def _buffer(a: np.ndarray) -> memoryview:
    return a.reshape(-1).view("u1").data


_channel: Channel | None = None  # from this process to the one that forked it for plugin code
_pid = 0  # of this process: a copy that plugin code forks has another one
# components at work with their limits, the innermost last
_parties: list[tuple[str, TimeLimits | None]] = [("", None)]
# the last exception of a component, and the component
_raised: tuple[BaseException | None, str] = (None, "")
_alive = 0.0


def set_channel(channel: Channel | None) -> None:
    """Declare this process a fork for plugin code, with ``channel`` to its parent."""
    global _channel, _pid
    _channel = channel
    _pid = os.getpid()
    del _parties[1:]


def in_fork() -> bool:
    """Return whether this process was forked to run plugin code."""
    return _channel is not None and os.getpid() == _pid


@contextmanager
def at_work(party: str, limits: TimeLimits | None = None) -> Iterator[None]:
    """Tell the parent process that the code of ``party`` runs; no effect outside a fork. ``limits``
    count from here; None: those of the enclosing party, or of the whole process.
    """
    if not in_fork():
        yield
        return
    _parties.append((party, limits or _parties[-1][1]))
    _send_party()
    try:
        yield
    except BaseException as error:
        global _raised
        if _raised[0] is not error:  # the innermost party is the one to name
            _raised = (error, party)
        raise
    finally:
        _parties.pop()
        _send_party()


def _send_party() -> None:
    party, limits = _parties[-1]
    if _channel is not None and in_fork():
        _channel.send("at work", [party, limits and [limits.cpu_s, limits.idle_s]])


def raised_by(error: BaseException) -> str:
    """Return the component that raised the exception; empty if none did."""
    return _raised[1] if _raised[0] is error else ""


def pass_on_interrupt(error: BaseException) -> None:
    """Raise ``error`` if it is the user's Ctrl-C: for every place that catches ``BaseException`` of
    plugin code, since ``pytest.skip``, ``CancelledError`` and ``SystemExit`` are no ``Exception``.

    In a fork SIGINT ends the process, so that a ``KeyboardInterrupt`` was raised by a plugin.
    """
    if isinstance(error, KeyboardInterrupt) and not in_fork():
        raise error


def say(text: str) -> None:
    """Print a line on the standard error of the command."""
    if _channel is not None and in_fork():
        _channel.send("said", text)
    else:
        print(text, file=sys.stderr)


def trace(text: str) -> None:
    """Send a traceback to the parent process."""
    if _channel is not None and in_fork():
        _channel.send("traceback", text)


def report_alive() -> None:
    """Renew the idle limit: for work that uses next to no CPU, such as a slow download or a wait
    for a lock.
    """
    global _alive
    if _channel is not None and in_fork() and time.monotonic() - _alive > _ALIVE_EVERY_S:
        _alive = time.monotonic()
        _channel.send("alive")
