"""One-dimensional arrays out of an ``.npz`` made by somebody else: sizes are checked before anything is allocated."""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import IO

import numpy as np
from numpy.lib import format as npy

from fedbench.core.contract.errors import UserError
from fedbench.core.store.archive import Members, Unusual
from fedbench.core.store.files import bytes_of

MAX_FILE_BYTES = 1 << 30
MAX_ARRAY_BYTES = 1 << 28  # 32 million candidates
MAX_UNPACKED_BYTES = 1 << 29  # of all arrays of a file, which are in memory together
MAX_DIRECTORY_BYTES = 16 << 20  # a hundred thousand arrays
_SMALL_BYTES = 1 << 20
_MAGIC = npy.magic(1, 0)
_LEAD = npy.MAGIC_LEN + 2  # bytes before numpy's header
_END_BYTES = 22  # what numpy writes behind the directory


class Malformed(Exception):
    """What is wrong with the open file; leaves the ``with`` block as a UserError that names the file."""


class ArrayFile:
    """``with ArrayFile(path, remedy) as a: a.read("name", np.float32)``; every defect of the file is a UserError.

    The file is in memory meanwhile. What numpy wrote is taken out of it directly; in whatever else there is ``zipfile`` looks for
    the arrays, and says what is wrong with it.
    """

    _broken = (Malformed, OSError, zipfile.BadZipFile, zlib.error, EOFError, ValueError, KeyError, RuntimeError)

    def __init__(self, path: Path, remedy: str) -> None:
        self.path, self.remedy = path, remedy
        self._unpacked: dict[str, bytes] = {}
        self._zip: zipfile.ZipFile | None = None

    def __enter__(self) -> ArrayFile:
        try:
            self._content = _content(self.path)
            self._members = _members(self._content)
            size = self._members.size if self._members is not None else sum(i.file_size for i in self._archive().infolist())
            if size > MAX_UNPACKED_BYTES:
                raise Malformed(f"its arrays are {size >> 20:,} MiB, more than {MAX_UNPACKED_BYTES >> 20:,}")
        except self._broken as error:
            raise self._complaint(error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._content, self._unpacked = b"", {}
        if isinstance(error, self._broken):
            raise self._complaint(error) from error

    def _complaint(self, error: BaseException) -> UserError:
        reason = str(error) if isinstance(error, Malformed) else f"{type(error).__name__}: {error}"
        if isinstance(error, FileNotFoundError):
            reason = "missing, though its record says 'ok'"
        return UserError(f"{self.path}: {reason}; {self.remedy}")

    def __contains__(self, name: str) -> bool:
        if self._members is not None:
            return f"{name}.npy" in self._members
        try:
            return self._archive().getinfo(f"{name}.npy") is not None
        except KeyError:
            return False

    def sha256(self) -> str:
        """Hex sha256 of the file."""
        return hashlib.sha256(self._content).hexdigest()

    def length(self, name: str, dtype: type | None = None) -> int:
        """Length of the vector ``name``, from its header alone; its type is checked where ``dtype`` is given."""
        with self._open(name, whole=False) as f:
            return self._header(f, name, dtype)[0]

    def read(self, name: str, dtype: type, length: int | None = None) -> np.ndarray:
        """The vector ``name``, which must have this type (and length)."""
        if (found := self._plain(name, dtype, length)) is not None:
            return found
        with self._open(name) as f:
            n, kind = self._header(f, name, dtype)
            if length is not None and n != length:
                raise Malformed(f"'{name}' has {n} entries, expected {length}")
            data = f.read(n * kind.itemsize)
        if len(data) != n * kind.itemsize:
            raise Malformed(f"'{name}' ends after {len(data)} bytes")
        return np.frombuffer(data, dtype=kind)

    def _plain(self, name: str, dtype: type, length: int | None) -> np.ndarray | None:
        """The same of a vector just as numpy writes it and as it is wanted; None of any other, which ``_header`` looks at."""
        if self._members is None or f"{name}.npy" not in self._members:
            return None
        try:
            content = self._of_member(self._members, f"{name}.npy", True)
        except Unusual:
            return None
        start = _LEAD + int.from_bytes(content[_LEAD - 2 : _LEAD], "little")
        if content[: npy.MAGIC_LEN] != _MAGIC:
            return None
        shape, kind = _described(content[_LEAD - 2 : start])
        if len(shape) != 1 or kind != np.dtype(dtype) or kind.hasobject or length not in (None, shape[0]):
            return None
        if not 0 <= shape[0] * kind.itemsize <= min(len(content) - start, MAX_ARRAY_BYTES):
            return None
        return np.frombuffer(content, kind, shape[0], start)

    def _open(self, name: str, whole: bool = True) -> IO[bytes]:
        """``whole``: or so much of it as a header may have."""
        if name not in self:
            raise Malformed(f"the array '{name}' is missing")
        if self._members is not None:
            try:
                return io.BytesIO(self._of_member(self._members, f"{name}.npy", whole))
            except Unusual:
                self._members = None
        if self._archive().getinfo(f"{name}.npy").compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise Malformed(f"'{name}' is compressed in a way numpy does not use")
        return self._archive().open(f"{name}.npy")

    def _archive(self) -> zipfile.ZipFile:
        if self._zip is None:
            self._zip = zipfile.ZipFile(io.BytesIO(self._content))
        return self._zip

    def _of_member(self, members: Members, member: str, whole: bool) -> bytes:
        if member not in self._unpacked:
            if not whole and members.size_of(member) > _SMALL_BYTES:
                return members.head(member, _SMALL_BYTES)
            self._unpacked[member] = members.read(member)
        return self._unpacked[member]

    def _header(self, f: IO[bytes], name: str, dtype: type | None) -> tuple[int, np.dtype]:
        start = f.read(npy.MAGIC_LEN + 2)
        if start[: npy.MAGIC_LEN] != _MAGIC:
            raise Malformed(f"'{name}' is not a plain array")
        length = start[npy.MAGIC_LEN :]
        shape, found = _described(length + f.read(int.from_bytes(length, "little")))
        if len(shape) != 1 or found.hasobject or shape[0] * found.itemsize > MAX_ARRAY_BYTES:
            raise Malformed(f"'{name}' is not a vector of plain numbers below {MAX_ARRAY_BYTES >> 20} MiB")
        if dtype is not None and found != np.dtype(dtype):
            raise Malformed(f"'{name}' is {found}, expected {np.dtype(dtype)}")
        return shape[0], found


def _content(path: Path) -> bytes:
    try:
        found = bytes_of(path, MAX_FILE_BYTES)
    except OverflowError:
        raise Malformed(f"larger than {MAX_FILE_BYTES >> 20} MiB") from None
    if found is None:
        raise Malformed("not a regular file")
    return found


def _members(content: bytes) -> Members | None:
    """None: not as numpy writes it. Read whole, a directory of a million entries would take gigabytes: its size stands at the
    end of the file."""
    end = content[-_END_BYTES:]
    if end[:4] != b"PK\x05\x06":
        raise Malformed("it does not end as numpy's archives do (cut short, or with something behind it)")
    if (size := int.from_bytes(end[12:16], "little")) > MAX_DIRECTORY_BYTES:
        raise Malformed(f"its directory is {size >> 20:,} MiB, more than {MAX_DIRECTORY_BYTES >> 20}")
    try:
        return Members(content)
    except Unusual:
        return None


@lru_cache(maxsize=512)
def _described(header: bytes) -> tuple[tuple[int, ...], np.dtype]:
    """(shape, type) of numpy's header, which is Python source: a folder has thousands of the same few."""
    shape, _, found = npy.read_array_header_1_0(io.BytesIO(header))
    return shape, found
