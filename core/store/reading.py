"""Read records and what lies beside them. They may come from anybody, so they are data: bounded, checked, never run."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedbench.core.contract.errors import UserError
from fedbench.core.store.arrays import ArrayFile, Malformed
from fedbench.core.store.held import Held
from fedbench.core.store.json_file import parse_bytes, read_file
from fedbench.core.store.members import members_of
from fedbench.core.store.proven import Proven, content_of, content_with
from fedbench.core.store.record import SCHEMA_VERSION, Record
from fedbench.core.store.shared import Shared
from fedbench.core.store.validity import RERUN, trusted, validated

__all__ = [
    "RERUN", "Candidates", "LoadedRecord", "load_records", "read_all", "read_bare", "read_each", "read_record", "record_paths",
]  # fmt: skip
Read = TypeVar("Read")
MAX_RECORD_BYTES = 16 << 20
MAX_RECORDS = 200_000
_MANY = 10_000
_CORRECT = "test_correct"
_HELD = Held()


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
    file was written in; ``content``: the digest of both files by which ``proven`` knows them, where it was read with them."""

    record: Record
    path: Path
    schema: int = SCHEMA_VERSION
    content: str = ""

    def candidates(self, target: int) -> Candidates:
        """Scores, kinds and ids of ``target``'s candidates; UserError when the file beside the record is unusable."""
        return self.candidates_of([target])[target]

    def candidates_of(self, targets: Collection[int]) -> dict[int, Candidates]:
        """The same of several targets, from a file that is opened once."""
        found = self._read(targets)
        return {target: found[target] for target in targets}

    def everything(self) -> tuple[list[tuple[Candidates, np.ndarray]], np.ndarray]:
        """(each target's candidates, and which of them [n] bool are canaries; ``test_correct``), from one opening."""
        with self._arrays() as arrays:
            codes = [t.target for t in self.record.targets]
            judged = [_candidates(arrays, t) for t in codes]
            return [(c, c.canary) for c in judged], arrays.read("test_correct", np.bool_)

    def test_correct(self) -> np.ndarray:
        """[n_test] bool: which test samples the final model classifies correctly."""
        correct: np.ndarray = self._read(())[_CORRECT]
        return correct

    def _read(self, targets: Collection[int]) -> Mapping[Hashable, Any]:
        """These targets' candidates and, as ``test_correct``, the test samples: of a file known by its content they are held."""
        found = _HELD.of(str(self.path), self.content) if self.content else {}
        if _CORRECT in found and all(target in found for target in targets):
            return found
        with self._arrays() as arrays:
            now: dict[Hashable, Any] = {target: _candidates(arrays, target) for target in targets}
            now[_CORRECT] = arrays.read(_CORRECT, np.bool_)
        if self.content:
            size = sum(sum(a.nbytes for a in vars(c).values()) for c in now.values() if isinstance(c, Candidates))
            _HELD.add(str(self.path), self.content, now, size + now[_CORRECT].nbytes)
        return now

    def null_maxima(self, target: int) -> tuple[np.ndarray, np.ndarray]:
        """(AUC [B], advantage [B]) float64: the target's ``maximum`` under each shuffled membership."""
        with self._arrays() as arrays:
            auc = _null(arrays, target, "auc", None)
            return auc, _null(arrays, target, "advantage", len(auc))

    def array(self, analysis: str, name: str) -> np.ndarray:
        """[n] float64: a vector that an analysis found."""
        with self._arrays() as arrays:
            return arrays.read(f"{analysis}:{name}", np.float64)

    def check(self) -> str:
        """Hex sha256 of the scores' file, as it was when every array that the record promises was found there, of the right kind
        and length. Raises ``UserError``."""
        with self._arrays() as arrays:
            wanted, sha256 = self.record.digests.get("scores"), arrays.sha256()
            if wanted and sha256 != wanted:
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
            return sha256

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


def load_records(folder: Path | str, proven: Proven | None = None) -> list[LoadedRecord]:
    """Every record of the results folder (``folder/records/*.json``), in the order of their file names. ``proven``: what is
    known of it.

    Raises UserError naming every file that cannot be used, why, and what to do about it.
    """
    records, proven = Path(folder) / "records", proven or Proven(Path(folder))
    paths = record_paths(records)
    if not paths:
        raise UserError(f"{records}: no records found; `fedbench run SUITE` writes them")
    loaded = read_all(paths, proven)
    proven.save()
    return loaded


def record_paths(records: Path) -> list[Path]:
    """The record files of a folder, in the order of their names. UserError for more than any suite has."""
    paths = sorted(p for p in records.glob("*.json") if not p.name.startswith("."))
    if len(paths) > MAX_RECORDS:
        raise UserError(f"{records}: {len(paths)} records, more than the {MAX_RECORDS} a board can hold; split them")
    return paths


def read_all(paths: Iterable[Path], proven: Proven | None = None) -> list[LoadedRecord]:
    """The records at ``paths``; UserError with the mistakes of all of them. ``proven``: what is known of their folder."""
    shared = Shared()
    return read_each(paths, lambda path: read_record(path, shared, proven))


def read_each(paths: Iterable[Path], how: Callable[[Path], Read]) -> list[Read]:
    """What ``how`` reads at each path; UserError with the mistakes of all of them."""
    loaded: list[Read] = []
    problems: list[str] = []
    with _no_collection():
        for path in paths:
            try:
                loaded.append(how(path))
            except UserError as error:
                problems.extend(error.messages)
        if len(loaded) > _MANY:  # they stay: looking through them again and again would take longer than the tables
            gc.freeze()
    if problems:
        raise UserError(*problems)
    return loaded


def read_record(path: Path, shared: Shared | None = None, proven: Proven | None = None) -> LoadedRecord:
    """One record, checked together with the arrays beside it. UserError names the file, the reason and the remedy. ``shared``
    and ``proven``: of the folder, where many are read."""
    shared, proven = shared or Shared(), proven or Proven()
    given = read_file(path, MAX_RECORD_BYTES, RERUN)
    content = content_of(given, path.with_suffix(".npz"))
    if proven.holds("read", content):
        members = members_of(given, shared, known=True)
        values = json.loads(given) if members is None else members.values
        return LoadedRecord(trusted(values, path, shared, members), path, values["schema_version"], content)
    loaded = _bare(given, path, shared, content)
    if loaded.record.outcome != "ok" or content == content_with(given, loaded.check()):  # what was checked is what is noted
        proven.add("read", content)
    return loaded


def read_bare(path: Path, shared: Shared | None = None) -> LoadedRecord:
    """One record, checked by itself: what lies beside it is not looked at. UserError as of ``read_record``."""
    return _bare(read_file(path, MAX_RECORD_BYTES, RERUN), path, shared or Shared(), "")


def _bare(given: bytes, path: Path, shared: Shared, content: str) -> LoadedRecord:
    members = members_of(given, shared)
    values = parse_bytes(given, str(path), RERUN) if members is None else members.values
    return LoadedRecord(validated(values, path, shared, members), path, values["schema_version"], content)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Nothing of a record refers to itself, and looking for what does takes as long as reading a hundred thousand of them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
