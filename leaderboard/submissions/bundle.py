"""Zip files of results folders: marker, records, arrays, suites and, where asked for, observations;
nothing else.
"""

from __future__ import annotations

import io
import re
import shutil
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from fedbench.core import UserError
from fedbench.core.store.arrays import directory_bytes
from fedbench.core.store.reading import MAX_RECORD_BYTES
from fedbench.core.store.results import MARKER
from fedbench.core.store.stems import STEM
from fedbench.core.store.stored_suites import MAX_SUITE_BYTES
from fedbench.core.words import one_line

MAX_BUNDLE_BYTES = 2 << 30
MAX_UNPACKED_BYTES = 8 << 30
_MAX_DIRECTORY_BYTES = 16 << 20  # fifty thousand entries
# of an unpacked entry
_MAX_BYTES = {".json": MAX_RECORD_BYTES, ".npz": 256 << 20, ".yaml": MAX_SUITE_BYTES}
_MAX_NAME = 250
_ENTRY = re.compile(
    rf"{re.escape(MARKER)}|records/(?:{STEM.pattern})\.(?:json|npz)|suites/[0-9a-f]{{16}}(?:\.given\.yaml|\.yaml|\.json)"
    r"|cache/[0-9a-f]{32}\.npz",
    re.ASCII,
)
_WRITTEN = (2020, 1, 1, 0, 0, 0)
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError)


def pack(folder: Path, out: Path, more: Mapping[str, Path]) -> None:
    """Write the files of a results folder, and ``more`` by their names in it, to a zip file; equal
    files give equal bytes. Raises ``UserError`` for sizes that no bundle may have.
    """
    files = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
    with zipfile.ZipFile(out, "w") as z:
        for name, path in sorted({**files, **more}.items()):
            info = zipfile.ZipInfo(name, _WRITTEN)
            info.create_system, info.external_attr = 3, 0o100644 << 16
            if path.suffix != ".npz":
                info.compress_type = zipfile.ZIP_DEFLATED
            z.writestr(info, path.read_bytes(), compresslevel=9)
        _require_entries(z.infolist())
    if out.stat().st_size > MAX_BUNDLE_BYTES:
        raise UserError(
            f"the bundle would be larger than {MAX_BUNDLE_BYTES >> 20} MiB: split it with --only"
        )


def unpack(bundle: Path, folder: Path) -> None:
    """Unpack a bundle. Names and sizes are checked in the directory of the zip file before any
    entry is read.

    Raises ``UserError``.
    """
    if not bundle.is_file():
        raise UserError("no such file" if not bundle.exists() else "not a regular file")
    try:
        with bundle.open("rb") as file:
            _require_directory(file)
            with zipfile.ZipFile(file) as z:
                _require_entries(z.infolist())
                for info in z.infolist():
                    path = folder / info.orig_filename  # the name that was checked
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with z.open(info) as source, path.open("wb") as out:
                        shutil.copyfileobj(source, out)
    except _BROKEN as error:
        raise UserError(
            one_line(f"not a whole zip file ({type(error).__name__}: {error})", 400)
        ) from error


def _require_directory(file: IO[bytes]) -> None:
    length = file.seek(0, io.SEEK_END)
    if length > MAX_BUNDLE_BYTES:
        raise UserError(f"larger than {MAX_BUNDLE_BYTES >> 20} MiB")
    file.seek(max(length - 42, 0))
    size = directory_bytes(file.read())
    if size is None or size > _MAX_DIRECTORY_BYTES:
        raise UserError(
            "not a bundle: it does not end as a zip file of fedbench, or has too many entries"
        )


def _require_entries(infos: Sequence[zipfile.ZipInfo]) -> None:
    for info in infos:
        name = info.orig_filename
        if not _ENTRY.fullmatch(name) or len(name) > _MAX_NAME:
            raise UserError(f"the entry '{one_line(name, 200)}' is not a file of a results folder")
        # of Python 3.12 on, an extra field of the entry gives it another name
        if info.filename != name:
            raise UserError(
                f"the entry '{name}' has a second name, '{one_line(info.filename, 200)}'"
            )
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise UserError(f"the entry '{name}' is compressed in a way that fedbench does not use")
        most = _MAX_BYTES[Path(name).suffix]
        if info.file_size > most:
            raise UserError(f"the entry '{name}' has {info.file_size:,} bytes, more than {most:,}")
    if len({info.filename.casefold() for info in infos}) < len(infos):
        raise UserError("two of its entries have one name")
    total = sum(info.file_size for info in infos)
    if total > MAX_UNPACKED_BYTES:
        raise UserError(
            f"its files have {total >> 20:,} MiB, more than {MAX_UNPACKED_BYTES >> 20:,}: split it "
            "with --only"
        )
