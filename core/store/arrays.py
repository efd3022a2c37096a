"""Read the ``.npz`` file of a run, which may have any origin: sizes are checked first, nothing is
unpickled.
"""

from __future__ import annotations

import io
import math
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fedbench.core.contract.errors import UserError
from fedbench.core.store.files import bytes_of
from fedbench.core.store.run_file import member

MAX_FILE_BYTES = 1 << 30
MAX_UNPACKED_BYTES = 1 << 29  # of all arrays of a file
_ROOM = 64 << 20  # of these, whatever the size of the file
_MAX_RATIO = 100  # beyond; the scores of a run hardly compress
MAX_DIRECTORY_BYTES = 16 << 20  # a hundred thousand arrays
_LOCAL_HEADER = 30  # bytes before the name of a member
_START = b"\x93NUMPY\x01\x00"
_HEADER = re.compile(
    rb"\{'descr': '([<>|][A-Za-z]\d{0,4})', 'fortran_order': (True|False), 'shape': "
    rb"\(((?:\d{1,12}, ?)*(?:\d{1,12})?)\), \}\s*"
)
_NUMBERS = re.compile(r"[<>|](b1|[iu][1248]|f[248])")
_BROKEN = (OSError, zipfile.BadZipFile, zlib.error, EOFError, ValueError, KeyError, RuntimeError)


class _Malformed(Exception):
    """A defect of the file, in words."""


class RunArrays:
    """The arrays of a run, unpacked when they are read.

    Every defect is a ``UserError`` with the file and ``remedy``.
    """

    def __init__(self, path: Path, remedy: str) -> None:
        self._path = path
        self._remedy = remedy
        self._unpacked: dict[str, np.ndarray] = {}
        with self._defects():
            self._content = _content(path)
            members = zipfile.ZipFile(io.BytesIO(self._content)).infolist()
            _require_size(members, len(self._content))
            self._members = {info.filename.removesuffix(".npy"): info for info in members}

    @contextmanager
    def _defects(self) -> Iterator[None]:
        try:
            yield
        except _Malformed as error:
            raise self.error(str(error)) from error
        except _BROKEN as error:
            raise self.error(f"{type(error).__name__}: {error}") from error

    def error(self, reason: str) -> UserError:
        """Return the error of a defect."""
        return UserError(f"{self._path}: {reason}; {self._remedy}")

    @property
    def names(self) -> list[str]:
        """The names of all arrays in the file."""
        return list(self._members)

    def find(self, key: str, name: str) -> np.ndarray | None:
        """Return an array of the cell with this key, else the one that all cells share, or None."""
        stored = member(key, name)
        if stored not in self._members:
            stored = name
        if stored in self._members and stored not in self._unpacked:
            with self._defects():
                self._unpacked[stored] = _array(self._content, self._members[stored])
        return self._unpacked.get(stored)

    def array(self, key: str, name: str) -> np.ndarray:
        """Return an array of the cell, or the shared one. Raises ``UserError`` without either."""
        if (a := self.find(key, name)) is None:
            raise self.error(f"the array '{name}' is missing")
        return a

    def vector(self, key: str, name: str, dtype: type, length: int | None = None) -> np.ndarray:
        """Return an array that must be a vector of this type and, unless None, length."""
        a = self.array(key, name)
        if a.dtype != np.dtype(dtype) or a.ndim != 1 or length not in (None, len(a)):
            size = "" if length is None else f"{length} "
            raise self.error(
                f"'{name}' is {a.dtype} of shape {list(a.shape)}, expected a vector of {size}"
                f"{np.dtype(dtype).name}"
            )
        return a


def _require_size(members: list[zipfile.ZipInfo], packed: int) -> None:
    most = min(MAX_UNPACKED_BYTES, _ROOM + _MAX_RATIO * packed)
    size = sum(info.file_size for info in members)
    if size > most:
        raise _Malformed(
            f"its arrays are {size >> 20:,} MiB, more than {most >> 20:,} for a file of its size"
        )


def _unpacked(archive: bytes, info: zipfile.ZipInfo) -> bytes:
    """Return the content of a member as ``ZipFile.read`` does, which takes three times as long for
    a small one.
    """
    name = info.filename.removesuffix(".npy")
    start = info.header_offset + _LOCAL_HEADER
    lengths = archive[start - 4 : start]  # of the name and of further fields, which come next
    start += int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
    content = archive[start : start + info.compress_size]
    if info.compress_type == zipfile.ZIP_DEFLATED:
        content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, info.file_size + 1)
    elif info.compress_type != zipfile.ZIP_STORED:
        raise _Malformed(f"'{name}' is compressed in a way numpy does not use")
    if len(content) != info.file_size or zlib.crc32(content) != info.CRC:
        raise _Malformed(f"'{name}' is damaged")
    return content


def _array(archive: bytes, info: zipfile.ZipInfo) -> np.ndarray:
    """Return an array of numbers, with a header of the form that numpy writes."""
    name = info.filename.removesuffix(".npy")
    content = _unpacked(archive, info)
    start = len(_START) + 2
    end = start + int.from_bytes(content[len(_START) : start], "little")
    header = _HEADER.fullmatch(content[start:end])
    if not content.startswith(_START) or header is None:
        raise _Malformed(f"'{name}' is not a plain array")
    kind, fortran, axes = (part.decode() for part in header.groups())
    if not _NUMBERS.fullmatch(kind):
        raise _Malformed(f"'{name}' is {kind}, expected numbers")
    dtype = np.dtype(kind)
    shape = [int(axis) for axis in axes.split(",") if axis.strip()]
    if len(content) - end != math.prod(shape) * dtype.itemsize:
        raise _Malformed(f"'{name}' has {len(content) - end} bytes, its header says shape {shape}")
    values = np.frombuffer(content, dtype, offset=end)
    return values.reshape(shape, order="F" if fortran == "True" else "C")


def _content(path: Path) -> bytes:
    """Return the bytes of a file that ends as numpy's archives do, with a directory of a bounded
    size.
    """
    try:
        content = bytes_of(path, MAX_FILE_BYTES)
    except OverflowError:
        raise _Malformed(f"larger than {MAX_FILE_BYTES >> 20} MiB") from None
    if content is None:
        raise _Malformed("not a regular file")
    size = directory_bytes(content[-42:])
    if size is None:
        raise _Malformed(
            "it does not end as numpy's archives do (cut short, or with something behind it)"
        )
    if size > MAX_DIRECTORY_BYTES:
        raise _Malformed(
            f"its directory is {size >> 20:,} MiB, more than {MAX_DIRECTORY_BYTES >> 20}"
        )
    return content


def directory_bytes(end: bytes) -> int | None:
    """Return the size of the directory of a zip file, given the file's last 42 bytes; None where
    they are not those of a plain zip file without a comment.
    """
    plain = end[-22:-18] == b"PK\x05\x06" and end[-42:-38] != b"PK\x06\x07"
    return int.from_bytes(end[-10:-6], "little") if plain else None
