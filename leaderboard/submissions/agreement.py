"""What records of one bundle must say alike, and what may lie in a score file: things that no record shows alone."""

from __future__ import annotations

import hashlib
import struct
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.core.store.reading import LoadedRecord
from fedbench.core.store.run_file import array_names, member, optional_names

_LOCAL = struct.Struct("<4s5H3L2H")
_LONGEST_EXTRA = 20  # numpy writes the sizes of 64 bits there


def disagreeing(records: Iterable[LoadedRecord]) -> list[str]:
    """Every pair of records that cannot be of one training, or be shown on one board, in words; [] where there is none.

    Cells of one run share its test accuracy, rounds and candidates; rows of a section share the list of candidates. Raises
    ``UserError`` for a score file that cannot be read.
    """
    first: dict[tuple[Any, ...], tuple[str, str]] = {}
    found = []
    for loaded in records:
        for about, what, content in _said(loaded):
            name, known = first.setdefault((*about, what), (loaded.stem, content))
            if known != content:
                found.append(f"{name} and {loaded.stem} are of one {about[0]}, but have other {what}")
    return found


def _said(loaded: LoadedRecord) -> Iterable[tuple[tuple[Any, ...], str, str]]:
    """(of whom, what, its content) of everything that other records must say alike."""
    r = loaded.record
    run = ("run", r.suite, r.setting, r.coalition, r.run_key)
    if r.utility is None:
        return
    yield run, "test accuracy", f"{r.utility!r}"
    yield run, "rounds", f"{r.history!r}"
    if r.outcome != "ok":
        return
    judged, correct = loaded.everything()
    yield run, "test samples", _digest(correct)
    section = ("section", r.suite, r.setting, r.coalition, r.view, r.seed)
    for target, c in judged.items():
        yield run, f"candidates of target {target}", _digest(c.kind, c.ids, c.in_mix, c.canary)
        yield section, f"candidates of target {target}", _digest(c.ids)


def _digest(*arrays: np.ndarray) -> str:
    h = hashlib.sha256()
    for a in arrays:
        h.update(str(a.shape).encode() + np.ascontiguousarray(a).tobytes())
    return h.hexdigest()


def repeated(loaded: LoadedRecord) -> list[str]:
    """Targets of a record with scores whose candidates are not all different samples: copies would pass for more evidence."""
    judged, _ = loaded.everything()
    twice = [target for target, c in judged.items() if len(np.unique(c.ids)) < len(c.ids)]
    return [f"target {target}: a sample is among its candidates twice" for target in twice]


def unnamed_content(cells: Sequence[LoadedRecord]) -> str | None:
    """What the arrays' file of a run has that no record of its cells names: an array, or bytes between arrays; or None."""
    scored = [r.record for r in cells if r.record.outcome == "ok"]
    own = {(record.key, name) for record in scored for name in (*array_names(record), *optional_names(record))}
    named = {f"{name}.npy" for key, name in own} | {f"{member(key, name)}.npy" for key, name in own}
    path = cells[0].arrays
    with zipfile.ZipFile(path) as z:
        names = [info.filename for info in z.infolist()]
        if odd := sorted(set(names) - named):
            return f"{odd[0]!r}, which its record does not name"
        if len(set(names)) < len(names):
            return "an array twice"
        return None if _without_gaps(path, z) else "bytes that belong to no array"


def _without_gaps(path: Path, z: zipfile.ZipFile) -> bool:
    """Whether the entries follow one another from the first byte to the directory."""
    at = 0
    with path.open("rb") as f:
        for info in z.infolist():
            f.seek(at)
            header = f.read(_LOCAL.size)
            if info.header_offset != at or len(header) < _LOCAL.size:
                return False
            *_, name, extra = _LOCAL.unpack(header)
            if extra > _LONGEST_EXTRA:
                return False
            at += _LOCAL.size + name + extra + info.compress_size
    return bool(at == z.start_dir)
