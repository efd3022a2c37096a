"""Read records and what lies beside them. They may come from anybody, so they are data: bounded, checked, never run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from fedbench.core.contract.errors import UserError
from fedbench.core.metrics.registry import METRICS
from fedbench.core.store.arrays import ArrayFile, Malformed
from fedbench.core.store.integrity import (
    NAMES_COMPONENTS_SINCE,
    NAMES_MAXIMA_SINCE,
    PROTECTED_SINCE,
    broken_seal,
    disagreements,
)
from fedbench.core.store.json_file import parse_json
from fedbench.core.store.record import SCHEMA_VERSION, Record
from fedbench.core.store.upgrade import upgraded
from fedbench.core.words.explain import one_line

MAX_RECORD_BYTES = 16 << 20
MAX_RECORDS = 100_000
RERUN = "delete it and run its suite again to compute the cell anew"
_KEY_IN_NAME = re.compile(r"--([0-9a-f]{12})$")


@dataclass(frozen=True)
class Candidates:
    """One attack's judgement of one target: ``scores`` [n] float64, ``kind`` [n] int8, ``ids`` [n] int64, ``in_mix`` [n]
    bool: who makes up the mix of outside and inside non-members (all, in records before schema 3); ``canary`` [n] bool: the
    mislabelled ones."""

    scores: np.ndarray
    kind: np.ndarray
    ids: np.ndarray
    in_mix: np.ndarray
    canary: np.ndarray


@dataclass(frozen=True)
class LoadedRecord:
    """A record, where it lies, and (for outcome ``ok``) its arrays, which are read when asked for. ``schema``: the one its
    file was written in."""

    record: Record
    path: Path
    schema: int = SCHEMA_VERSION

    def candidates(self, target: int) -> Candidates:
        """Scores, kinds and ids of ``target``'s candidates; UserError when the file beside the record is unusable."""
        return self.candidates_of([target])[target]

    def candidates_of(self, targets: Collection[int]) -> dict[int, Candidates]:
        """The same of several targets, from a file that is opened once."""
        with self._arrays() as arrays:
            return {target: _candidates(arrays, target) for target in targets}

    def everything(self) -> tuple[list[tuple[Candidates, np.ndarray]], np.ndarray]:
        """(each target's candidates, and which of them [n] bool are canaries; ``test_correct``), from one opening."""
        with self._arrays() as arrays:
            codes = [t.target for t in self.record.targets]
            judged = [_candidates(arrays, t) for t in codes]
            return [(c, c.canary) for c in judged], arrays.read("test_correct", np.bool_)

    def test_correct(self) -> np.ndarray:
        """[n_test] bool: which test samples the final model classifies correctly."""
        with self._arrays() as arrays:
            return arrays.read("test_correct", np.bool_)

    def null_maxima(self, target: int) -> tuple[np.ndarray, np.ndarray]:
        """(AUC [B], advantage [B]) float64: the target's ``maximum`` under each shuffled membership."""
        with self._arrays() as arrays:
            auc = _null(arrays, target, "auc", None)
            return auc, _null(arrays, target, "advantage", len(auc))

    def array(self, analysis: str, name: str) -> np.ndarray:
        """[n] float64: a vector that an analysis found."""
        with self._arrays() as arrays:
            return arrays.read(f"{analysis}:{name}", np.float64)

    def check(self) -> None:
        """UserError unless every array the record promises is there, of the right kind and length."""
        with self._arrays() as arrays:
            wanted = self.record.digests.get("scores")
            if wanted and arrays.sha256() != wanted:
                raise Malformed("its sha256 is not the one in the record, so it belongs to another run")
            arrays.length("test_correct", np.bool_)
            for t in self.record.targets:
                n = arrays.length(f"t{t.target}_scores", np.float64)
                for part, dtype in (("kind", np.int8), ("ids", np.int64), ("canary", np.bool_)):
                    if arrays.length(f"t{t.target}_{part}", dtype) != n:
                        raise Malformed(f"'t{t.target}_{part}' and 't{t.target}_scores' differ in length")
                if t.maximum is not None:
                    nulls = [f"t{t.target}_null_{of}" for of in ("auc", "advantage")]
                    auc, advantage = (arrays.length(name, np.float32) for name in nulls)
                    if auc != advantage or not auc:
                        raise Malformed(f"'{nulls[0]}' and '{nulls[1]}' are empty or differ in length")

    def _arrays(self) -> ArrayFile:
        again = "and run its suite again to compute the cell anew"
        return ArrayFile(self.path.with_suffix(".npz"), f"delete its record ({self.path.name}) {again}")


