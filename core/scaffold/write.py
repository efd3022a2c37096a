"""A folder of files that is there whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fedbench.core.contract.errors import UserError
from fedbench.core.words.explain import one_line

_THERE = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)


def refuse_existing(target: Path) -> None:
    """Raises ``UserError`` where anything has the name of ``target``, or nothing can be made beside it."""
    if os.path.lexists(target):
        raise _there(target)
    if not target.parent.is_dir():
        raise UserError(f"{one_line(str(target.parent))}: no such folder; make it first, or name another with --into")


def write_folder(target: Path, files: Mapping[str, str]) -> None:
    """Write ``files`` (relative path -> text) as the new folder ``target``: into a hidden one beside it, renamed at the end.

    Raises ``UserError`` where ``target`` exists, ``OSError`` where it cannot be written; then nothing is left.
    """
    refuse_existing(target)
    beside = _beside(target)
    try:
        for name, text in files.items():
            path = beside / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        beside.chmod(0o777 & ~_umask())  # mkdtemp's are for its owner alone
        _rename(beside, target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)  # gone by now, unless something went wrong


def _beside(target: Path) -> Path:
    """A new hidden folder next to ``target``, on the same disk."""
    try:
        return Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as exc:
        where = one_line(str(target.parent))
        raise UserError(f"{where}: nothing can be written there: {exc.strerror}; name another folder with --into") from exc


def _rename(beside: Path, target: Path) -> None:
    refuse_existing(target)  # it may have come since; an empty folder would be replaced without a word
    try:
        beside.rename(target)
    except OSError as exc:
        if exc.errno in _THERE:
            raise _there(target) from exc
        raise


def _there(target: Path) -> UserError:
    return UserError(f"{one_line(str(target))} exists: nothing was written; move it away, or choose another name or --into")


def _umask() -> int:
    """The process's, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
