"""Unpack an archive that was made by others."""

from __future__ import annotations

import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from fedbench.core.contract.errors import UserError
from fedbench.core.toolkit.download import locked, writable

_PREFIX = ".tmp-unpack-"
_BLOCK = 1 << 20
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError, RuntimeError, ValueError)


class _Refused(Exception):
    """A member no honest archive of data has."""


def archive_files(archive: Path, max_bytes: int, max_files: int = 500_000) -> Iterator[tuple[PurePosixPath, IO[bytes]]]:
    """Path and content of every plain file of a .tar, .tar.gz or .zip, in its order, with nothing unpacked to disk.

    Raises ``UserError`` for what ``unpack`` refuses; a damaged archive raises when it is read.
    """
    room = max_bytes
    try:
        for i, (path, size, content) in enumerate(_members(archive)):
            room -= size
            if i >= max_files or room < 0:
                raise _Refused(f"more than {max_files:,} files" if room >= 0 else f"more than {max_bytes:,} bytes unpacked")
            yield path, content
    except _Refused as error:
        raise _refusal(archive, error) from error


def _refusal(archive: Path, error: _Refused) -> UserError:
    return UserError(f"{archive}: not unpacked: it holds {error}; get it from its official home")


def unpack(archive: Path, folder: Path, top: str, max_bytes: int, max_files: int = 500_000) -> Path:
    """``folder / top``, unpacked from a .tar, .tar.gz or .zip: whole or not at all.

    Plain files and folders only: an absolute path, ``..``, a link or a device, more than ``max_bytes`` or
    ``max_files`` refuse the whole archive. Raises ``UserError``. Verify the checksum (``fetch``) first.
    """
    target = folder / top
    with writable(folder), locked(folder):
        for stale in folder.glob(f"{_PREFIX}*"):  # of a process that was killed: the lock is ours
            shutil.rmtree(stale)
        if target.exists():
            return target
        into = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder))
        try:
            _extract(archive, into, max_bytes, max_files)
            if not (into / top).is_dir():
                raise UserError(f"{archive}: holds no folder '{top}'; delete it and run again")
            (into / top).rename(target)
        finally:
            shutil.rmtree(into)
    return target


def _extract(archive: Path, into: Path, max_bytes: int, max_files: int) -> None:
    try:
        room = max_bytes
        for i, (path, _, content) in enumerate(_members(archive)):
            if i >= max_files:
                raise _Refused(f"more than {max_files:,} files")
            destination = into / path
            destination.parent.mkdir(parents=True, exist_ok=True)
            with open(destination, "xb") as out:
                while block := content.read(min(_BLOCK, room + 1)):
                    room -= len(block)
                    if room < 0:
                        raise _Refused(f"more than {max_bytes:,} bytes unpacked")
                    out.write(block)
    except _Refused as error:
        raise _refusal(archive, error) from error
    except (*_DAMAGED, FileExistsError, NotADirectoryError) as error:
        raise UserError(
            f"{archive}: a damaged archive ({type(error).__name__}: {error}), not unpacked; delete it and run again"
        ) from error


def _members(archive: Path) -> Iterator[tuple[PurePosixPath, int, IO[bytes]]]:
    """Path, stated size and content of every plain file, in the archive's order."""
    if zipfile.is_zipfile(archive):
        yield from _zip_members(archive)
        return
    with tarfile.open(archive, "r|*") as tar:
        for member in tar:
            path = _safe(member.name)
            if not (member.isreg() or member.isdir()):
                raise _Refused(f"a link or device: {member.name!r}")
            content = tar.extractfile(member)
            if content is not None:
                yield path, max(member.size, 0), content


def _zip_members(archive: Path) -> Iterator[tuple[PurePosixPath, int, IO[bytes]]]:
    with zipfile.ZipFile(archive) as z:
        for member in z.infolist():
            path = _safe(member.filename)
            kind = stat.S_IFMT(member.external_attr >> 16)  # 0 where the archive was not made on a Unix
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _Refused(f"a link or device: {member.filename!r}")
            if not member.is_dir():
                with z.open(member) as content:
                    yield path, member.file_size, content


def _safe(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name:
        raise _Refused(f"a path that leads elsewhere: {name!r}")
    return path