def _candidates(arrays: ArrayFile, target: int) -> Candidates:
    scores = arrays.read(f"t{target}_scores", np.float64)
    n = len(scores)
    kind = arrays.read(f"t{target}_kind", np.int8, n)
    ids = arrays.read(f"t{target}_ids", np.int64, n)
    there = f"t{target}_in_mix" in arrays
    in_mix = arrays.read(f"t{target}_in_mix", np.bool_, n) if there else np.ones(n, np.bool_)
    if not np.isfinite(scores[kind >= 0]).all():
        raise Malformed(f"'t{target}_scores' holds values that are not finite")
    if kind.size and not -1 <= kind.min() <= kind.max() <= 2:
        raise Malformed(f"'t{target}_kind' holds values outside -1..2")
    return Candidates(scores, kind, ids, in_mix, arrays.read(f"t{target}_canary", np.bool_, n))


def _null(arrays: ArrayFile, target: int, of: str, length: int | None) -> np.ndarray:
    values = arrays.read(f"t{target}_null_{of}", np.float32, length)
    if not ((values >= 0) & (values <= 1)).all():  # NaN is neither
        raise Malformed(f"'t{target}_null_{of}' holds values that are not between 0 and 1")
    return values.astype(np.float64)


def load_records(folder: Path | str) -> list[LoadedRecord]:
    """Every record of the results folder (``folder/records/*.json``), in the order of their file names.

    Raises UserError naming every file that cannot be used, why, and what to do about it.
    """
    records = Path(folder) / "records"
    paths = record_paths(records)
    if not paths:
        raise UserError(f"{records}: no records found; `fedbench run SUITE` writes them")
    return read_all(paths)


def record_paths(records: Path) -> list[Path]:
    """The record files of a folder, in the order of their names. UserError for more than any suite has."""
    paths = sorted(p for p in records.glob("*.json") if not p.name.startswith("."))
    if len(paths) > MAX_RECORDS:
        raise UserError(f"{records}: {len(paths)} records, more than the {MAX_RECORDS} a board can hold; split them")
    return paths


def read_all(paths: Iterable[Path]) -> list[LoadedRecord]:
    """The records at ``paths``; UserError with the mistakes of all of them."""
    return read_each(paths, read_record)


def read_each(paths: Iterable[Path], how: Callable[[Path], LoadedRecord]) -> list[LoadedRecord]:
    """What ``how`` reads at each path; UserError with the mistakes of all of them."""
    loaded: list[LoadedRecord] = []
    problems: list[str] = []
    for path in paths:
        try:
            loaded.append(how(path))
        except UserError as error:
            problems.extend(error.messages)
    if problems:
        raise UserError(*problems)
    return loaded


def read_record(path: Path) -> LoadedRecord:
    """One record, checked together with the arrays beside it. UserError names the file, the reason and the remedy."""
    loaded = read_bare(path)
    if loaded.record.outcome == "ok":
        loaded.check()
    return loaded


def read_bare(path: Path) -> LoadedRecord:
    """One record, checked by itself: what lies beside it is not looked at. UserError as of ``read_record``."""
    content = parse_json(path, MAX_RECORD_BYTES, RERUN)
    return LoadedRecord(_validated(content, path), path, content["schema_version"])


