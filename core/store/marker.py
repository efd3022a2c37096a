"""The marker of a results folder: whose it is, and what its suite asked for last. Lost, it is made again from the records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedbench.core.contract.errors import UserError
from fedbench.core.store.files import TEMPORARY_PREFIX, write_making_room
from fedbench.core.store.integrity import digest_mistake, sealed
from fedbench.core.store.json_file import parse_json
from fedbench.core.store.locks import is_lock
from fedbench.core.store.plans import stored_plans
from fedbench.core.store.reading import read_all, read_bare, record_paths
from fedbench.core.store.record import SCHEMA_VERSION

MARKER = "fedbench.json"
TRUST = "trust.json"
_MAX_BYTES = 64 * 2**20
_RESTORE = "delete it, and the next command makes it again from the records; or name another folder with --results"
# What fedbench puts into a folder, and which files into each of its folders; reports may add anything to theirs.
_OURS = {
    "records": (".json", ".npz"), "suites": (".json", ".yaml"), "cache": (".npz",), "logs": (".log",), "leaderboard": None,
    "rerun": None,
}  # fmt: skip


def blank(suite: str) -> dict[str, Any]:
    """The facts of a folder that no plan was made for yet."""
    return {"schema_version": SCHEMA_VERSION, "suite": suite, "cells": [], "plans": []}


def read_marker(root: Path) -> dict[str, Any]:
    """The folder's own facts: schema version, suite, the cells (stems of their files) of the last plan, that plan and all
    ``plans`` (their ids; see ``plans.py``)."""
    path = root / MARKER
    facts = parse_json(path, _MAX_BYTES, _RESTORE)
    version = facts.get("schema_version") if isinstance(facts, dict) else None
    if type(version) is not int or not isinstance(facts.get("suite"), str):
        raise UserError(f"{path}: unreadable (no schema_version and suite); {_RESTORE}")
    if version > SCHEMA_VERSION:
        raise UserError(f"{path}: schema {version} is newer than this fedbench understands ({SCHEMA_VERSION}); upgrade fedbench")
    if (what := digest_mistake(facts)) is not None:
        raise UserError(f"{path}: damaged or changed since fedbench wrote it ({what}); {_RESTORE}")
    cells = facts.setdefault("cells", [])
    plans = facts.setdefault("plans", [])
    for what, names in (("cells", cells), ("plans", plans)):
        if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise UserError(f"{path}: unreadable (its {what} are not a list of names); {_RESTORE}")
    return {name: value for name, value in facts.items() if name != "digest"}


def write_marker(root: Path, facts: dict[str, Any]) -> None:
    """Replace the folder's facts, in the present schema; caches go where the disk is full. Raises ``OSError``."""
    write_making_room(root / MARKER, sealed({**facts, "schema_version": SCHEMA_VERSION}), root / "cache")


def foreign(root: Path) -> Iterator[str]:
    """What lies in the folder and is not fedbench's."""
    for path in sorted(root.iterdir()):
        if path.name in (MARKER, TRUST) or is_lock(path.name) or path.name.startswith(TEMPORARY_PREFIX):
            continue
        if path.name not in _OURS or not path.is_dir():
            yield path.name
        elif (suffixes := _OURS[path.name]) is not None:
            inside = (p for p in sorted(path.iterdir()) if not p.name.startswith(TEMPORARY_PREFIX))
            yield from (f"{path.name}/{p.name}" for p in inside if p.suffix not in suffixes)


def untouched(root: Path) -> bool:
    """Whether nothing was ever kept in the folder: it has no file but locks and what a killed process left."""
    files = (p for p in root.rglob("*") if not p.is_dir())
    return all(is_lock(p.name) or p.name.startswith(TEMPORARY_PREFIX) for p in files)


def rebuilt(root: Path) -> tuple[dict[str, Any], str] | None:
    """(facts, a note about them) of a folder with records and without its marker: the suite that all records name, with every
    record as one of its cells. None where there are no records, or where somebody else's files lie beside them.

    Raises ``UserError`` for records that cannot be used, and for records of several suites.
    """
    paths = record_paths(root / "records")
    if not paths or any(foreign(root)):
        return None
    loaded = read_all(paths, read_bare)
    suites = sorted({r.record.suite for r in loaded})
    if len(suites) > 1:
        raise UserError(
            f"{root}: its {MARKER} is gone, and it holds records of several suites ({', '.join(map(repr, suites[:5]))}), so it "
            "cannot be made again; nothing was touched - move the records of all suites but one to another folder"
        )
    note = (
        f"note: {root}: its {MARKER} was gone and was made again from {len(paths)} records of suite {suites[0]!r}; "
        "`fedbench run` adds title, published numbers and analyses"
    )
    return {**blank(suites[0]), "cells": [r.stem for r in loaded], "plans": stored_plans(root)}, note
