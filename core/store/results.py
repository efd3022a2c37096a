"""A results folder: run records, suites, caches, and a marker that names its suite, the cells of
the last plan, and the seeds of it that are finished.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from fedbench.core.contract.errors import UserError
from fedbench.core.store.files import TEMPORARY_PREFIX, write_atomically
from fedbench.core.store.integrity import sealed
from fedbench.core.store.json_file import parse_json, require_digest
from fedbench.core.store.locks import is_lock, locked
from fedbench.core.store.reading import (
    IMPORTED,
    REPRODUCED,
    LoadedRecord,
    read_bare,
)
from fedbench.core.store.record import SCHEMA_VERSION
from fedbench.core.store.run_file import CellResult, write_run
from fedbench.core.store.stored_suites import SUITES, StoredSuite, keep_suite
from fedbench.core.store.validity import first_mistake

MARKER = "fedbench.json"
DRAW = "reproduced.json"  # which part of the imported records is computed again
_ENTRIES = {MARKER, DRAW, "records", SUITES, "cache", "logs", "leaderboard", IMPORTED, REPRODUCED}
_MAX_MARKER_BYTES = 32 << 20
_ANOTHER = "name another folder with --results"
_REMEDY = f"delete it and run its suite again; or {_ANOTHER}"


class Provisional(BaseModel):
    """Seeds of a plan that are finished, where others are not."""

    seeds: list[int]
    of: int
    """number of the plan's seeds"""

    def __str__(self) -> str:
        return f"provisional: {len(self.seeds)} of {self.of} seeds of the plan"


