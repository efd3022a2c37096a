"""Who writes into a results folder: one command at a time, or the parts of one plan side by side, on several machines too.

``.lock`` is held alone by a command that runs all of a plan, and shared by parts; a part holds ``.lock-I-of-N`` alone besides.
A lock dies with its process, however that ends. On NFS these locks reach other machines (flock(2), "NFS details": a shared one
needs a file open for reading, an exclusive one for writing).
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

_WHOLE = ".lock"
_PART = re.compile(r"\.lock-(\d+)-of-(\d+)")
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


def is_lock(name: str) -> bool:
    """Whether a file of a results folder is one of these."""
    return name == _WHOLE or _PART.fullmatch(name) is not None


@contextlib.contextmanager
def locked(root: Path, part: tuple[int, int] | None = None) -> Iterator[None]:
    """Hold the folder, all of it or for one ``part`` (i, n). Raises ``UserError`` where somebody else holds what must not be held
    at the same time."""
    with contextlib.ExitStack() as held:
        if not _taken(held, root / _WHOLE, shared=part is not None):
            raise UserError(f"{root}: another `fedbench run` is writing here; wait for it or use --results")
        if part is not None:
            _take_part(held, root, *part)
        yield


def _take_part(held: contextlib.ExitStack, root: Path, i: int, n: int) -> None:
    """Its own lock comes before the look at the others': of two that begin at once, one at least sees the other."""
    if not _taken(held, root / f"{_WHOLE}-{i}-of-{n}"):
        raise UserError(f"{root}: part {i}/{n} is being run by another command; wait for it or use --results")
    for path in root.glob(f"{_WHOLE}-*"):
        other = _PART.fullmatch(path.name)
        if other is None or int(other[2]) == n:
            continue
        with contextlib.ExitStack() as tried:
            if not _taken(tried, path):
                raise UserError(
                    f"{root}: part {other[1]}/{other[2]} is being run here, which may hold runs of part {i}/{n}: cut a plan into "
                    "one number of parts, wait for it, or use --results"
                )


def _taken(held: contextlib.ExitStack, path: Path, shared: bool = False) -> bool:
    """Whether the lock could be had; it is let go with ``held``."""
    try:
        handle: IO[str] = held.enter_context(path.open("a+"))
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        folder = path.parent
        if error.errno in _NO_LOCKS:
            raise UserError(
                f"{folder}: its file system has no locks ({error.strerror}): run each part into a folder of its own with "
                "--results, and make one board of all with `fedbench leaderboard A B C`"
            ) from error
        raise UserError(f"{folder}: cannot be written ({error.strerror}); name another folder with --results") from error
    return True
