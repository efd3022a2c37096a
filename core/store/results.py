"""A results folder: one record a run, a manifest of what the suite asks for, a cache that may be deleted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedbench.core.contract.errors import UserError
from fedbench.core.store.files import TEMPORARY_PREFIX
from fedbench.core.store.locks import locked
from fedbench.core.store.marker import MARKER, blank, foreign, read_marker, rebuilt, untouched, write_marker
from fedbench.core.store.plans import Asked, keep_plan
from fedbench.core.store.reading import LoadedRecord, read_run
from fedbench.core.store.record import SCHEMA_VERSION
from fedbench.core.store.run_file import CellResult, write_run


class Results:
    """``root``/fedbench.json (marker + manifest), records/, suites/, cache/, logs/, leaderboard/. ``notes``: what the user
    should be told of how the folder was found."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.records = root / "records"
        self.cache = root / "cache"
        self.logs = root / "logs"
        self.notes: list[str] = []
        self._facts: dict[str, Any] | None = None  # the marker as this object wrote it last

    # -- opening -------------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, root: Path, suite: str) -> Results:
        """Open ``root`` for writing, making it if needed. Raises ``UserError`` for a folder that is not ours."""
        results = cls(root)
        try:
            if root.exists() and not root.is_dir():
                raise UserError(f"{root}: is a file; name a folder with --results")
            if results._marked():
                results._require(suite, results.marker())
            else:
                results._claim_or_share(suite)
            for folder in (results.records, results.cache, results.logs):
                folder.mkdir(exist_ok=True)
        except OSError as error:
            raise UserError(f"{root}: cannot be written ({error.strerror}); name another folder with --results") from error
        return results

    def _marked(self) -> bool:
        return (self.root / MARKER).exists()

    def _require(self, suite: str, facts: dict[str, Any]) -> None:
        if facts["suite"] != suite:
            raise UserError(
                f"{self.root}: holds the results of suite '{facts['suite']}', not '{suite}'; nothing was touched - "
                "name another folder with --results"
            )

    def _claim_or_share(self, suite: str) -> None:
        """Parts of one plan begin at the same moment: whoever comes second finds the other's folder."""
        try:
            self._claim(suite)
        except UserError:
            if not self._marked():
                raise
            self._require(suite, self.marker())

    def _claim(self, suite: str) -> None:
        """The marker comes first, so that a folder is ours or untouched, whenever the process is killed."""
        found = rebuilt(self.root) if self.root.exists() else None
        if found is None and self.root.exists() and (any(foreign(self.root)) or not untouched(self.root)):
            raise UserError(
                f"{self.root}: not empty and not a fedbench results folder (no {MARKER}); nothing was touched - "
                "name another folder with --results"
            )
        facts, *notes = found or (blank(suite),)
        self._require(suite, facts)
        self._write_marker(facts)
        self.notes += notes

    @classmethod
    def open(cls, root: Path) -> Results:
        """Open an existing results folder for reading; a marker that is gone is made again from the records."""
        results = cls(root)
        if results._marked():
            results.marker()
            return results
        if (found := rebuilt(root) if root.is_dir() else None) is None:
            raise UserError(f"{root}: not a fedbench results folder (no {MARKER}); run `fedbench run SUITE` first")
        facts, note = found
        results._write_marker(facts)
        results.notes.append(note)
        return results

    def marker(self) -> dict[str, Any]:
        """The folder's own facts: schema version, suite, and the cells (stems of their files) of the last plan."""
        return read_marker(self.root)

    def _write_marker(self, facts: dict[str, Any]) -> None:
        write_marker(self.root, facts)
        self._facts = {**facts, "schema_version": SCHEMA_VERSION}

    def set_manifest(
        self, cells: list[str], title: str = "", published: Sequence[dict[str, Any]] = (),
        analyses: Sequence[dict[str, Any]] = (), asked: Asked | None = None,
    ) -> None:  # fmt: skip
        """Remember which cells the suite asks for now, its title, which published numbers go beside ours, its analyses
        (label, name, params), and the suite itself.

        Records of earlier code or parameters stay, unlisted, and so do the suites of earlier plans. The suite comes first: the
        marker never names a plan that is not there.
        """
        plans = [plan for plan in self.marker()["plans"] if asked is None or plan != asked.id]
        plans += [keep_plan(self.root, asked)] if asked is not None else []
        more = {"title": title, "cells": cells, "published": list(published), "analyses": list(analyses), "plans": plans}
        self._write_marker(self.marker() | more)

    def keep_marker(self) -> None:
        """Write what this object wrote last again where the marker is gone, or another process had to make it anew."""
        if self._facts is not None and (not self._marked() or self.marker() != self._facts):
            self._write_marker(self._facts)

    @contextlib.contextmanager
    def lock(self, part: tuple[int, int] | None = None) -> Iterator[None]:
        """One `fedbench run` a folder, or several parts (i, n) of one n, each once; see ``locks``."""
        with locked(self.root, part):
            yield

    # -- records -------------------------------------------------------------------------------------------------

    def path(self, stem: str) -> Path:
        """The record file of a run."""
        return self.records / f"{stem}.json"

    def cells(self, stem: str) -> list[LoadedRecord]:
        """The cells of a run; none where it has no record. Raises ``UserError`` for a record that cannot be used."""
        path = self.path(stem)
        return read_run(path) if path.exists() else []

    def planned(self, loaded: list[LoadedRecord]) -> tuple[list[LoadedRecord], int]:
        """(those of the last plan, how many others there are); all of them where none belongs to a plan."""
        cells = set(self.marker()["cells"]) if self._marked() else set()
        kept = [r for r in loaded if r.stem in cells]
        return (kept, len(loaded) - len(kept)) if kept else (loaded, 0)

    def write(self, stem: str, cells: Sequence[CellResult]) -> None:
        """Add these cells to the files of their run, in place of those with the same keys. A lost marker is made again.

        Raises ``OSError``, and ``UserError`` where the record that is there cannot be used.
        """
        if not self._marked():
            self._write_marker(self._facts or blank(cells[0].record.suite))
        keys = {cell.record.key for cell in cells}
        kept = [CellResult(r.record, r.all_arrays()) for r in self.cells(stem) if r.record.key not in keys]
        write_run(self.records, stem, [*kept, *cells], self.cache)

    def sweep(self) -> None:
        """Remove temporary files a killed process left behind."""
        for folder in (self.root, self.records, self.cache, self.logs):
            for stray in folder.glob(f"{TEMPORARY_PREFIX}*"):
                stray.unlink(missing_ok=True)
