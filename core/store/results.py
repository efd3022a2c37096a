"""A results folder: one record a cell, a manifest of what the suite asks for, a cache that may be deleted."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from fedbench.core.contract.errors import UserError
from fedbench.core.store.files import TEMPORARY_PREFIX, write_atomically
from fedbench.core.store.record import SCHEMA_VERSION, Record

MARKER = "fedbench.json"
_MAX_RECORD_BYTES = 16 * 2**20


class Results:
    """``root``/fedbench.json (marker + manifest), records/, cache/, leaderboard/."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.records = root / "records"
        self.cache = root / "cache"

    # -- opening -------------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, root: Path, suite: str) -> Results:
        """Open ``root`` for writing, making it if needed. Raises ``UserError`` for a folder that is not ours."""
        results = cls(root)
        if root.exists() and not root.is_dir():
            raise UserError(f"{root}: is a file; name a folder with --results")
        if root.exists() and any(root.iterdir()) and not (root / MARKER).exists():
            raise UserError(
                f"{root}: not empty and not a fedbench results folder (no {MARKER}); nothing was touched - "
                "name another folder with --results"
            )
        if (root / MARKER).exists():
            found = results.marker().get("suite")
            if found != suite:
                raise UserError(
                    f"{root}: holds the results of suite '{found}', not '{suite}'; nothing was touched - "
                    "name another folder with --results"
                )
        try:
            results.records.mkdir(parents=True, exist_ok=True)
            results.cache.mkdir(exist_ok=True)
            if not (root / MARKER).exists():
                results._write_marker({"schema_version": SCHEMA_VERSION, "suite": suite, "cells": []})
        except OSError as error:
            raise UserError(f"{root}: cannot be written ({error.strerror}); name another folder with --results") from error
        return results

    @classmethod
    def open(cls, root: Path) -> Results:
        """Open an existing results folder for reading."""
        if not (root / MARKER).is_file():
            raise UserError(f"{root}: not a fedbench results folder (no {MARKER}); run `fedbench run SUITE` first")
        results = cls(root)
        results.marker()
        return results

    def marker(self) -> dict:
        """The folder's own facts: schema version, suite, and the cell keys of the last plan."""
        path = self.root / MARKER
        try:
            facts = json.loads(path.read_bytes())
            version = int(facts["schema_version"])
            str(facts["suite"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path}: unreadable ({type(error).__name__}: {error}); restore it or name another folder with --results"
            ) from error
        if version > SCHEMA_VERSION:
            raise UserError(
                f"{path}: schema {version} is newer than this fedbench understands ({SCHEMA_VERSION}); upgrade fedbench"
            )
        return facts

    def _write_marker(self, facts: dict) -> None:
        write_atomically(self.root / MARKER, json.dumps(facts, indent=1).encode())

    def set_manifest(self, cells: list[str]) -> None:
        """Remember which cells the suite asks for now; records of earlier code or parameters stay, unlisted."""
        self._write_marker({**self.marker(), "cells": cells})

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """One `fedbench run` a folder; the lock dies with its process, however that ends."""
        with open(self.root / ".lock", "a") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise UserError(f"{self.root}: another `fedbench run` is writing here; wait for it or use --results") from error
            yield

    # -- records -------------------------------------------------------------------------------------------------

    def path(self, stem: str) -> Path:
        """Where the record of a cell lies."""
        return self.records / f"{stem}.json"

    def read(self, stem: str) -> Record | None:
        """The record, or None where there is none. Raises ``UserError`` for one this version cannot read."""
        path = self.path(stem)
        return read_record(path) if path.exists() else None

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
        for folder in (self.root, self.records, self.cache):
            for stray in folder.glob(f"{TEMPORARY_PREFIX}*"):
                stray.unlink(missing_ok=True)


def read_record(path: Path) -> Record:
    """One record. Raises ``UserError`` naming the file, the reason and the remedy."""
    remedy = "restore it, or delete the file to compute the cell again"
    try:
        if path.stat().st_size > _MAX_RECORD_BYTES:
            raise UserError(f"{path}: larger than {_MAX_RECORD_BYTES // 2**20} MiB; not a record - {remedy}")
        raw = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: unreadable ({type(error).__name__}: {error}); {remedy}") from error
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise UserError(
            f"{path}: schema {version} is newer than this fedbench understands ({SCHEMA_VERSION}); upgrade fedbench "
            "or use another results folder"
        )
    try:
        return Record.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "record"
        raise UserError(f"{path}: not a record of this fedbench ({where}: {first['msg']}); {remedy}") from error

