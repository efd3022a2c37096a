"""Files of data sets: parsed once, and refused where they cannot be parsed."""

from __future__ import annotations

import csv
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedbench.core import UserError
from fedbench.core.toolkit import Arrays, cached, file_lines

AGAIN = "delete it and run again"
# what the parsers of damaged files raise, torchvision's among them
_DAMAGED = (
    AssertionError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    csv.Error,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)


@contextmanager
def parsing(place: object, remedy: str = AGAIN) -> Iterator[None]:
    """Turn what a parser raises into a ``UserError`` with the place and the remedy."""
    try:
        yield
    except _DAMAGED as error:
        raise UserError(
            f"{place}: cannot be read ({type(error).__name__}: {error}); {remedy}"
        ) from error


def read_once(
    name: str,
    files: Sequence[Path],
    root: Path,
    read: Callable[[Sequence[Path]], Arrays],
    remedy: str = AGAIN,
    settings: Sequence[str] = (),
) -> Arrays:
    """Return ``read(files)``, from the cache unless a file has changed.

    Args:
        root: the folder below which the files lie.
        remedy: what to do about a missing file.
        settings: whatever else the arrays depend on.

    Raises:
        UserError: a file is missing or cannot be parsed.
    """
    try:
        lines = file_lines(files, root)
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}; {remedy}") from error
    return cached(name, [name, *settings, *lines], lambda: read(files))
