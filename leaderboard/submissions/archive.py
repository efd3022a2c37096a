"""A zip file of somebody else's, looked at byte by byte before anything is unpacked: only what fedbench itself writes passes.

Entries follow one another without a gap, have plain names, sizes that are true and no more than they may be, and no links,
encryption, comments or extra fields. So nothing is hidden, and what a reader sees is what every other reader sees.
"""

from __future__ import annotations

import hashlib
import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from fedbench.core import UserError
from fedbench.core.store.reading import MAX_RECORD_BYTES
from fedbench.core.words import one_line
from fedbench.leaderboard.submissions.names import MANIFEST, is_name

MAX_BUNDLE_BYTES = 2 << 30
MAX_UNPACKED_BYTES = 8 << 30
MAX_ENTRIES = 50_000
MAX_RATIO = 200  # unpacked to packed, of one entry; records are about 8
MAX_MANIFEST_BYTES = 64 << 20
MAX_SCORES_BYTES = 256 << 20
_MOST = {"records.json": MAX_RECORD_BYTES, "records.npz": MAX_SCORES_BYTES}
_MOST_OF_A_SUITE = 8 << 20
_SMALL = 1 << 16  # below, the ratio does not count: a file of blanks is no danger
_END, _LOCAL = struct.Struct("<4s4H2LH"), struct.Struct("<4s5H3L2H")
_LONGEST_NAME = 300
_WRITTEN = (2020, 1, 1, 0, 0, 0)
_CHUNK = 1 << 20


class Refused(Exception):
    """What is wrong with a bundle."""


