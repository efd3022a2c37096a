"""A results folder: one record a cell, a manifest of what the suite asks for, a cache that may be deleted."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedbench.core.contract.errors import UserError
from fedbench.core.store.files import TEMPORARY_PREFIX, write_atomically
from fedbench.core.store.reading import LoadedRecord, parse_json, read_record
from fedbench.core.store.record import SCHEMA_VERSION, Record

MARKER = "fedbench.json"
_MAX_MARKER_BYTES = 64 * 2**20
_RESTORE = "restore it or name another folder with --results"


class Results:
    """``root``/fedbench.json (marker + manifest), records/, cache/, logs/, leaderboard/."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.records = root / "records"
        self.cache = root / "cache"
        self.logs = root / "logs"

    # -- opening -------------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, root: Path, suite: str) -> Results:
        """Open ``root`` for writing, making it if needed. Raises ``UserError`` for a folder that is not ours."""
        results = cls(root)
        try:
            if root.exists() and not root.is_dir():
                raise UserError(f"{root}: is a file; name a folder with --results")
            if not results._marked():
                results._claim(suite)
            found = results.marker()["suite"]
            if found != suite:
                raise UserError(
                    f"{root}: holds the results of suite '{found}', not '{suite}'; nothing was touched - "
                    "name another folder with --results"
                )
            for folder in (results.records, results.cache, results.logs):
                folder.mkdir(exist_ok=True)
        except OSError as error:
            raise UserError(f"{root}: cannot be written ({error.strerror}); name another folder with --results") from error
        return results

    def _marked(self) -> bool:
        return (self.root / MARKER).exists()

    def _claim(self, suite: str) -> None:
        """The marker comes first, so that a folder is ours or untouched, whenever the process is killed."""
        if self.root.exists() and any(not p.name.startswith(TEMPORARY_PREFIX) for p in self.root.iterdir()):
            raise UserError(
                f"{self.root}: not empty and not a fedbench results folder (no {MARKER}); nothing was touched - "
                "name another folder with --results"
            )
        self._write_marker({"schema_version": SCHEMA_VERSION, "suite": suite, "cells": []})

    @classmethod
    def open(cls, root: Path) -> Results:
        """Open an existing results folder for reading."""
        if not (root / MARKER).exists():
            raise UserError(f"{root}: not a fedbench results folder (no {MARKER}); run `fedbench run SUITE` first")
        results = cls(root)
        results.marker()
        return results

    def marker(self) -> dict:
        """The folder's own facts: schema version, suite, and the cells (stems of their files) of the last plan."""
        path = self.root / MARKER
        facts = parse_json(path, _MAX_MARKER_BYTES, _RESTORE)
        version = facts.get("schema_version") if isinstance(facts, dict) else None
        if type(version) is not int or not isinstance(facts.get("suite"), str):
            raise UserError(f"{path}: unreadable (no schema_version and suite); {_RESTORE}")
        if version > SCHEMA_VERSION:
            raise UserError(
                f"{path}: schema {version} is newer than this fedbench understands ({SCHEMA_VERSION}); upgrade fedbench"
            )
        cells = facts.setdefault("cells", [])
        if not (isinstance(cells, list) and all(isinstance(c, str) for c in cells)):
            raise UserError(f"{path}: unreadable (its cells are not a list of names); {_RESTORE}")
        return facts

    def _write_marker(self, facts: dict) -> None:
        write_atomically(self.root / MARKER, json.dumps(facts, indent=1).encode())

    def set_manifest(
        self, cells: list[str], title: str = "", published: Sequence[dict[str, Any]] = (), analyses: Sequence[dict[str, Any]] = ()
    ) -> None:
        """Remember which cells the suite asks for now, its title, which published numbers go beside ours, and its
        analyses (label, name, params).

        Records of earlier code or parameters stay, unlisted.
        """
        more = {"title": title, "cells": cells, "published": list(published), "analyses": list(analyses)}
        kept = {k: v for k, v in self.marker().items() if k != "reference"}  # what schema 1 called the published numbers
        self._write_marker(kept | more)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """One `fedbench run` a folder; the lock dies with its process, however that ends."""
        with contextlib.ExitStack() as stack:
            try:
                handle = stack.enter_context(open(self.root / ".lock", "a"))
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UserError(f"{self.root}: another `fedbench run` is writing here; wait for it or use --results") from error
            except OSError as error:
                why = f"cannot be written ({error.strerror})"
                raise UserError(f"{self.root}: {why}; name another folder with --results") from error
            yield

    # -- records -------------------------------------------------------------------------------------------------

    def path(self, stem: str) -> Path:
        """Where the record of a cell lies."""
        return self.records / f"{stem}.json"

    def read(self, stem: str) -> LoadedRecord | None:
        """The record, or None where there is none. Raises ``UserError`` for one that cannot be used (see ``reading``)."""
        path = self.path(stem)
        return read_record(path) if path.exists() else None

    def planned(self, loaded: list[LoadedRecord]) -> tuple[list[LoadedRecord], int]:
        """(those of the last plan, how many others there are); all of them where none belongs to a plan."""
        cells = set(self.marker()["cells"]) if self._marked() else set()
        kept = [r for r in loaded if r.path.stem in cells]
        return (kept, len(loaded) - len(kept)) if kept else (loaded, 0)

    def write(self, stem: str, record: Record, scores: bytes | None = None) -> None:
        """Scores first, then the record that refers to them: a record on disk is always complete."""
        npz = self.path(stem).with_suffix(".npz")
        if scores is not None:
            write_atomically(npz, scores)
        write_atomically(self.path(stem), record.model_dump_json(indent=1).encode() + b"\n")
        if scores is None:
            npz.unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove temporary files a killed process left behind."""
        for folder in (self.root, self.records, self.cache, self.logs):
            for stray in folder.glob(f"{TEMPORARY_PREFIX}*"):
                stray.unlink(missing_ok=True)
