"""Locks of a results folder: one command writes at a time, or the parts of one plan side by side,
on several machines too.

``.lock`` is held alone by a command that runs all of a plan, and shared by parts; a part holds
``.lock-I-of-N`` alone besides. A lock dies with its process, however that ends. On NFS these locks
reach other machines (flock(2), "NFS details": a shared one needs a file open for reading, an
exclusive one for writing). A file system without locks is used without, and a note says so.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from fedbench.core.contract.errors import UserError
from fedbench.core.process.channel import say

_WHOLE = ".lock"
_PART = re.compile(r"\.lock-(\d+)-of-(\d+)")
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


def is_lock(name: str) -> bool:
    """Whether a file of a results folder is one of these."""
    return name == _WHOLE or _PART.fullmatch(name) is not None


@contextlib.contextmanager
def locked(root: Path, part: tuple[int, int] | None = None) -> Iterator[None]:
    """Hold the folder, all of it or for one ``part`` (i, n). Raises ``UserError`` where another
    command holds it.
    """
    with contextlib.ExitStack() as held:
        if not _taken(held, root / _WHOLE, shared=part is not None):
            raise UserError(
                f"{root}: another `fedbench run` is writing here; wait for it or use --results"
            )
        if part is not None and not _taken(held, root / f"{_WHOLE}-{part[0]}-of-{part[1]}"):
            raise UserError(
                f"{root}: part {part[0]}/{part[1]} is being run by another command; wait for it or "
                "use --results"
            )
        yield


def _taken(held: contextlib.ExitStack, path: Path, shared: bool = False) -> bool:
    """Whether the lock could be had, or there are no locks; it is let go with ``held``."""
    try:
        handle: IO[str] = held.enter_context(path.open("a+"))
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        folder = path.parent
        if error.errno in NO_LOCKS:
            if path.name == _WHOLE:
                say(
                    f"note: {folder}: its file system has no locks ({error.strerror}), so that "
                    "nothing stops a second "
                    "command: run one at a time here, or each part into a folder of its own with "
                    "--results"
                )
            return True
        raise UserError(
            f"{folder}: cannot be written ({error.strerror}); name another folder with --results"
        ) from error
    return True
