"""Decoded once: arrays cached beside the data."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from fedbench.core.store.files import TEMPORARY_PREFIX, read_npz
from fedbench.core.toolkit.folders import decoded_folder

Arrays = dict[str, np.ndarray]


def cached(name: str, source: Iterable[str], build: Callable[[], Arrays]) -> Arrays:
    """``build()``, or what it answered earlier for the same ``source``.

    ``source``: lines that name everything the arrays depend on (files with size and time, decoding parameters). A
    damaged cache (each array carries a CRC) is built again; one that cannot be written costs a warning, not the run.
    """
    digest = hashlib.sha256("\n".join(source).encode("utf-8", "surrogateescape")).hexdigest()  # names need not be UTF-8
    path = decoded_folder() / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}-{digest[:20]}.npz"
    if path.exists():
        try:
            return read_npz(path)
        except (OSError, ValueError) as error:
            print(f"fedbench: {path} is damaged ({error}); decoding again", file=sys.stderr)
    arrays = build()
    try:
        _store(path, arrays)
    except OSError as error:
        print(f"fedbench: cannot write {path} ({error.strerror}): the next run decodes again", file=sys.stderr)
    return arrays


def file_lines(files: Iterable[str | Path], root: Path) -> list[str]:
    """For ``source``: path below ``root``, size and time of change of each file, in the order given."""
    cut = len(os.path.join(root, ""))
    stats = ((os.fspath(f)[cut:], os.stat(f)) for f in files)
    return [f"{name}:{s.st_size}:{s.st_mtime_ns}" for name, s in stats]


def _store(path: Path, arrays: Arrays) -> None:
    """Streamed to a temporary file, then renamed: half a cache is never seen, and memory is not used twice."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as f:
            np.savez(f, allow_pickle=False, **arrays)  # type: ignore[arg-type]
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
