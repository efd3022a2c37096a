"""Read records and the score files beside them. Their origin is unknown, so they are data: bounded, checked, never executed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from fedbench.core.contract.errors import UserError
from fedbench.core.store.arrays import ArrayFile, Malformed
from fedbench.core.store.json_file import parse_json
from fedbench.core.store.record import Record
from fedbench.core.store.run_file import array_names, digest_of_arrays, member, optional_names
from fedbench.core.store.stems import stem_of_cell, stem_of_run
from fedbench.core.store.validity import RERUN, validated
from fedbench.core.words import one_line

MAX_RECORD_BYTES = 16 << 20
MAX_RECORDS = 200_000
IMPORTED = "imported"  # RESULTS/imported/BUNDLE/records: records of other groups
REPRODUCED = "reproduced"  # RESULTS/reproduced: a results folder with imported cells that were computed again here


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
    """The record of a cell, and the files of its run: the record at ``path`` and the ``arrays``, which are read on demand."""

    record: Record
    path: Path
    arrays: Path

    @property
    def stem(self) -> str:
        """The name of the cell; in a merged folder with the name of the suite in front, as its run has it."""
        return self.path.stem.removesuffix(stem_of_run(self.record)) + stem_of_cell(self.record)

    @property
    def bundle(self) -> str:
        """The name of the bundle that the record came in; empty for one that was measured in its folder."""
        folder = self.path.parents[1]
        return folder.name if folder.parent.name == IMPORTED else ""

    def candidates(self, target: int) -> Candidates:
        """Scores, kinds and ids of ``target``'s candidates; UserError when the arrays are unusable."""
        return self.everything()[0][target]

    def candidates_of(self, targets: Collection[int]) -> dict[int, Candidates]:
        """The same of several targets."""
        return {target: self.everything()[0][target] for target in targets}

    def test_correct(self) -> np.ndarray:
        """[n_test] bool: which test samples the final model classifies correctly."""
        return self.everything()[1]

    def everything(self) -> tuple[dict[int, Candidates], np.ndarray]:
        """(each target's candidates, ``test_correct``)."""
        targets = tuple(t.target for t in self.record.targets)
        return _everything(self.path, self.arrays, self.record.key, targets, self.record.digests["scores"])

    def null_maxima(self, target: int) -> tuple[np.ndarray, np.ndarray]:
        """(AUC [B], advantage [B]) float64: the target's ``maximum`` under each shuffled membership."""
        with self._open() as arrays:
            auc = _null(arrays, target, "auc", None)
            return auc, _null(arrays, target, "advantage", len(auc))

    def array(self, analysis: str, name: str) -> np.ndarray:
        """[n] float64: a vector that an analysis found."""
        with self._open() as arrays:
            return arrays.read(f"{analysis}:{name}", np.float64)

    def all_arrays(self) -> dict[str, np.ndarray]:
        """Every array of the cell by name; none where it has no scores."""
        if self.record.outcome != "ok":
            return {}
        with self._open() as arrays:
            return _all(arrays, self.record)

    @contextmanager
    def _open(self) -> Iterator[CellArrays]:
        with ArrayFile(self.arrays, _remedy(self.path)) as file:
            yield CellArrays(file, self.record.key)


@dataclass(frozen=True)
class CellArrays:
    """The arrays of one cell in the open file of its run: its own, else those that all cells share."""

    file: ArrayFile
    key: str

    def __contains__(self, name: str) -> bool:
        return name in self.file or member(self.key, name) in self.file

    def array(self, name: str) -> np.ndarray:
        """The array of the cell."""
        return self.file.array(self._named(name))

    def read(self, name: str, dtype: type, length: int | None = None) -> np.ndarray:
        """The vector of the cell, which must have this type (and length)."""
        return self.file.read(self._named(name), dtype, length)

    def _named(self, name: str) -> str:
        own = member(self.key, name)
        return own if own in self.file else name


def _remedy(record: Path) -> str:
    return f"delete its record ({record.name}) and run its suite again to compute the run anew"


def _all(arrays: CellArrays, record: Record) -> dict[str, np.ndarray]:
    optional = [name for name in optional_names(record) if name in arrays]
    return {name: arrays.array(name) for name in (*array_names(record), *optional)}


@lru_cache(maxsize=128)  # the tables of a section ask for the same arrays several times
def _everything(
    record: Path, path: Path, key: str, targets: tuple[int, ...], digest: str
) -> tuple[dict[int, Candidates], np.ndarray]:
    """``digest``: of the arrays, so that others are read anew."""
    changed = path.stat().st_mtime_ns if path.exists() else None
    with _shared_file(path, _remedy(record), changed) as file:
        arrays = CellArrays(file, key)
        return {target: _candidates(arrays, target) for target in targets}, arrays.read("test_correct", np.bool_)