class Results:
    """The folder ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.records = root / "records"
        self.cache = root / "cache"
        self.logs = root / "logs"

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
            raise UserError(f"{root}: cannot be written ({error.strerror}); {_ANOTHER}") from error
        return results

    @classmethod
    def open(cls, root: Path) -> Results:
        """Open an existing results folder for reading; nothing is written. Raises ``UserError`` for
        a folder that is none.
        """
        results = cls(root)
        results.marker()
        return results

    def _claim(self, suite: str) -> None:
        """Write the marker of a new folder before anything else, so that a killed run leaves a
        folder that can be used.
        """
        # of parts of one plan that begin at once, the second may see the folder of the first
        if _is_foreign(self.root) and not self._marked():
            raise UserError(
                f"{self.root}: not empty and not a fedbench results folder (no {MARKER}); nothing "
                f"was touched - {_ANOTHER}"
            )
        if not self._marked():
            write_marker(self.root, {"suite": suite})
        holds = self.marker()["suite"]
        if holds != suite:
            raise UserError(
                f"{self.root}: holds the results of suite '{holds}', not '{suite}'; nothing was "
                f"touched - {_ANOTHER}"
            )

    @contextlib.contextmanager
    def lock(self, part: tuple[int, int] | None = None) -> Iterator[None]:
        """Hold the folder for one `fedbench run`, or one part (i, n) of a plan: see ``locks``."""
        with locked(self.root, part):
            yield

    # -- marker ------------------------------------------------------------------------------------

    def _marked(self) -> bool:
        return (self.root / MARKER).exists()

    def marker(self) -> dict[str, Any]:
        """Return the folder's facts: schema version, suite, ``cells`` (names of those of the last
        plan), ``plans`` (ids of the stored suites, the last one at the end) and, until all seeds of
        the plan are finished, ``provisional``.

        Raises ``UserError`` without its file, and for a damaged one.
        """
        if not self._marked():
            raise UserError(
                f"{self.root}: not a fedbench results folder (no {MARKER}); `fedbench run SUITE` "
                "writes it"
            )
        return read_marker(self.root)

    def set_manifest(
        self,
        cells: list[str],
        title: str = "",
        published: Sequence[dict[str, Any]] = (),
        analyses: Sequence[dict[str, Any]] = (),
        stored: StoredSuite | None = None,
        provisional: Provisional | None = None,
    ) -> None:
        """Store a plan. Records of earlier code or parameters stay, unlisted, and so do the suites
        of earlier plans.

        Args:
            cells: the names of its cells.
            published: published numbers that the board prints beside ours.
            analyses: label, name and params of each.
            stored: its suite.
            provisional: its finished seeds, where others are not.
        """
        facts = self.marker()
        plans = facts["plans"]
        if stored is not None:  # first: the marker never names a plan that is not there
            plan = keep_suite(self.root, stored)
            plans = [*(earlier for earlier in plans if earlier != plan), plan]
        facts |= {
            "title": title,
            "cells": cells,
            "published": list(published),
            "analyses": list(analyses),
            "plans": plans,
        }
        self._write_marker(facts, provisional)

    def set_provisional(self, provisional: Provisional | None) -> None:
        """Store which seeds of the last plan are finished. None: the plan is."""
        self._write_marker(self.marker(), provisional)

    def _write_marker(self, facts: dict[str, Any], provisional: Provisional | None) -> None:
        facts.pop("provisional", None)
        if provisional is not None:
            facts["provisional"] = provisional.model_dump()
        write_marker(self.root, facts)

    def provisional(self) -> Provisional | None:
        """Return the finished seeds of the last plan; None where no other seed is known of."""
        facts = self.marker() if self._marked() else {}
        progress = facts.get("provisional")
        return None if progress is None else Provisional.model_validate(progress)

    def planned(self, loaded: list[LoadedRecord]) -> tuple[list[LoadedRecord], int]:
        """Return (the records of the last plan, the number of the others); all of them where none
        belongs to a plan.
        """
        if self._marked():
            cells = set(self.marker()["cells"])
            if planned := [r for r in loaded if r.stem in cells]:
                return planned, len(loaded) - len(planned)
        return loaded, 0

    # -- records -----------------------------------------------------------------------------------

    def path(self, stem: str) -> Path:
        """Return the path of the record file of a run."""
        return self.records / f"{stem}.json"

    def cells(self, stem: str) -> list[LoadedRecord]:
        """Return the cells of a run, with arrays that are checked when they are read; none where it
        has no record.

        Raises ``UserError`` for a record that cannot be used.
        """
        path = self.path(stem)
        return read_bare(path) if path.exists() else []

    def write(self, stem: str, cells: Sequence[CellResult]) -> None:
        """Add these cells to the files of their run, in place of those with the same keys.

        Raises ``OSError``, and ``UserError`` where the record that is there cannot be used.
        """
        keys = {cell.record.key for cell in cells}
        earlier = [
            CellResult(r.record, r.all_arrays())
            for r in self.cells(stem)
            if r.record.key not in keys
        ]
        write_run(self.records, stem, [*earlier, *cells])

    def sweep(self) -> None:
        """Remove temporary files that a killed process left."""
        folders = [self.root, self.records, self.cache, self.logs, self.root / SUITES]
        folders.append(self.root / "leaderboard")
        folders += self.root.glob(f"{IMPORTED}/*/*")  # where `fedbench judge` writes
        for folder in folders:
            for stray in folder.glob(f"{TEMPORARY_PREFIX}*"):
                if stray.is_file():
                    stray.unlink(missing_ok=True)


# -- the marker's file -----------------------------------------------------------------------------


class _Facts(BaseModel):
    """Types of the marker's fields."""

    suite: str
    title: str = ""
    cells: list[str] = []
    plans: list[str] = []
    published: list[dict[str, Any]] = []
    analyses: list[str | dict[str, Any]] | None = None
    provisional: Provisional | None = None


def read_marker(root: Path) -> dict[str, Any]:
    """Return the facts in the file ``fedbench.json`` of a results folder. Raises ``UserError`` for
    a damaged one.
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
    require_digest(facts, path, _REMEDY)
    try:
        _Facts.model_validate(facts)
    except ValidationError as error:
        raise UserError(f"{path}: unreadable ({first_mistake(error)}); {_REMEDY}") from error
    del facts["digest"]
    return {"cells": [], "plans": [], **facts}


def write_marker(root: Path, facts: dict[str, Any]) -> None:
    """Replace the folder's facts. Raises ``OSError``."""
    write_atomically(root / MARKER, sealed({**facts, "schema_version": SCHEMA_VERSION}))


def _is_foreign(root: Path) -> bool:
    """Return whether a folder has files or folders that fedbench does not write."""
    names = [path.name for path in root.iterdir()] if root.is_dir() else []
    return not all(
        name in _ENTRIES or is_lock(name) or name.startswith(TEMPORARY_PREFIX) for name in names
    )
