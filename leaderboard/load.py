"""Reads a results folder. Records and arrays may come from anybody, so they are data: bounded, checked, never run."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from fedbench.core import UserError
from fedbench.core.store.record import SCHEMA_VERSION, Record
from fedbench.leaderboard.arrays import ArrayFile, Malformed

MAX_RECORD_BYTES = 16 << 20
MAX_RECORDS = 100_000
RERUN = "delete it and run its suite again"


@dataclass(frozen=True)
class Candidates:
    """One attack's judgement of one target: ``scores`` [n] float64, ``kind`` [n] int8, ``ids`` [n] int64."""

    scores: np.ndarray
    kind: np.ndarray
    ids: np.ndarray


@dataclass(frozen=True)
class LoadedRecord:
    """A record, where it lies, and (for outcome ``ok``) its arrays, which are read when asked for."""

    record: Record
    path: Path

    def candidates(self, target: int) -> Candidates:
        """Scores, kinds and ids of ``target``'s candidates; UserError when the file beside the record is unusable."""
        with self._arrays() as arrays:
            n = arrays.length(f"t{target}_scores")
            scores = arrays.read(f"t{target}_scores", np.float32, n).astype(np.float64)
            kind = arrays.read(f"t{target}_kind", np.int8, n)
            ids = arrays.read(f"t{target}_ids", np.int64, n)
            if not np.isfinite(scores[kind >= 0]).all():
                raise Malformed(f"'t{target}_scores' holds values that are not finite")
            if kind.size and not -1 <= kind.min() <= kind.max() <= 2:
                raise Malformed(f"'t{target}_kind' holds values outside -1..2")
        return Candidates(scores, kind, ids)

    def test_correct(self) -> np.ndarray:
        """[n_test] bool: which test samples the final model classifies correctly."""
        with self._arrays() as arrays:
            return arrays.read("test_correct", np.bool_)

    def check(self) -> None:
        """UserError unless every array the record promises is there, of the right kind and length."""
        with self._arrays() as arrays:
            wanted = self.record.digests.get("scores")
            if wanted and arrays.sha256() != wanted:
                raise Malformed("its sha256 is not the one in the record, so it belongs to another run")
            arrays.length("test_correct", np.bool_)
            for t in self.record.targets:
                n = arrays.length(f"t{t.target}_scores", np.float32)
                for part, dtype in (("kind", np.int8), ("ids", np.int64), ("canary", np.bool_)):
                    if arrays.length(f"t{t.target}_{part}", dtype) != n:
                        raise Malformed(f"'t{t.target}_{part}' and 't{t.target}_scores' differ in length")

    def _arrays(self) -> ArrayFile:
        return ArrayFile(self.path.with_suffix(".npz"), RERUN)


def load_records(folder: Path | str) -> list[LoadedRecord]:
    """Every record of the results folder (``folder/records/*.json``), in the order of their file names.

    Raises UserError naming every file that cannot be used, why, and what to do about it.
    """
    records = Path(folder) / "records"
    paths = sorted(p for p in records.glob("*.json") if not p.name.startswith("."))
    if not paths:
        raise UserError(f"{records}: no records found; `fedbench run SUITE` writes them")
    if len(paths) > MAX_RECORDS:
        raise UserError(f"{records}: {len(paths)} records, more than the {MAX_RECORDS} a board can hold; split them")
    loaded: list[LoadedRecord] = []
    problems: list[str] = []
    for path in paths:
        try:
            loaded.append(_load(path))
        except UserError as error:
            problems.extend(error.messages)
    if problems:
        raise UserError(*problems)
    return loaded


def _load(path: Path) -> LoadedRecord:
    loaded = LoadedRecord(_validated(_parsed(path), path), path)
    if loaded.record.outcome == "ok":
        loaded.check()
    return loaded


def _parsed(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_RECORD_BYTES:
            raise UserError(f"{path}: larger than {MAX_RECORD_BYTES >> 20} MiB, no fedbench record is; remove it")
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a complete JSON file ({_brief(str(error))}); {RERUN}") from error
    if not isinstance(content, dict) or "schema_version" not in content:
        raise UserError(f"{path}: not a fedbench record (it has no schema_version); move it out of the results folder")
    return content


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a JSON number")


def _validated(content: dict[str, Any], path: Path) -> Record:
    version = content["schema_version"]
    if type(version) is not int or version < 1:
        raise UserError(f"{path}: schema_version {_brief(repr(version))} is not a version; {RERUN}")
    if version > SCHEMA_VERSION:
        raise UserError(
            f"{path}: made by a newer fedbench (record schema {version}; this one reads up to {SCHEMA_VERSION}); "
            "upgrade fedbench"
        )
    try:
        record = Record.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: not a valid record ({_brief(where)}: {_brief(first['msg'])}); {RERUN}") from error
    for what in _impossible(record):
        raise UserError(f"{path}: not a valid record ({what}); {RERUN}")
    return record


def _impossible(record: Record) -> Iterator[str]:
    """What a record claims that no measurement can give."""
    if record.outcome == "ok" and (record.utility is None or not record.targets):
        yield "outcome is 'ok' without utility and targets"
    if record.utility is not None and not 0 <= record.utility.accuracy <= 1:
        yield "utility.accuracy is not between 0 and 1"
    scores = [s for t in record.targets for s in t.groups.values()] + list(record.pooled.values())
    limits = (("auc", 1), ("tf01", 100), ("auc_se", 1), ("tf01_se", 100), ("n_members", 2**53), ("n_nonmembers", 2**53))
    for name, top in limits:
        if any((v := getattr(s, name)) is not None and not 0 <= v <= top for s in scores):
            yield f"{name} is not between 0 and {top}"
    if not all(math.isfinite(v) for v in (record.measured.train_cpu_s, record.measured.wall_s)):
        yield "measured times are not finite"


def _brief(text: str, limit: int = 120) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
