"""Read vectors from an ``.npz`` file of unknown origin: sizes are checked first, nothing is unpickled."""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.lib import format as npy

from fedbench.core.contract.errors import UserError
from fedbench.core.store.files import bytes_of

MAX_FILE_BYTES = 1 << 30
MAX_UNPACKED_BYTES = 1 << 29  # of all arrays of a file
MAX_DIRECTORY_BYTES = 16 << 20  # a hundred thousand arrays
_MAX_HEADER_BYTES = 512  # numpy writes 118 for a vector


class Malformed(Exception):
    """A defect of the open file; leaves the ``with`` block as a UserError that names the file."""


class ArrayFile:
    """``with ArrayFile(path, remedy) as a: a.read("name", np.float32)``; every defect of the file is a UserError."""

    _broken = (
        Malformed, OSError, zipfile.BadZipFile, zlib.error, EOFError, ValueError, KeyError, RuntimeError, NotImplementedError,
        MemoryError,
    )  # fmt: skip

    def __init__(self, path: Path, remedy: str) -> None:
        self.path, self.remedy = path, remedy
        self._read: dict[str, np.ndarray] = {}

    def __enter__(self) -> ArrayFile:
        try:
            if hasattr(self, "_zip"):  # entered before: its content is in memory
                return self
            self._zip = zipfile.ZipFile(io.BytesIO(_content(self.path)))
            if (size := sum(member.file_size for member in self._zip.infolist())) > MAX_UNPACKED_BYTES:
                raise Malformed(f"its arrays are {size >> 20:,} MiB, more than {MAX_UNPACKED_BYTES >> 20:,}")
        except self._broken as error:
            raise self._complaint(error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, self._broken):
            raise self._complaint(error) from error

    def _complaint(self, error: BaseException) -> UserError:
        reason = str(error) if isinstance(error, Malformed) else f"{type(error).__name__}: {error}"
        return UserError(f"{self.path}: {reason}; {self.remedy}")

    def __contains__(self, name: str) -> bool:
        return f"{name}.npy" in self._zip.NameToInfo

    def array(self, name: str) -> np.ndarray:
        """The array ``name``, of any numbers."""
        if name not in self._read:
            self._read[name] = self._array(name)
        return self._read[name]

    def read(self, name: str, dtype: type, length: int | None = None) -> np.ndarray:
        """The vector ``name``, which must have this type (and length)."""
        found = self.array(name)
        if found.dtype != np.dtype(dtype) or found.ndim != 1 or length not in (None, len(found)):
            expected = "a vector of " + ("" if length is None else f"{length} ") + np.dtype(dtype).name
            raise Malformed(f"'{name}' is {found.dtype} of shape {list(found.shape)}, expected {expected}")
        return found

    def _array(self, name: str) -> np.ndarray:
        if name not in self:
            raise Malformed(f"the array '{name}' is missing")
        member = self._zip.getinfo(f"{name}.npy")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise Malformed(f"'{name}' is compressed in a way numpy does not use")
        with self._zip.open(member) as f:
            if npy.read_magic(f) != (1, 0):
                raise Malformed(f"'{name}' is not a plain array")
            shape, _, dtype = npy.read_array_header_1_0(f, max_header_size=_MAX_HEADER_BYTES)
            if dtype.kind not in "biuf":
                raise Malformed(f"'{name}' is {dtype}, expected numbers")
            data = f.read()
        if len(data) != math.prod(shape) * dtype.itemsize:
            raise Malformed(f"'{name}' has {len(data)} bytes, its header says shape {list(shape)}")
        return np.frombuffer(data, dtype=dtype).reshape(shape)


def _content(path: Path) -> bytes:
    """The bytes of the file, if it ends as an archive of numpy does, with a directory of a bounded size."""
    try:
        found = bytes_of(path, MAX_FILE_BYTES)
    except OverflowError:
        raise Malformed(f"larger than {MAX_FILE_BYTES >> 20} MiB") from None
    if found is None:
        raise Malformed("not a regular file")
    size = directory_bytes(found[-42:])
    if size is None:
        raise Malformed("it does not end as numpy's archives do (cut short, or with something behind it)")
    if size > MAX_DIRECTORY_BYTES:
        raise Malformed(f"its directory is {size >> 20:,} MiB, more than {MAX_DIRECTORY_BYTES >> 20}")
    return found


def directory_bytes(end: bytes) -> int | None:
    """The size of the directory of a zip file, from the last 42 bytes of the file; None where they are not those of a plain zip
    file without a comment."""
    plain = end[-22:-18] == b"PK\x05\x06" and end[-42:-38] != b"PK\x06\x07"
    return int.from_bytes(end[-10:-6], "little") if plain else None
