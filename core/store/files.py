"""Write whole files or none: a temporary file in the same folder, flushed, then renamed."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import re
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

TEMPORARY_PREFIX = ".tmp-"
_CLIENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_RESERVED = ("received", "final", "base")  # files of a recording that are no client's
CLIENT_NAMES = (
    "1 to 64 letters, digits, '.', '_' and '-', of which the first is a letter or a digit, and "
    f"none of {', '.join(_RESERVED)}"
)
"""names that :func:`names_client` accepts, for messages"""


def names_client(name: str) -> bool:
    """Return whether files of a recording can have a client's name."""
    return bool(_CLIENT_NAME.fullmatch(name)) and name.lower() not in _RESERVED


def bytes_of(path: Path, most: int) -> bytes | None:
    """Return the content of a regular file; None for anything else, which is not waited for.

    Raises ``OSError``, and ``OverflowError`` for more than ``most`` bytes.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        return None
    if status.st_size > most:
        raise OverflowError
    return path.read_bytes()


def write_atomically(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content`` in one step; a kill at any moment leaves the old file or the
    new one.

    Raises ``OSError`` that names ``path``.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, content)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_if_room(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write arrays to a cache, unless it cannot be written: then they are computed again."""
    with contextlib.suppress(OSError):
        write_atomically(path, npz_bytes(arrays, compress=False))


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


@contextlib.contextmanager
def folder_aside(parent: Path) -> Iterator[Path]:
    """Make a temporary folder in ``parent``, removed at the end, and remove those of commands that
    were killed.

    A command holds the lock of its folder, which dies with it; without locks (NFS) those of killed
    commands stay.
    """
    prefix = f"{TEMPORARY_PREFIX}fedbench-"
    for stray in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError), _locked(stray):
            shutil.rmtree(stray)
    with (
        tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as name,
        contextlib.ExitStack() as lock,
    ):
        with contextlib.suppress(OSError):
            lock.enter_context(_locked(Path(name)))
        yield Path(name)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder. Raises ``OSError`` where another process holds it, and without
    locks.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def npz_bytes(arrays: dict[str, np.ndarray], compress: bool = True) -> bytes:
    """Return an .npz archive; equal arrays give equal bytes (numpy's members have a fixed date)."""
    for name, a in arrays.items():
        if a.dtype.hasobject:
            raise TypeError(f"array {name!r} holds Python objects; only plain numbers are stored")
    buffer = io.BytesIO()
    save = np.savez_compressed if compress else np.savez
    save(buffer, allow_pickle=False, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    KeyError,
    NotImplementedError,  # an unknown compression
    RuntimeError,  # a password
)


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Read every array of an .npz archive, never unpickling. Raises ``OSError`` or ``ValueError``
    for a damaged file.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except _UNREADABLE as error:
        raise ValueError(f"{path}: not a readable .npz archive ({error})") from error
