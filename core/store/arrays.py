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
_START = b"\x93NUMPY\x01\x00"
_HEADER = re.compile(
    rb"\{'descr': '([<>|][A-Za-z]\d{0,4})', 'fortran_order': (True|False), 'shape': "
    rb"\(((?:\d{1,12}, ?)*(?:\d{1,12})?)\), \}\s*"
)
_NUMBERS = re.compile(r"[<>|](b1|[iu][1248]|f[248])")
_BROKEN = (OSError, zipfile.BadZipFile, zlib.error, EOFError, ValueError, KeyError, RuntimeError)


class RunArrays:
    """The arrays of a run, unpacked when asked for. Every defect is a ``UserError`` with the file
    and ``remedy``.
    """

    def __init__(self, path: Path, remedy: str) -> None:
        self._path, self._remedy = path, remedy
        self._unpacked: dict[str, np.ndarray] = {}
        with self._defects():
            content = _content(path)
            self._file = zipfile.ZipFile(io.BytesIO(content))
            self._names = {
                info.filename.removesuffix(".npy"): info for info in self._file.infolist()
            }
            most = min(MAX_UNPACKED_BYTES, _ROOM + _MAX_RATIO * len(content))
            if (size := sum(info.file_size for info in self._names.values())) > most:
                raise _Malformed(
                    f"its arrays are {size >> 20:,} MiB, more than {most >> 20:,} for a file of "
                    "its size"
                )

    @contextmanager
    def _defects(self) -> Iterator[None]:
        try:
            yield
        except _BROKEN as error:
            raise self.error(f"{type(error).__name__}: {error}") from error
        except _Malformed as error:
            raise self.error(str(error)) from error

    def error(self, reason: str) -> UserError:
        """A defect of the file."""
        return UserError(f"{self._path}: {reason}; {self._remedy}")

    @property
    def names(self) -> list[str]:
        """Of all arrays in the file."""
        return list(self._names)

    def find(self, key: str, name: str) -> np.ndarray | None:
        """The array of the cell with this key: its own, else the one that all cells share."""
        if (own := member(key, name)) not in self._names:
            own = name
        if own not in self._unpacked and own in self._names:
            with self._defects():
                self._unpacked[own] = _array(self._file, self._names[own])
        return self._unpacked.get(own)

    def array(self, key: str, name: str) -> np.ndarray:
        """The same, which must be there."""
        if (found := self.find(key, name)) is None:
            raise self.error(f"the array '{name}' is missing")
        return found

    def vector(self, key: str, name: str, dtype: type, length: int | None = None) -> np.ndarray:
        """The same, which must be a vector of this type (and length)."""
        found = self.array(key, name)
        if found.dtype != np.dtype(dtype) or found.ndim != 1 or length not in (None, len(found)):
            expected = (
                "a vector of " + ("" if length is None else f"{length} ") + np.dtype(dtype).name
            )
            raise self.error(
                f"'{name}' is {found.dtype} of shape {list(found.shape)}, expected {expected}"
            )
        return found


class _Malformed(Exception):
    """A defect of the file."""


def _array(z: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    name = info.filename.removesuffix(".npy")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise _Malformed(f"'{name}' is compressed in a way numpy does not use")
    content = z.read(info)
    start = len(_START) + 2
    end = start + int.from_bytes(content[len(_START) : start], "little")
    header = _HEADER.fullmatch(content[start:end])
    if not content.startswith(_START) or header is None:
        raise _Malformed(f"'{name}' is not a plain array")
    kind, order, axes = (part.decode() for part in header.groups())
    if not _NUMBERS.fullmatch(kind):
        raise _Malformed(f"'{name}' is {kind}, expected numbers")
    dtype = np.dtype(kind)
    shape = [int(axis) for axis in axes.split(",") if axis.strip()]
    if len(content) - end != math.prod(shape) * dtype.itemsize:
        raise _Malformed(f"'{name}' has {len(content) - end} bytes, its header says shape {shape}")
    return np.frombuffer(content, dtype, offset=end).reshape(
        shape, order="F" if order == "True" else "C"
    )


def _content(path: Path) -> bytes:
    """The bytes of the file, if it ends as an archive of numpy does, with a directory of a bounded
    size.
    """
    try:
        found = bytes_of(path, MAX_FILE_BYTES)
    except OverflowError:
        raise _Malformed(f"larger than {MAX_FILE_BYTES >> 20} MiB") from None
    if found is None:
        raise _Malformed("not a regular file")
    size = directory_bytes(found[-42:])
    if size is None:
        raise _Malformed(
            "it does not end as numpy's archives do (cut short, or with something behind it)"
        )
    if size > MAX_DIRECTORY_BYTES:
        raise _Malformed(
            f"its directory is {size >> 20:,} MiB, more than {MAX_DIRECTORY_BYTES >> 20}"
        )
    return found


def directory_bytes(end: bytes) -> int | None:
    """The size of the directory of a zip file, from the last 42 bytes of the file; None where they
    are not those of a plain zip file without a comment.
    """
    plain = end[-22:-18] == b"PK\x05\x06" and end[-42:-38] != b"PK\x06\x07"
    return int.from_bytes(end[-10:-6], "little") if plain else None
