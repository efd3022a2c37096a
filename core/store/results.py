"""A results folder: run records, suites, caches, and a marker that names its suite and the cells of
the last plan.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from fedbench.core.contract.errors import UserError
from fedbench.core.store.files import TEMPORARY_PREFIX, write_atomically
from fedbench.core.store.integrity import digest_mistake, sealed
from fedbench.core.store.json_file import parse_json
from fedbench.core.store.locks import is_lock, locked
from fedbench.core.store.reading import (
    IMPORTED,
    REPRODUCED,
    LoadedRecord,
    all_paths,
    read_all,
    read_bare,
)
from fedbench.core.store.record import SCHEMA_VERSION
from fedbench.core.store.run_file import CellResult, write_run
from fedbench.core.store.stored_suites import SUITES, StoredSuite, keep_suite, stored_ids
from fedbench.core.words import one_line

MARKER = "fedbench.json"
DRAW = "reproduced.json"  # which part of the imported records is computed again
_OURS = {MARKER, DRAW, "records", SUITES, "cache", "logs", "leaderboard", IMPORTED, REPRODUCED}
_MAX_MARKER_BYTES = 32 << 20
_REMEDY = (
    "delete it, and its facts are taken from the records; or name another folder with --results"
)


class Results:
    """The folder ``root``. ``notes``: messages for the user about the state in which it was found."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.records = root / "records"
        self.cache = root / "cache"
        self.logs = root / "logs"
        self.notes: list[str] = []

    # -- opening -----------------------------------------------------------------------------------

    @classmethod
    def create(cls, root: Path, suite: str) -> Results:
        """Open ``root`` for writing, making it if needed. Raises ``UserError`` for a folder of
        another suite or program.
        """
        results = cls(root)
        try:
            if root.exists() and not root.is_dir():
                raise UserError(f"{root}: is a file; name a folder with --results")
            results._claim(suite)
            for folder in (results.records, results.cache, results.logs):
                folder.mkdir(exist_ok=True)
        except OSError as error:
            raise UserError(
                f"{root}: cannot be written ({error.strerror}); name another folder with --results"
            ) from error
        return results

    @classmethod
    def open(cls, root: Path) -> Results:
        """Open an existing results folder for reading; nothing is written. Raises ``UserError`` for
        a folder that is none.
        """
        results = cls(root)
        results.marker()
        if not results._marked():
            results.notes.append(
                f"note: {root}: its {MARKER} is gone; suite and cells are taken from the records"
            )
        return results

    def _claim(self, suite: str) -> None:
        """Write the marker of a new folder before anything else, so that a killed run leaves a
        folder that can be used.
        """
        found = self.marker() if self._marked() or all_paths(self.root) else None
        # of parts of one plan that begin at once, the second finds the folder of the first
        if found is None and any(_foreign(self.root)) and not self._marked():
            raise UserError(
                f"{self.root}: not empty and not a fedbench results folder (no {MARKER}); nothing "
                "was touched - "
                "name another folder with --results"
            )
        facts = found or {"suite": suite, "cells": [], "plans": []}
        if facts["suite"] != suite:
            raise UserError(
                f"{self.root}: holds the results of suite '{facts['suite']}', not '{suite}'; "
                "nothing was touched - "
                "name another folder with --results"
            )
        if not self._marked():
            write_marker(self.root, facts)

    @contextlib.contextmanager
    def lock(self, part: tuple[int, int] | None = None) -> Iterator[None]:
        """One `fedbench run` a folder, or several parts (i, n) of one n, each once; see ``locks``."""
        with locked(self.root, part):
            yield

    # -- marker ------------------------------------------------------------------------------------

    def _marked(self) -> bool:
        return (self.root / MARKER).exists()

    def marker(self) -> dict[str, Any]:
        """The folder's own facts: schema version, suite, ``cells`` (names of those of the last
        plan) and ``plans`` (ids of the stored suites, the last one at the end). Where the file is
        gone, as the records give them.
        """
        return read_marker(self.root) if self._marked() else _marker_of_records(self.root)

    def set_manifest(
        self,
        cells: list[str],
        title: str = "",
        published: Sequence[dict[str, Any]] = (),
        analyses: Sequence[dict[str, Any]] = (),
        stored: StoredSuite | None = None,
    ) -> None:
        """Store the plan: the names of its cells, its title, the published numbers beside ours, its
        analyses (label, name, params), and the suite itself.

        Records of earlier code or parameters stay, unlisted, and so do the suites of earlier plans.
        The suite comes first: the marker never names a plan that is not there.
        """
        facts = self.marker()
        plans = [plan for plan in facts["plans"] if stored is None or plan != stored.id]
        plans += [keep_suite(self.root, stored)] if stored is not None else []
        more = {
            "title": title,
            "cells": cells,
            "published": list(published),
            "analyses": list(analyses),
            "plans": plans,
        }
        write_marker(self.root, facts | more)

    def planned(self, loaded: list[LoadedRecord]) -> tuple[list[LoadedRecord], int]:
        """(those of the last plan, how many others there are); all of them where none belongs to a
        plan.
        """
        cells = set(self.marker()["cells"]) if self._marked() else set()
        kept = [r for r in loaded if r.stem in cells]
        return (kept, len(loaded) - len(kept)) if kept else (loaded, 0)

    # -- records -----------------------------------------------------------------------------------

    def path(self, stem: str) -> Path:
        """The record file of a run."""
        return self.records / f"{stem}.json"

    def cells(self, stem: str) -> list[LoadedRecord]:
        """The cells of a run, with arrays that are checked when they are read; none where it has no
        record.

        Raises ``UserError`` for a record that cannot be used.
        """
        path = self.path(stem)
        return read_bare(path) if path.exists() else []

    def write(self, stem: str, cells: Sequence[CellResult]) -> None:
        """Add these cells to the files of their run, in place of those with the same keys.

        Raises ``OSError``, and ``UserError`` where the record that is there cannot be used.
        """
        keys = {cell.record.key for cell in cells}
        kept = [
            CellResult(r.record, r.all_arrays())
            for r in self.cells(stem)
            if r.record.key not in keys
        ]
        write_run(self.records, stem, [*kept, *cells])

    def sweep(self) -> None:
        """Remove temporary files that a killed process left."""
        imported = self.root.glob(f"{IMPORTED}/*/*")  # where `fedbench judge` writes
        for folder in (
            self.root,
            self.records,
            self.cache,
            self.logs,
            self.root / SUITES,
            *imported,
        ):
            for stray in folder.glob(f"{TEMPORARY_PREFIX}*"):
                if stray.is_file():
                    stray.unlink(missing_ok=True)


