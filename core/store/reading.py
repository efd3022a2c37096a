"""Read records and the score files beside them. Their origin is unknown, so they are data: bounded, checked, never executed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import numpy as np

from fedbench.core.contract.errors import UserError
from fedbench.core.store.arrays import ArrayFile, Malformed
from fedbench.core.store.json_file import parse_json
from fedbench.core.store.record import Record
from fedbench.core.store.validity import RERUN, validated

Read = TypeVar("Read")
MAX_RECORD_BYTES = 16 << 20
MAX_RECORDS = 200_000


@dataclass(frozen=True)
class Candidates:
    """The scores of one attack for one target: ``scores`` [n] float64, ``kind`` [n] int8, ``ids`` [n] int64, ``in_mix`` [n]
    bool: candidates of the mix of outside and inside non-members; ``canary`` [n] bool: mislabelled candidates."""

    scores: np.ndarray
    kind: np.ndarray
    ids: np.ndarray
    in_mix: np.ndarray
    canary: np.ndarray


@dataclass(frozen=True)
class LoadedRecord:
    """A record, its path, and (for outcome ``ok``) its arrays, which are read when asked for."""

    record: Record
    path: Path

    def candidates(self, target: int) -> Candidates:
        """Scores, kinds and ids of ``target``'s candidates; UserError when the file beside the record is unusable."""
        return self.everything()[0][target]

    def candidates_of(self, targets: Collection[int]) -> dict[int, Candidates]:
        """The same of several targets."""
        return {target: self.everything()[0][target] for target in targets}

    def test_correct(self) -> np.ndarray:
        """[n_test] bool: which test samples the final model classifies correctly."""
        return self.everything()[1]

    def everything(self) -> tuple[dict[int, Candidates], np.ndarray]:
        """(each target's candidates, ``test_correct``)."""
        return _everything(self.path, self.record.digests["scores"], tuple(t.target for t in self.record.targets))

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
        """UserError unless the file is the one that the record names, with every array that it promises, of the right type and
        length."""
        with self._arrays() as arrays:
            if arrays.sha256() != self.record.digests["scores"]:
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
        return _arrays_of(self.path)


def _arrays_of(record: Path) -> ArrayFile:
    again = "and run its suite again to compute the cell anew"
    return ArrayFile(record.with_suffix(".npz"), f"delete its record ({record.name}) {again}")


@lru_cache(maxsize=128)  # the tables of a section ask for the same files several times
def _everything(record: Path, digest: str, targets: tuple[int, ...]) -> tuple[dict[int, Candidates], np.ndarray]:
    """``digest``: of the file, so that one which was written anew is read anew."""
    with _arrays_of(record) as arrays:
        return {target: _candidates(arrays, target) for target in targets}, arrays.read("test_correct", np.bool_)


def _candidates(arrays: ArrayFile, target: int) -> Candidates:
    scores = arrays.read(f"t{target}_scores", np.float64)
    n = len(scores)
    kind = arrays.read(f"t{target}_kind", np.int8, n)
    ids = arrays.read(f"t{target}_ids", np.int64, n)
    in_mix = arrays.read(f"t{target}_in_mix", np.bool_, n)
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

    UserError that names every file that cannot be used, with reason and remedy.
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


def read_each(paths: Iterable[Path], read: Callable[[Path], Read]) -> list[Read]:
    """``read(path)`` of each path; UserError with the mistakes of all of them."""
    loaded: list[Read] = []
    problems: list[str] = []
    for path in paths:
        try:
            loaded.append(read(path))
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
    return LoadedRecord(validated(parse_json(path, MAX_RECORD_BYTES, RERUN), path), path)
