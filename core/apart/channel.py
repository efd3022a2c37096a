"""What a process says to the one that forked it: JSON values and plain arrays, never a pickle."""

from __future__ import annotations

import json
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
        """Raises ``TypeError`` or ``ValueError`` for what is no JSON value or an array of Python objects."""
        import numpy as np

        whole = {name: np.ascontiguousarray(a).reshape(np.shape(a)) for name, a in (arrays or {}).items()}
        for name, a in whole.items():
            if type(a) is not np.ndarray or a.dtype.hasobject or a.dtype.names:
                raise TypeError(f"the array {name!r} holds Python objects or records; only plain numbers are sent")
        shapes = [[name, a.dtype.str, list(a.shape)] for name, a in whole.items()]
        self.connection.send_bytes(json.dumps([kind, value, shapes]).encode())
        for a in whole.values():
            if a.size:
                self.connection.send_bytes(a.reshape(-1).view(np.uint8).data)

    def receive(self) -> Message:
        """The next message. Raises ``EOFError`` or ``OSError`` when the other end is gone, ``ValueError`` for nonsense."""
        import numpy as np

        kind, value, shapes = json.loads(self.connection.recv_bytes())
        arrays = {}
        for name, dtype, shape in shapes:
            a = np.empty(shape, np.dtype(dtype))
            if a.size:
                self.connection.recv_bytes_into(a.reshape(-1).view(np.uint8).data)
            arrays[name] = a
        return Message(kind=kind, value=value, arrays=arrays)


_here: Channel | None = None  # the way out of this process, where it was forked to run other people's code


def speaks(channel: Channel | None) -> None:
    """From now on this process is one that was forked, and ``channel`` leads out of it."""
    global _here
    _here = channel


@contextmanager
def at_work(who: str) -> Iterator[None]:
    """Whose code runs now, for the one who watches this process; nothing where nobody does."""
    if _here is None:
        yield
        return
    _here.send("at work", who)
    try:
        yield
    finally:
        _here.send("at work", "")
