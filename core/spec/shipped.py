"""The suites that come with fedbench, by name, and what a list says of each without reading it anew every time."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedbench.core.contract.errors import UserError
from fedbench.core.registry.notes import Notes, cache_folder

SUFFIXES = (".yaml", ".yml")
_SCHEMA = 1


def shipped_suites() -> dict[str, Path]:
    """Name -> file of the suites that come with fedbench; those in a folder are named ``folder/name``."""
    root = Path(str(files("fedbench.suites")))
    found = (p for p in root.rglob("*") if p.suffix in SUFFIXES)
    return {p.relative_to(root).with_suffix("").as_posix(): p for p in sorted(found)}


def listed(floors: int) -> Iterator[dict[str, Any]]:
    """Name, title, most cells with so many ``floors``, and file of every shipped suite; why not, of one that cannot be read.

    Title and cells are remembered in ``suites.json`` in the user's cache folder by the suite's content and the code that reads
    it: parsing dozens of suites takes longer than all else that a list does.
    """
    notes = Notes(cache_folder() / "suites.json", _SCHEMA)
    known, code, asked = notes.read(), f"{_code()}:{floors}", dict[str, Any]()
    for name, path in shipped_suites().items():
        key = _key(path, code)
        if (said := _said(known.get(key))) is None:
            try:
                said = _read(path, floors)
            except UserError as exc:
                yield {"name": name, "title": "", "cells": None, "path": str(path), "error": exc.messages[0]}
                continue
        asked[key] = said
        yield {"name": name, **said, "path": str(path)}
    if asked.keys() - known.keys():
        notes.add(asked, keep=lambda key: False)  # what is not shipped any more


def _read(path: Path, floors: int) -> dict[str, Any]:
    from fedbench.core.spec.load import load_suite

    spec = load_suite(path).spec
    return {"title": spec.title, "cells": spec.n_cells(floors if spec.floors is None else len(spec.floors))}


def _said(note: Any) -> dict[str, Any] | None:
    """The note, if it has the form of what is kept."""
    kept = isinstance(note, dict) and note.keys() == {"title", "cells"} and isinstance(note["title"], str)
    return note if kept and type(note["cells"]) is int else None


def _key(path: Path, code: str) -> str:
    """Hex sha256 over a suite's content and the code that reads it."""
    found = hashlib.sha256(code.encode())
    with contextlib.suppress(OSError):  # told when it is read
        found.update(path.read_bytes())
    return found.hexdigest()


def _code() -> str:
    """Hex sha256 over this room: types, checks and recipes."""
    found = hashlib.sha256()
    room = Path(__file__).parent
    for path in sorted(p for p in room.rglob("*") if p.suffix in (".py", *SUFFIXES)):
        found.update(f"{path.relative_to(room).as_posix()};".encode() + path.read_bytes())
    return found.hexdigest()
