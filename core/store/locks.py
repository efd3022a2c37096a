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

from fedbench.core.contract.errors import UserError
from fedbench.core.process.channel import say

_WHOLE = ".lock"
_PART = re.compile(r"\.lock-(\d+)-of-(\d+)")
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


def is_lock(name: str) -> bool:
    """Return whether a file of a results folder is a lock."""
    return name == _WHOLE or _PART.fullmatch(name) is not None


@contextlib.contextmanager
def locked(root: Path, part: tuple[int, int] | None = None) -> Iterator[None]:
    """Hold the folder, all of it or for one ``part`` (i, n). Raises ``UserError`` where another
    command holds it.
    """
    with contextlib.ExitStack() as locks:
        if not _lock(locks, root / _WHOLE, shared=part is not None):
            raise UserError(
                f"{root}: another `fedbench run` is writing here; wait for it or use --results"
            )
        if part is not None:
            i, n = part
            if not _lock(locks, root / f"{_WHOLE}-{i}-of-{n}"):
                raise UserError(
                    f"{root}: part {i}/{n} is being run by another command; wait for it or use "
                    "--results"
                )
        yield


def _lock(locks: contextlib.ExitStack, path: Path, shared: bool = False) -> bool:
    """Lock a file until ``locks`` ends; return False where another process holds it.

    Without locks of the file system it counts as locked, with a note on the first file.
    """
    folder = path.parent
    try:
        file = locks.enter_context(path.open("a+"))
        fcntl.flock(file, fcntl.LOCK_NB | (fcntl.LOCK_SH if shared else fcntl.LOCK_EX))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise UserError(
                f"{folder}: cannot be written ({error.strerror}); name another folder with "
                "--results"
            ) from error
        if path.name == _WHOLE:
            say(
                f"note: {folder}: its file system has no locks ({error.strerror}), so that nothing "
                "stops a second command: run one at a time here, or each part into a folder of its "
                "own with --results"
            )
    return True