class Archive:
    """``with Archive(path) as a``: every entry has been checked, ``a.sizes`` has their names and unpacked sizes, and ``a.read``
    and ``a.copy`` give contents of exactly that size. Every defect is a ``UserError`` that names the file."""

    _broken = (Refused, zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError)

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Archive:
        try:
            if not self.path.is_file():
                raise Refused("no such file" if not self.path.exists() else "not a regular file")
            self._file = self.path.open("rb")
        except self._broken as error:
            raise self._complaint(error) from error
        try:
            entries, start = self._end()
            self._zip = zipfile.ZipFile(self._file)
            self._require_plain(self._zip.infolist(), entries, start)
            self.sizes = {info.filename: info.file_size for info in self._zip.infolist()}
        except self._broken as error:
            self._file.close()
            raise self._complaint(error) from error
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._zip.close()
        self._file.close()
        if isinstance(error, self._broken):
            raise self._complaint(error) from error

    def _complaint(self, error: BaseException) -> UserError:
        reason = str(error) if isinstance(error, Refused) else f"not a whole zip file ({type(error).__name__}: {error})"
        return UserError(f"{self.path}: refused, nothing was unpacked: {one_line(reason, 400)}")

    def _end(self) -> tuple[int, int]:
        """(entries, where their directory begins), from the last bytes, before the directory is read into memory."""
        length = self._file.seek(0, io.SEEK_END)
        if length > MAX_BUNDLE_BYTES:
            raise Refused(f"larger than {MAX_BUNDLE_BYTES >> 20} MiB")
        if length < _END.size:
            raise Refused("too short for a zip file")
        self._file.seek(length - _END.size)
        magic, disk, first, here, entries, size, start, comment = _END.unpack(self._file.read(_END.size))
        if magic != b"PK\x05\x06":
            raise Refused("it does not end as a zip file of fedbench does (cut short, or with something behind it)")
        if entries > MAX_ENTRIES or size > MAX_ENTRIES * _LONGEST_NAME:
            raise Refused(f"it holds more than {MAX_ENTRIES:,} entries")
        if (disk, first, comment) != (0, 0, 0) or here != entries or start + size + _END.size != length:
            raise Refused("its directory is not where its end says (another zip before, inside or behind it, or a comment)")
        return entries, start

    def _require_plain(self, infos: list[zipfile.ZipInfo], entries: int, start: int) -> None:
        if len(infos) != entries:
            raise Refused(f"it says {entries} entries and has {len(infos)}")
        names: set[str] = set()
        at = total = 0
        for info in infos:
            self._require_entry(info)
            if info.filename.casefold() in names:
                raise Refused(f"two entries are called {info.filename!r}")
            names.add(info.filename.casefold())
            at = self._after(info, at)
            total += info.file_size
        if at != start:
            raise Refused(f"{start - at} bytes before its directory belong to no entry")
        if total > MAX_UNPACKED_BYTES:
            raise Refused(f"unpacked it would be {total >> 20:,} MiB, more than {MAX_UNPACKED_BYTES >> 20:,}")

    def _require_entry(self, info: zipfile.ZipInfo) -> None:
        name, mode = info.orig_filename, info.external_attr >> 16
        if not is_name(name) or name != info.filename:
            raise Refused(f"the entry {name!r:.200} has no name of a bundle's file")
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG) or info.is_dir():
            raise Refused(f"the entry {name!r} is a link or another special file")
        if info.flag_bits & ~0x0002:  # bits 1 and 2 only say how hard deflate tried
            raise Refused(f"the entry {name!r} is encrypted, or written in a way that fedbench does not use")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.extra or info.comment:
            raise Refused(f"the entry {name!r} is compressed in another way, or has extra fields")
        most = most_of(name)
        if info.file_size > most:
            raise Refused(f"{name!r} would be {info.file_size:,} bytes, more than the {most:,} that such a file may have")
        if info.file_size > max(_SMALL, MAX_RATIO * info.compress_size):
            raise Refused(f"{name!r} would become {info.file_size:,} bytes out of {info.compress_size:,}: a zip bomb")

    def _after(self, info: zipfile.ZipInfo, at: int) -> int:
        """Where an entry ends that must begin at ``at``; its own header says what the directory says."""
        self._file.seek(at)
        header = self._file.read(_LOCAL.size)
        if info.header_offset != at or len(header) < _LOCAL.size:
            raise Refused(f"the entry {info.filename!r} does not follow the one before: it overlaps, or leaves a gap")
        magic, _, flags, method, _, _, crc, packed, size, name, extra = _LOCAL.unpack(header)
        sizes = (info.CRC, info.compress_size, info.file_size, len(info.filename), 0)
        own = (b"PK\x03\x04", info.flag_bits, info.compress_type, *sizes)
        if (magic, flags, method, crc, packed, size, name, extra) != own or self._file.read(name) != info.filename.encode():
            raise Refused(f"the entry {info.filename!r} says something else of itself than the directory says of it")
        end: int = at + _LOCAL.size + name + packed
        return end

    def read(self, name: str) -> bytes:
        """A small entry, whole."""
        return b"".join(self._chunks(name))

    def copy(self, name: str, out: IO[bytes]) -> str:
        """Write an entry out; hex sha256 of it."""
        h = hashlib.sha256()
        for chunk in self._chunks(name):
            h.update(chunk)
            out.write(chunk)
        return h.hexdigest()

    def _chunks(self, name: str) -> Iterator[bytes]:
        left = self.sizes[name]
        with self._zip.open(name) as f:
            while chunk := f.read(min(_CHUNK, left + 1)):
                left -= len(chunk)
                if left < 0:
                    raise Refused(f"{name!r} is longer than it says")
                yield chunk
        if left:
            raise Refused(f"{name!r} is shorter than it says")


def most_of(name: str) -> int:
    """How large an entry may be, in bytes."""
    if name == MANIFEST:
        return MAX_MANIFEST_BYTES
    folder, _, file = name.partition("/")
    return _MOST.get(f"{folder}.{file.rpartition('.')[2]}", _MOST_OF_A_SUITE)


def write_archive(out: IO[bytes], files: Iterator[tuple[str, bytes]]) -> None:
    """The files in their order; the same files give the same bytes."""
    with zipfile.ZipFile(out, "w") as z:
        for name, content in files:
            info = zipfile.ZipInfo(name, _WRITTEN)
            info.create_system, info.external_attr = 3, (stat.S_IFREG | 0o644) << 16
            info.compress_type = zipfile.ZIP_STORED if name.endswith(".npz") else zipfile.ZIP_DEFLATED
            z.writestr(info, content, compresslevel=9)
