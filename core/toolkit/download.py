"""Download files, verify their checksums, and unpack archives that were made by others."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
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
    """Where local data sets are looked for: ``$FEDBENCH_DATA``, else ``fedbench`` in the user's
    cache folder.
    """
    chosen = os.environ.get("FEDBENCH_DATA")
    return Path(chosen).expanduser() if chosen else cache_folder()


def cache_folder() -> Path:
    """``fedbench`` in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "fedbench"


def decoded_folder() -> Path:
    """Where decoded images are cached, beside the data; safe to delete at any time."""
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
    """One file to download. ``urls`` are tried in order; ``checksum`` is ``md5:<hex>`` or
    ``sha256:<hex>`` as the authors publish it; ``size`` is exact, in bytes: not one byte more is
    accepted.

    ``checksum`` None: the authors publish none. ``size`` is then the most the file may have, it
    must have the length its server announces, and the reader must verify the content.
    """

    name: str
    urls: tuple[str, ...]
    checksum: str | None
    size: int

    def how_to_get(self, folder: Path) -> str:
        """For an error message: what to download, from where, its checksum, and where to put it."""
        size = f"{self.size / 1e6:.1f} MB" if self.size >= 1e5 else f"{self.size:,} bytes"
        fact = f"at most {size}, no published checksum"
        if self.checksum is not None:
            kind, _, hexdigest = self.checksum.partition(":")
            fact = f"{size}, {kind} {hexdigest}"
        return f"download {self.urls[0]} ({fact}) and put it at {folder / self.name}"


