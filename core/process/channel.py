"""What a process says to the one that forked it: JSON values and plain arrays, never a pickle."""

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


@dataclass(frozen=True, kw_only=True)
class Message:
    """``kind``: what it is; ``value``: anything JSON can say; ``arrays``: by name."""

    kind: str
    value: Any = None
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


class Channel:
    """One end of a pipe that messages go through, in one direction."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def send(self, kind: str, value: Any = None, arrays: Mapping[str, np.ndarray] | None = None) -> None:
        """Raises ``TypeError`` or ``ValueError`` for what is no JSON value or an array of Python objects. A copy that other
        people's code made of the process that speaks ends here: two would talk at once, into one pipe."""
        if self is _here and not apart():
            os._exit(0)
        if not arrays:  # numpy is not imported for words alone
            self.connection.send_bytes(json.dumps([kind, value, []]).encode())
            return
        import numpy as np

        whole = {name: np.ascontiguousarray(a).reshape(np.shape(a)) for name, a in arrays.items()}
        for name, a in whole.items():
            if type(a) is not np.ndarray or a.dtype.hasobject or a.dtype.names:
                raise TypeError(f"the array {name!r} holds Python objects or records; only plain numbers are sent")
        shapes = [[name, a.dtype.str, list(a.shape)] for name, a in whole.items()]
        self.connection.send_bytes(json.dumps([kind, value, shapes]).encode())
        for a in whole.values():
            if a.size:
                self.connection.send_bytes(a.reshape(-1).view(np.uint8).data)

    def receive(self) -> Message:
        """The next message. Raises ``EOFError`` or ``OSError`` when the other end is gone, and whatever nonsense makes of json
        and numpy."""
        kind, value, shapes = json.loads(self.connection.recv_bytes())
        arrays: dict[str, np.ndarray] = {}
        if not shapes:
            return Message(kind=kind, value=value)
        import numpy as np

        for name, dtype, shape in shapes:
            a = np.empty(shape, np.dtype(dtype))
            if a.size:
                got = self.connection.recv_bytes_into(a.reshape(-1).view(np.uint8).data)
                if got != a.nbytes:
                    raise ValueError(f"{got} bytes where {a.nbytes} were announced")
            arrays[name] = a
        return Message(kind=kind, value=value, arrays=arrays)


_here: Channel | None = None  # the way out of this process, where it was forked to run other people's code
_pid = 0  # of that process: a copy that other people's code makes of it has nothing to say
_working: list[tuple[str, Patience | None]] = []  # who is at work, the innermost last
_raised: tuple[BaseException | None, str] = (None, "")  # an exception that left somebody's work, and whose
_moved = 0.0
_MOVES_EVERY_S = 1.0


def speaks(channel: Channel | None) -> None:
    """From now on this process is one that was forked, and ``channel`` leads out of it."""
    global _here, _pid
    _here, _pid = channel, os.getpid()
    _working.clear()


def apart() -> bool:
    """Whether this process was forked to run other people's code."""
    return _here is not None and os.getpid() == _pid


@contextmanager
def at_work(who: str, patience: Patience | None = None) -> Iterator[None]:
    """Whose code runs now, for the one who watches this process; nothing where nobody does. ``patience``: how long that one
    waits for it, counted anew wherever who is at work changes; None: as long as for whom it works for, or the whole process."""
    if not apart():
        yield
        return
    _working.append((who, patience or (_working[-1][1] if _working else None)))
    _tell_who()
    try:
        yield
    except BaseException as error:
        global _raised
        if _raised[0] is not error:  # the innermost names it
            _raised = (error, who)
        raise
    finally:
        _working.pop()
        _tell_who()


def _tell_who() -> None:
    who, patience = _working[-1] if _working else ("", None)
    if _here is not None and apart():
        _here.send("at work", [who, None if patience is None else [patience.cpu_s, patience.idle_s]])


def raised_by(error: BaseException) -> str:
    """Whose code let this exception through; empty where nobody's did."""
    return _raised[1] if _raised[0] is error else ""


def pass_on_interrupt(error: BaseException) -> None:
    """To be called first where other people's code is called and ``BaseException`` is caught, as it must be there:
    ``pytest.skip``, ``CancelledError``, ``GeneratorExit`` and ``SystemExit`` are no ``Exception``. Raises ``error`` where it
    is the user's Ctrl-C. In a forked process it cannot be: there SIGINT ends the process, so a plugin raised it."""
    if isinstance(error, KeyboardInterrupt) and not apart():
        raise error


def say(text: str) -> None:
    """A line for people, on the standard error of the process that the user started."""
    if _here is not None and apart():
        _here.send("said", text)
    else:
        print(text, file=sys.stderr)


def trace(text: str) -> None:
    """A traceback, for the one who watches this process to hand on."""
    if _here is not None and apart():
        _here.send("traceback", text)


def moved() -> None:
    """Something moves here, although it may use next to no CPU: a slow download, a lock that another process holds."""
    global _moved
    if _here is not None and apart() and time.monotonic() - _moved > _MOVES_EVERY_S:
        _moved = time.monotonic()
        _here.send("moved")


# -- How long to wait for other people's code --


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long to wait for a process. ``cpu_s``: seconds of CPU that it and what it started may use; ``idle_s``: seconds by
    the clock in which it may neither say anything, read or write files, nor use a hundredth of them as CPU. None: for ever."""

    cpu_s: float | None = None
    idle_s: float | None = None
