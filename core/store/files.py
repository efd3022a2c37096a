"""Write whole files or none: a temporary file in the same folder, flushed, then renamed."""

from __future__ import annotations

import errno
import io
import os
import stat
import tempfile
from pathlib import Path

import numpy as np

TEMPORARY_PREFIX = ".tmp-"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def bytes_of(path: Path, most: int) -> bytes | None:
    """What a regular file holds; None of anything else, FIFOs included. ``OSError``; ``OverflowError`` of over ``most`` bytes."""
    try:
        with _opened(path) as f:
            found = os.fstat(f.fileno())
            if not stat.S_ISREG(found.st_mode):
                return None
            if found.st_size > most:
                raise OverflowError
            return f.read()
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.EISDIR):  # a socket, a folder
            return None
        raise


def _opened(path: Path) -> io.FileIO:
    """Of a FIFO it does not wait for a writer."""
    return io.FileIO(path, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


def write_atomically(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content`` in one step; a kill at any moment leaves the old file or the new one.

    Raises ``OSError`` that names ``path``.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, content)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_making_room(path: Path, content: bytes, cache: Path) -> None:
    """The same; where the disk is full, files of the folder ``cache`` go, the largest first, until there is room.

    Raises ``OSError`` that names ``path`` when there is none without them either.
    """
    while True:
        try:
            write_atomically(path, content)
            return
        except OSError as error:
            if error.errno not in NO_ROOM or not _drop_largest(cache):
                raise


def write_if_room(path: Path, content: bytes) -> bool:
    """Write a cache, which costs nothing but its making where it cannot be written; whether it was."""
    try:
        write_atomically(path, content)
    except OSError:
        return False
    return True


def _drop_largest(cache: Path) -> bool:
    """Whether there was a file to delete. Other processes may delete some at the same time."""
    sizes = {}
    for path in cache.glob("*.npz"):
        try:
            sizes[path] = path.stat().st_size
        except FileNotFoundError:
            continue  # gone: another process makes room, too
    if not sizes:
        return False
    max(sizes, key=lambda path: sizes[path]).unlink(missing_ok=True)
    return True


def _replace(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(content)
            f.flush()
            os.fsync(f.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def npz_bytes(arrays: dict[str, np.ndarray], compress: bool = True) -> bytes:
    """An .npz archive; equal arrays give equal bytes (numpy stamps its members with a fixed date)."""
    for name, a in arrays.items():
        if a.dtype.hasobject:
            raise TypeError(f"array {name!r} holds Python objects; only plain numbers are stored")
    buffer = io.BytesIO()
    (np.savez_compressed if compress else np.savez)(buffer, allow_pickle=False, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Every array of an .npz archive, never unpickling. Raises ``OSError`` or ``ValueError`` on a damaged file."""
    import zipfile

    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (zipfile.BadZipFile, EOFError, KeyError) as error:
        raise ValueError(f"{path}: not a readable .npz archive ({error})") from error