def fetch(remote: Remote, folder: Path) -> Path:
    """The verified file ``folder / remote.name``; downloaded when it is not there, continued when a
    part is.

    Without a published checksum a download is the server's whole file, never continued by a later
    run, and unverified.

    ``$FEDBENCH_OFFLINE`` forbids the network. Raises ``UserError`` when the file cannot be had, or
    does not have the checksum: what was downloaded is then deleted, a file that was already there
    is left alone and not used.
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
    elif (
        remote.checksum is not None
        and (found := checksum_of(path, remote.checksum)) != remote.checksum
    ):
        raise UserError(
            f"{path}: its checksum is {found}, not {remote.checksum}: truncated or changed, so it "
            "is not used; "
            f"delete it and run again, or {remote.how_to_get(folder)}"
        )
    return path


def checksum_of(path: Path, like: str) -> str:
    """``kind:hex`` of a file, with the kind (``md5``, ``sha256``) of ``like``."""
    kind = like.partition(":")[0]
    with open(path, "rb") as f:
        return f"{kind}:{hashlib.file_digest(f, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()}"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time changes ``folder``, where its file system has locks; the lock dies with
    its process.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "a") as handle:
        while not _taken(handle):
            report_alive()  # another process is at it, for as long as its download takes
            time.sleep(_LOOK_AGAIN_S)
        yield


def _taken(handle: IO[str]) -> bool:
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
            "FEDBENCH_DATA to a folder "
            "of yours"
        ) from error


class _Unavailable(Exception):
    """This address does not give the file; another may."""


def _download(remote: Remote, path: Path) -> None:
    part = path.with_name(path.name + ".part")
    if remote.checksum is None:  # nothing would reveal a file joined from two versions
        part.unlink(missing_ok=True)
    # A part of an earlier run may be damaged: after it has failed the checksum, the first address
    # is tried again.
    urls = [*remote.urls[:1], *remote.urls] if part.exists() else list(remote.urls)
    problems = []
    for url in urls:
        try:
            _complete(url, part, remote)
        except _Unavailable as error:
            problems.append(f"{url}: {error}")
            continue
        found = remote.checksum and checksum_of(part, remote.checksum)
        if found == remote.checksum:
            os.replace(part, path)
            return
        part.unlink()
        problems.append(
            f"{url}: the checksum is {found}, not {remote.checksum}; what came was deleted"
        )
    if remote.checksum is None:
        part.unlink(missing_ok=True)
    kept = (
        f"; {_size(part):,} of {remote.size:,} bytes are kept and the next run continues"
        if _size(part)
        else ""
    )
    raise UserError(
        f"cannot download {remote.name}: {'; '.join(problems)}{kept}. Or by hand: "
        f"{remote.how_to_get(path.parent)}"
    )


def _complete(url: str, part: Path, remote: Remote) -> None:
    """Request the missing bytes until ``part`` is complete, as long as every request brings some."""
    size = remote.size if remote.checksum else None  # None: the first answer tells
    for _ in range(_MOST_REQUESTS):
        have = _size(part)
        if have == size:
            return
        if size is not None and have > size:
            part.unlink()
            have = 0
        missing = f"{(remote.size - have) / 1e6:.1f} of {remote.size / 1e6:.1f} MB"
        say(f"fedbench: downloading {url} ({missing}) to {part.parent}")
        reason = "the connection ended early"
        try:
            size = _request(url, part, have, remote)
        except _NETWORK as error:
            reason = f"{type(error).__name__}: {error}"
        if _size(part) <= have:
            raise _Unavailable(f"{reason} ({have:,} of {remote.size:,} bytes)")
    raise _Unavailable(
        f"{_MOST_REQUESTS} requests brought only {_size(part):,} of {remote.size:,} bytes"
    )


def _request(url: str, part: Path, have: int, remote: Remote) -> int:
    """One request; the size of the whole file. A server that ignores the range sends everything,
    and the part starts again.
    """
    headers = _HEADERS | ({"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urlopen(Request(url, headers=headers), timeout=_TIMEOUT)
    except HTTPError as error:
        # the server's file ends before ours: not the same file
        if error.code == _RANGE_NOT_SATISFIABLE:
            part.unlink()
        raise
    with answer:
        begin = have if answer.status == 206 else 0
        if begin and not (answer.headers["Content-Range"] or "").startswith(f"bytes {begin}-"):
            raise ConnectionError("the server answered with another range than the requested one")
        size = remote.size
        if remote.checksum is None:
            length = answer.headers["Content-Length"] or ""
            size = begin + int(length) if length.isdigit() else 0
            if not begin < size <= remote.size:
                raise _Unavailable(
                    f"it announces {length or 'no'} bytes, 1 to {remote.size - begin:,} expected"
                )
        room = size - begin
        with open(part, "ab" if begin else "wb") as out:
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


class _Refused(Exception):
    """A member no honest archive of data has."""


def archive_files(
    archive: Path, max_bytes: int, max_files: int = 500_000
) -> Iterator[tuple[PurePosixPath, IO[bytes]]]:
    """Path and content of every plain file of a .tar, .tar.gz or .zip, in its order, with nothing
    unpacked to disk.

    Raises ``UserError`` for what ``unpack`` refuses; a damaged archive raises when it is read.
    """
    room = max_bytes
    try:
        for i, (path, size, content) in enumerate(_members(archive)):
            room -= size
            if i >= max_files or room < 0:
                raise _Refused(
                    f"more than {max_files:,} files"
                    if room >= 0
                    else f"more than {max_bytes:,} bytes unpacked"
                )
            yield path, content
    except _Refused as error:
        raise UserError(
            f"{archive}: not unpacked: it holds {error}; get it from its official home"
        ) from error


def unpack(archive: Path, folder: Path, top: str, max_bytes: int, max_files: int = 500_000) -> Path:
    """``folder / top``, unpacked from a .tar, .tar.gz or .zip: whole or not at all.

    Plain files and folders only: an absolute path, ``..``, a link or a device, more than
    ``max_bytes`` or ``max_files`` refuse the whole archive. Raises ``UserError``. Verify the
    checksum (``fetch``) first.
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
                with open(into / path, "xb") as out:
                    shutil.copyfileobj(content, out)
            if not (into / top).is_dir():
                raise UserError(f"{archive}: holds no folder '{top}'; delete it and run again")
            (into / top).rename(target)
        except (*_DAMAGED, FileExistsError, NotADirectoryError) as error:
            what = f"a damaged archive ({type(error).__name__}: {error}), not unpacked"
            raise UserError(f"{archive}: {what}; delete it and run again") from error
        finally:
            shutil.rmtree(into)
    return target


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
            # 0 where the archive was not made on a Unix
            kind = stat.S_IFMT(member.external_attr >> 16)
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