def _validated(content: Any, path: Path) -> Record:
    if not isinstance(content, dict) or "schema_version" not in content:
        raise UserError(f"{path}: not a fedbench record (it has no schema_version); move it out of the results folder")
    version = content["schema_version"]
    if type(version) is not int or version < 1:
        raise UserError(f"{path}: schema_version {one_line(repr(version), 120)} is not a version; {RERUN}")
    if version > SCHEMA_VERSION:
        raise UserError(
            f"{path}: made by a newer fedbench (record schema {version}; this one reads up to {SCHEMA_VERSION}); "
            "upgrade fedbench"
        )
    if (what := broken_seal(content)) is not None:
        raise UserError(f"{path}: damaged or changed since fedbench wrote it ({what}); {RERUN}")
    try:
        record = Record.model_validate(upgraded(content))
        what = next(_impossible(record), None)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not a valid record of schema {version} ({one_line(repr(error), 120)}); {RERUN}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: not a valid record ({one_line(where, 120)}: {one_line(first['msg'], 120)}); {RERUN}") from error
    if what is not None:
        raise UserError(f"{path}: not a valid record ({what}); {RERUN}")
    if (named := _KEY_IN_NAME.search(path.stem)) and not record.key.startswith(named.group(1)):
        raise UserError(f"{path}: holds another cell's record (key {one_line(record.key, 12)}): it was renamed; {RERUN}")
    return record


def _impossible(record: Record) -> Iterator[str]:
    """What a record claims that no measurement can give."""
    if record.outcome == "ok" and (record.utility is None or not record.targets):
        yield "outcome is 'ok' without utility and targets"
    if record.outcome != "ok" and (record.targets or record.pooled):
        yield f"outcome is '{record.outcome}', but it has scores"
    if record.by_adversary and (record.outcome != "diverged" or not record.described.get("adversary")):
        yield "by_adversary, but it did not diverge with an adversary inside"
    if record.utility is not None and not 0 <= record.utility.accuracy <= 1:
        yield "utility.accuracy is not between 0 and 1"
    scores = [s for t in record.targets for s in t.groups.values()] + list(record.pooled.values())
    for m in METRICS:
        values = [s.value(m.name) for s in scores]
        if any(v is not None and not m.low <= v <= m.high for v in values):
            yield f"{m.name} is not between {m.low:g} and {m.high:g}"
        if any((e := s.error(m.name)) is not None and not 0 <= e <= m.high - m.low for s in scores):
            yield f"the error of {m.name} is not between 0 and {m.high - m.low:g}"
    if any(not 0 <= n <= 2**53 for s in scores for n in (s.n_members, s.n_nonmembers)):
        yield "a number of candidates is not between 0 and 2^53"
    for found in (t.maximum for t in record.targets if t.maximum is not None):
        if not (0 <= found.auc <= 1 and 0 <= found.advantage <= 1 and found.rounds >= 1):
            yield "a maximum over rounds is not between 0 and 1, or of no round"
    if record.schema_version >= NAMES_MAXIMA_SINCE and any("ofl" in t.groups and t.maximum is None for t in record.targets):
        yield "the maximum of a target is missing"
    if not all(0 <= v < math.inf for v in (record.measured.train_cpu_s, record.measured.wall_s)):
        yield "measured times are negative or not finite"
    if not all(0 <= row.accuracy <= 1 for row in record.history):
        yield "the accuracy of a round is not between 0 and 1"
    if record.schema_version >= PROTECTED_SINCE:
        if record.identity is None:
            yield "identity is missing"
        if record.outcome == "ok" and "scores" not in record.digests:
            yield "digests.scores is missing"
    if record.schema_version >= NAMES_COMPONENTS_SINCE and record.components is None:
        yield "components is missing"
    yield from disagreements(record)