def read_marker(root: Path) -> dict[str, Any]:
    """The facts in the file ``fedbench.json`` of a results folder. Raises ``UserError`` for a
    damaged one.
    """
    path = root / MARKER
    facts = parse_json(path, _MAX_MARKER_BYTES, _REMEDY)
    version = facts.get("schema_version") if isinstance(facts, dict) else None
    if type(version) is not int or not isinstance(facts.get("suite"), str):
        raise UserError(f"{path}: unreadable (no schema_version and suite); {_REMEDY}")
    if version > SCHEMA_VERSION:
        raise UserError(
            f"{path}: schema {version} is newer than this fedbench understands ({SCHEMA_VERSION}); "
            "upgrade fedbench"
        )
    if (what := digest_mistake(facts)) is not None:
        raise UserError(f"{path}: damaged or changed since fedbench wrote it ({what}); {_REMEDY}")
    try:
        _Facts.model_validate(facts)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(
            f"{path}: unreadable ({one_line(where, 120)}: {first['msg']}); {_REMEDY}"
        ) from error
    return {
        "cells": [],
        "plans": [],
        **{name: value for name, value in facts.items() if name != "digest"},
    }


class _Facts(BaseModel):
    """Types of the marker's fields."""

    suite: str
    title: str = ""
    cells: list[str] = []
    plans: list[str] = []
    published: list[dict[str, Any]] = []
    analyses: list[str | dict[str, Any]] | None = None


def write_marker(root: Path, facts: dict[str, Any]) -> None:
    """Replace the folder's facts. Raises ``OSError``."""
    write_atomically(root / MARKER, sealed({**facts, "schema_version": SCHEMA_VERSION}))


def _foreign(root: Path) -> Iterator[str]:
    """Files and folders that fedbench does not write."""
    for path in root.iterdir() if root.is_dir() else ():
        if (
            path.name not in _OURS
            and not is_lock(path.name)
            and not path.name.startswith(TEMPORARY_PREFIX)
        ):
            yield path.name


def _marker_of_records(root: Path) -> dict[str, Any]:
    """The facts of a folder without its marker, from its records. Raises ``UserError`` for records
    of several suites, for those that cannot be used, and for a folder of another program.
    """
    paths = all_paths(root)
    if not paths or any(_foreign(root)):
        raise UserError(
            f"{root}: not empty and not a fedbench results folder (no {MARKER}); nothing was "
            "touched - name another folder"
            if any(_foreign(root))
            else f"{root}: not a fedbench results folder (no {MARKER}); run `fedbench run SUITE` "
            "first"
        )
    loaded = read_all(paths, read_bare)
    suites = sorted({r.record.suite for r in loaded})
    if len(suites) > 1:
        raise UserError(
            f"{root}: its {MARKER} is gone, and it holds records of several suites "
            f"({', '.join(map(repr, suites[:5]))}); nothing "
            "was touched - move the records of all suites but one to another folder"
        )
    return {
        "schema_version": SCHEMA_VERSION,
        "suite": suites[0],
        "cells": [r.stem for r in loaded],
        "plans": stored_ids(root),
    }
