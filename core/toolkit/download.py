"""Download files, verify their checksums, and unpack archives that were made by others."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from ssl import SSLError
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from fedbench.core.contract.errors import UserError
from fedbench.core.process.channel import report_alive, say
from fedbench.core.store.locks import NO_LOCKS


def data_folder() -> Path:
    """Return ``$FEDBENCH_DATA``, else ``fedbench`` in the user's cache folder."""
    if folder := os.environ.get("FEDBENCH_DATA"):
        return Path(folder).expanduser()
    return cache_folder()


def cache_folder() -> Path:
    """Return ``fedbench`` in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedbench"


def decoded_folder() -> Path:
    """Return the cache of decoded images, beside the data; safe to delete at any time."""
    return data_folder() / ".decoded"


# --- downloads ------------------------------------------------------------------------------------


OFFLINE = "FEDBENCH_OFFLINE"
_BLOCK = 1 << 18
_HEADERS = {"User-Agent": "fedbench", "Accept-Encoding": "identity"}
_TIMEOUT = 30  # seconds without a byte
_LOOK_AGAIN_S = 0.1
# not the disk's errors
_NETWORK = (HTTPException, URLError, TimeoutError, ConnectionError, SSLError)
_MOST_REQUESTS = 20  # of one download; each must have brought bytes
_RANGE_NOT_SATISFIABLE = 416


@dataclass(frozen=True)
class Remote:
    """A file to download."""

    name: str
    urls: tuple[str, ...]
    """tried in order"""
    checksum: str | None
    """``md5:<hex>`` or ``sha256:<hex>`` as the authors publish it; None: the reader must verify the
    content
    """
    size: int
    """bytes, not one more is accepted; without a checksum the most that the file may have"""

    def how_to_get(self, folder: Path) -> str:
        """Return, for an error message, what to download from where and where to put it."""
        size = f"{self.size / 1e6:.1f} MB" if self.size >= 1e5 else f"{self.size:,} bytes"
        facts = f"at most {size}, no published checksum"
        if self.checksum is not None:
            facts = f"{size}, {self.checksum.replace(':', ' ')}"
        return f"download {self.urls[0]} ({facts}) and put it at {folder / self.name}"


def fetch(remote: Remote, folder: Path) -> Path:
    """Return the verified file ``folder / remote.name``, downloaded or continued where it must be.

    Without a published checksum a download is the server's whole file, never continued by a later
    run, and unverified. ``$FEDBENCH_OFFLINE`` forbids the network.

    Raises:
        UserError: when the file cannot be had, or does not have the checksum: what was downloaded
            is then deleted, a file that was already there is left alone and not used.
    """
    path = folder / remote.name
    if not path.exists():
        if os.environ.get(OFFLINE):
            raise UserError(
                f"{remote.name} is not in {folder} and ${OFFLINE} is set: "
                f"{remote.how_to_get(folder)}"
            )
        with writable(folder), locked(folder):
            if not path.exists():
                _download(remote, path)
    elif remote.checksum is not None:
        checksum = checksum_of(path, remote.checksum)
        if checksum != remote.checksum:
            raise UserError(
                f"{path}: its checksum is {checksum}, not {remote.checksum}: truncated or changed, "
                f"so it is not used; delete it and run again, or {remote.how_to_get(folder)}"
            )
    return path


def checksum_of(path: Path, like: str) -> str:
    """Return ``kind:hex`` of a file, with the kind (``md5``, ``sha256``) of ``like``."""
    kind = like.partition(":")[0]
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False))
    return f"{kind}:{digest.hexdigest()}"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one process at a time change ``folder``, where its file system has locks."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "a") as handle:  # the lock dies with its process
        while not _try_lock(handle):
            report_alive()  # another process is at it, for as long as its download takes
            time.sleep(_LOOK_AGAIN_S)
        yield


def _try_lock(handle: IO[str]) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return True


@contextlib.contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Turn a full disk or a folder that may not be written into a ``UserError``."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{error.filename or folder}: {error.strerror or error}; free some space, or set "
            "FEDBENCH_DATA to a folder of yours"
        ) from error


class _Unavailable(Exception):
    """Report that this address does not give the file; another may."""


def _download(remote: Remote, path: Path) -> None:
    """Download from the first address that gives the content of the checksum."""
    part = path.with_name(f"{path.name}.part")
    if remote.checksum is None:  # nothing would reveal a file joined from two versions
        part.unlink(missing_ok=True)
    urls = list(remote.urls)
    if part.exists():  # it may be damaged: after it has failed the checksum, once more
        urls.insert(0, urls[0])
    problems = []
    for url in urls:
        try:
            _complete(url, part, remote)
        except _Unavailable as error:
            problems.append(f"{url}: {error}")
            continue
        checksum = remote.checksum and checksum_of(part, remote.checksum)
        if checksum == remote.checksum:
            part.replace(path)
            return
        part.unlink()
        problems.append(
            f"{url}: the checksum is {checksum}, not {remote.checksum}; what came was deleted"
        )
    if remote.checksum is None:
        part.unlink(missing_ok=True)
    elif _size(part):
        problems.append(
            f"{_size(part):,} of {remote.size:,} bytes are kept and the next run continues"
        )
    raise UserError(
        f"cannot download {remote.name}: {'; '.join(problems)}. Or by hand: "
        f"{remote.how_to_get(path.parent)}"
    )


def _complete(url: str, part: Path, remote: Remote) -> None:
    """Request the missing bytes until ``part`` is complete, while every request brings some."""
    size = remote.size if remote.checksum else None  # None: the first answer tells
    for _ in range(_MOST_REQUESTS):
        n_before = _size(part)
        if n_before == size:
            return
        if size is not None and n_before > size:
            part.unlink()
            n_before = 0
        missing = f"{(remote.size - n_before) / 1e6:.1f} of {remote.size / 1e6:.1f} MB"
        say(f"fedbench: downloading {url} ({missing}) to {part.parent}")
        reason = "the connection ended early"
        try:
            size = _request(url, part, n_before, remote)
        except _NETWORK as error:
            reason = f"{type(error).__name__}: {error}"
        if _size(part) <= n_before:
            raise _Unavailable(f"{reason} ({n_before:,} of {remote.size:,} bytes)")
    raise _Unavailable(
        f"{_MOST_REQUESTS} requests brought only {_size(part):,} of {remote.size:,} bytes"
    )


def _request(url: str, part: Path, start: int, remote: Remote) -> int:
    """Request the bytes from ``start`` on, and return the size of the whole file.

    A server that ignores the range sends everything, and the part starts again.
    """
    headers = dict(_HEADERS)
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        answer = urlopen(Request(url, headers=headers), timeout=_TIMEOUT)
    except HTTPError as error:
        # the server's file ends before ours: not the same file
        if error.code == _RANGE_NOT_SATISFIABLE:
            part.unlink()
        raise
    with answer:
        if answer.status != 206:
            start = 0
        size = remote.size
        if remote.checksum is None:
            length = answer.headers["Content-Length"] or ""
            size = start + int(length) if length.isdigit() else 0
            if not start < size <= remote.size:
                raise _Unavailable(
                    f"it announces {length or 'no'} bytes, 1 to {remote.size - start:,} expected"
                )
        room = size - start
        with open(part, "ab" if start else "wb") as out:
            while room >= 0 and (block := answer.read(min(_BLOCK, room + 1))):
                report_alive()
                room -= len(block)
                out.write(block)
    if room < 0:
        part.unlink()
        raise _Unavailable(f"it sends more than the {size:,} bytes expected; what came was deleted")
    return size


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


# --- archives -------------------------------------------------------------------------------------


_PREFIX = ".tmp-unpack-"
_DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    EOFError,
    zlib.error,
    NotImplementedError,
    RuntimeError,
    ValueError,
)


def archive_files(
    archive: Path, max_bytes: int, max_files: int = 500_000
) -> Iterator[tuple[PurePosixPath, IO[bytes]]]:
    """Yield path and content of every plain file of a .tar, .tar.gz or .zip, in its order.

    Nothing is unpacked to disk. A damaged archive raises when it is read.

    Raises:
        UserError: for more than ``max_bytes`` or ``max_files``, and for a path that leads out of
            the folder.
    """
    room = max_bytes
    for i, (name, size, content) in enumerate(_members(archive)):
        path = PurePosixPath(name)
        room -= size
        refusal = ""
        if i >= max_files:
            refusal = f"more than {max_files:,} files"
        elif room < 0:
            refusal = f"more than {max_bytes:,} bytes unpacked"
        elif path.is_absolute() or ".." in path.parts:
            refusal = f"a path that leads elsewhere: {name!r}"
        if refusal:
            raise UserError(
                f"{archive}: not unpacked: it holds {refusal}; get it from its official home"
            )
        yield path, content


def unpack(archive: Path, folder: Path, top: str, max_bytes: int, max_files: int = 500_000) -> Path:
    """Return ``folder / top``, unpacked from an archive with a verified checksum: all or nothing.

    Links and devices are left out.

    Raises:
        UserError: as :func:`archive_files`, and for a damaged archive.
    """
    target = folder / top
    with writable(folder), locked(folder):
        for stale in folder.glob(f"{_PREFIX}*"):  # of a process that was killed: the lock is ours
            shutil.rmtree(stale)
        if target.exists():
            return target
        into = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder))
        try:
            for path, content in archive_files(archive, max_bytes, max_files):
                (into / path).parent.mkdir(parents=True, exist_ok=True)
                with open(into / path, "wb") as out:
                    shutil.copyfileobj(content, out)
            if not (into / top).is_dir():
                raise UserError(f"{archive}: holds no folder '{top}'; delete it and run again")
            (into / top).rename(target)
        except _DAMAGED as error:
            raise UserError(
                f"{archive}: a damaged archive ({type(error).__name__}: {error}), not unpacked; "
                "delete it and run again"
            ) from error
        finally:
            shutil.rmtree(into)
    return target


def _members(archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Yield name, stated size and content of every plain file."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as package:
            for entry in package.infolist():
                if not entry.is_dir():
                    with package.open(entry) as content:
                        yield entry.filename, entry.file_size, content
        return
    with tarfile.open(archive, "r|*") as tar:
        for member in tar:
            if member.isreg() and (plain := tar.extractfile(member)):
                yield member.name, member.size, plain
