"""Write whole files or none: a temporary file in the same folder, flushed, then renamed."""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path

import numpy as np

TEMPORARY_PREFIX = ".tmp-"


def write_atomically(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content`` in one step; a kill at any moment leaves the old file or the new one.

    Raises ``OSError`` that names ``path``.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, content)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


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