@lru_cache(maxsize=1)  # tables ask for the cells of a run one after the other
def _shared_file(path: Path, remedy: str, changed: int | None) -> ArrayFile:
    """The file as it is since ``changed``."""
    return ArrayFile(path, remedy)


def _candidates(arrays: CellArrays, target: int) -> Candidates:
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


def _null(arrays: CellArrays, target: int, of: str, length: int | None) -> np.ndarray:
    values = arrays.read(f"t{target}_null_{of}", np.float32, length)
    if not ((values >= 0) & (values <= 1)).all():  # NaN is neither
        raise Malformed(f"'t{target}_null_{of}' holds values that are not between 0 and 1")
    return values.astype(np.float64)


def load_records(folder: Path | str) -> list[LoadedRecord]:
    """The records of all cells in a results folder: those that were measured there, then imported ones of other keys.

    UserError that names every file that cannot be used, with reason and remedy.
    """
    paths = all_paths(Path(folder))
    if not paths:
        raise UserError(f"{Path(folder) / 'records'}: no records found; `fedbench run SUITE` writes them")
    loaded = read_all(paths)
    own = [r for r in loaded if not r.bundle]
    known = {(r.record.suite, r.record.key) for r in own}
    imported = {(r.record.suite, r.record.key): r for r in loaded if r.bundle}
    return [*own, *(r for at, r in imported.items() if at not in known)]


def all_paths(root: Path) -> list[Path]:
    """The record files of a results folder, imported ones last."""
    folders = [root / "records", *sorted(root.glob(f"{IMPORTED}/*/records"))]
    return [path for folder in folders for path in record_paths(folder)]


def record_paths(records: Path) -> list[Path]:
    """The record files of a folder, in the order of their names. UserError for more than any suite has."""
    paths = sorted(p for p in records.glob("*.json") if not p.name.startswith("."))
    if len(paths) > MAX_RECORDS:
        raise UserError(f"{records}: {len(paths)} records, more than the {MAX_RECORDS} a board can hold; split them")
    return paths


def read_all(paths: Iterable[Path], read: Callable[[Path], list[LoadedRecord]] | None = None) -> list[LoadedRecord]:
    """The cells of the runs at ``paths``; UserError with the mistakes of all of them. ``read``: one run, by default
    :func:`read_run`."""
    loaded: list[LoadedRecord] = []
    problems: list[str] = []
    for path in paths:
        try:
            loaded += (read or read_run)(path)
        except UserError as error:
            problems.extend(error.messages)
    if problems:
        raise UserError(*problems)
    return loaded


def read_run(path: Path) -> list[LoadedRecord]:
    """The cells of one run, checked together with their arrays. UserError names the file, the reason and the remedy."""
    loaded = read_bare(path)
    scored = [one.record for one in loaded if one.record.outcome == "ok"]
    if scored:
        with ArrayFile(loaded[0].arrays, _remedy(path)) as file:
            for record in scored:
                _check(CellArrays(file, record.key), record)
    return loaded


def _check(arrays: CellArrays, record: Record) -> None:
    """Raise :class:`Malformed` unless the arrays are those that the record was written with, of the right types and lengths."""
    if digest_of_arrays(_all(arrays, record)) != record.digests["scores"]:
        raise Malformed(f"the arrays of the attack '{record.attack.label}' are not those that its record was written with")
    for t in record.targets:
        _candidates(arrays, t.target)
        if t.maximum is not None:
            _null(arrays, t.target, "advantage", len(_null(arrays, t.target, "auc", None)))
    arrays.read("test_correct", np.bool_)


def read_bare(path: Path) -> list[LoadedRecord]:
    """The cells of one run, without a check of their arrays. UserError as of ``read_run``."""
    content = parse_json(path, MAX_RECORD_BYTES, RERUN)
    records = validated(content, path)
    if not isinstance(name := content.get("arrays"), str) or (name and not name.startswith(f"{path.stem}--")) or "/" in name:
        raise UserError(f"{path}: not a valid record (arrays: {one_line(repr(name), 120)}); {RERUN}")
    arrays = path.with_name(name or f"{path.stem}.npz")
    if any(record.outcome == "ok" for record in records) and not arrays.exists():
        raise UserError(f"{arrays}: missing, though its record says 'ok'; {_remedy(path)}")
    return [LoadedRecord(record, path, arrays) for record in records]
