"""Read records and their arrays, which may have any origin: sizes, digests, types and value ranges
are checked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from fedbench.core.contract.errors import UserError
from fedbench.core.store.arrays import RunArrays
from fedbench.core.store.json_file import parse_json
from fedbench.core.store.record import Record
from fedbench.core.store.run_file import array_names, digest_of_arrays, optional_names
from fedbench.core.store.stems import stem_of_cell, stem_of_run
from fedbench.core.store.validity import RERUN, validated
from fedbench.core.words import one_line

MAX_RECORD_BYTES = 16 << 20
IMPORTED = "imported"  # RESULTS/imported/BUNDLE/records: records of other groups
# RESULTS/reproduced: a results folder with imported cells that were computed again here
REPRODUCED = "reproduced"


@dataclass(frozen=True)
class Candidates:
    """The candidates of one target and the scores of one attack for them."""

    scores: np.ndarray
    """[n] float64"""
    kind: np.ndarray
    """[n] int8"""
    ids: np.ndarray
    """[n] int64"""
    in_mix: np.ndarray
    """[n] bool: in the mix of outside and inside non-members"""
    canary: np.ndarray
    """[n] bool: mislabelled"""


@dataclass(frozen=True)
class LoadedRecord:
    """The record of a cell, and the files of its run: the record at ``path`` and the ``arrays``,
    which are read on demand. Methods raise ``UserError`` where the arrays cannot be used.
    """

    record: Record
    path: Path
    arrays: Path
    correct: np.ndarray | None = field(default=None, compare=False, repr=False)
    """:meth:`test_correct`, where it is in memory since its file was checked"""

    @property
    def stem(self) -> str:
        """The name of the cell; in a merged folder the name of the suite can be in front."""
        return self.path.stem.removesuffix(stem_of_run(self.record)) + stem_of_cell(self.record)

    @property
    def bundle(self) -> str:
        """The name of the bundle that the record came in; empty for one measured in its folder."""
        folder = self.path.parents[1]
        return folder.name if folder.parent.name == IMPORTED else ""

    def candidates(self, target: int) -> Candidates:
        """Return the candidates of one target with their scores."""
        return _candidates(self._arrays(), self.record.key, target)

    def candidates_of(self, targets: Collection[int]) -> dict[int, Candidates]:
        """Return the candidates of several targets."""
        return {target: self.candidates(target) for target in targets}

    def test_correct(self) -> np.ndarray:
        """Return [n_test] the utility of the final model on each test sample: in classification
        bool, whether it is right.
        """
        if self.correct is not None:
            return self.correct
        return _test_correct(self._arrays(), self.record)

    def everything(self) -> tuple[dict[int, Candidates], np.ndarray]:
        """Return (each target's candidates, ``test_correct``)."""
        return self.candidates_of([t.target for t in self.record.targets]), self.test_correct()

    def null_maxima(self, target: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (AUC [B], advantage [B]) float64: the target's ``maximum`` under each shuffled
        membership.
        """
        return _null_maxima(self._arrays(), self.record.key, target)

    def array(self, analysis: str, name: str) -> np.ndarray:
        """Return [n] float64: a vector of an analysis."""
        return self._arrays().vector(self.record.key, f"{analysis}:{name}", np.float64)

    def all_arrays(self) -> dict[str, np.ndarray]:
        """Return every array of the cell by name; none where it has no scores."""
        return _all(self._arrays(), self.record) if self.record.outcome == "ok" else {}

    def _arrays(self) -> RunArrays:
        changed = self.arrays.stat().st_mtime_ns if self.arrays.exists() else None
        return _run_arrays(self.arrays, self.path, changed)


@lru_cache(maxsize=32)  # tables ask for the cells of a run one after the other, and several times
def _run_arrays(path: Path, record: Path, changed: int | None) -> RunArrays:
    """Return the arrays of a run, as they are since ``changed``."""
    return RunArrays(path, _remedy(record))


def run_by_run(records: Iterable[LoadedRecord]) -> Iterator[LoadedRecord]:
    """Yield records in their order, run by run, with the arrays of one run in memory at a time."""
    path = None
    for loaded in records:
        if loaded.path != path:
            _run_arrays.cache_clear()
            path = loaded.path
        yield loaded
    _run_arrays.cache_clear()


def _remedy(record: Path) -> str:
    return f"delete its record ({record.name}) and run its suite again to compute the run anew"


def _all(arrays: RunArrays, record: Record) -> dict[str, np.ndarray]:
    by_name = {name: arrays.array(record.key, name) for name in array_names(record)}
    for name in optional_names(record):
        if (a := arrays.find(record.key, name)) is not None:
            by_name[name] = a
    return by_name


def _candidates(arrays: RunArrays, key: str, target: int) -> Candidates:
    scores = arrays.vector(key, f"t{target}_scores", np.float64)
    n = len(scores)
    kind = arrays.vector(key, f"t{target}_kind", np.int8, n)
    if not np.isfinite(scores[kind >= 0]).all():
        raise arrays.error(f"'t{target}_scores' holds values that are not finite")
    if kind.size and not -1 <= kind.min() <= kind.max() <= 2:
        raise arrays.error(f"'t{target}_kind' holds values outside -1..2")
    ids = arrays.vector(key, f"t{target}_ids", np.int64, n)
    in_mix, canary = (
        arrays.vector(key, f"t{target}_{part}", np.bool_, n) for part in ("in_mix", "canary")
    )
    return Candidates(scores, kind, ids, in_mix, canary)


def _null_maxima(arrays: RunArrays, key: str, target: int) -> tuple[np.ndarray, np.ndarray]:
    auc = arrays.vector(key, f"t{target}_null_auc", np.float32)
    advantage = arrays.vector(key, f"t{target}_null_advantage", np.float32, len(auc))
    for name, values in (("auc", auc), ("advantage", advantage)):
        if not ((values >= 0) & (values <= 1)).all():  # NaN is neither
            raise arrays.error(f"'t{target}_null_{name}' holds values that are not between 0 and 1")
    return auc.astype(np.float64), advantage.astype(np.float64)


def load_records(folder: Path | str, arrays: bool = True) -> list[LoadedRecord]:
    """Return the records of all cells in a results folder: those measured there, then imported
    ones of other keys.

    Args:
        arrays: whether their arrays are checked, too.

    Raises ``UserError`` with every file that cannot be used, the reason and the remedy.
    """
    paths = all_paths(Path(folder))
    if not paths:
        raise UserError(
            f"{Path(folder) / 'records'}: no records found; `fedbench run SUITE` writes them"
        )
    read = read_run if arrays else read_bare
    loaded = []
    problems: list[str] = []
    for path in paths:
        try:
            loaded += read(path)
        except UserError as error:
            problems += error.messages
    if problems:
        raise UserError(*problems)
    measured = [r for r in loaded if not r.bundle]
    imported = {(r.record.suite, r.record.key): r for r in loaded if r.bundle}
    for r in measured:
        imported.pop((r.record.suite, r.record.key), None)
    return [*measured, *imported.values()]


def all_paths(root: Path) -> list[Path]:
    """Return the record files of a results folder, imported ones last."""
    paths = record_paths(root / "records")
    for folder in sorted(root.glob(f"{IMPORTED}/*/records")):
        paths += record_paths(folder)
    return paths


def record_paths(records: Path) -> list[Path]:
    """Return the record files of a folder by name."""
    return sorted(p for p in records.glob("*.json") if not p.name.startswith("."))


def read_run(path: Path) -> list[LoadedRecord]:
    """Return the cells of one run, checked together with their arrays. Raises ``UserError`` with
    the file, the reason and the remedy.
    """
    loaded = read_bare(path)
    if all(cell.record.outcome != "ok" for cell in loaded):
        return loaded
    arrays = RunArrays(loaded[0].arrays, _remedy(path))
    checked = []
    for cell in loaded:
        if cell.record.outcome == "ok":
            cell = replace(cell, correct=_check(arrays, cell.record))
        checked.append(cell)
    return checked


def _check(arrays: RunArrays, record: Record) -> np.ndarray:
    """Return ``test_correct``. Raises ``UserError`` unless the arrays are those that the record was
    written with, of the right types and lengths.
    """
    if digest_of_arrays(_all(arrays, record)) != record.digests["scores"]:
        raise arrays.error(
            f"the arrays of the attack '{record.attack.label}' are not those that its record was "
            "written with"
        )
    for t in record.targets:
        _candidates(arrays, record.key, t.target)
        if t.maximum is not None:
            _null_maxima(arrays, record.key, t.target)
    return _test_correct(arrays, record)


def _test_correct(arrays: RunArrays, record: Record) -> np.ndarray:
    share = record.utility is None or record.utility.name == "accuracy"
    return arrays.vector(record.key, "test_correct", np.bool_ if share else np.float64)


def read_bare(path: Path) -> list[LoadedRecord]:
    """Return the cells of one run without a check of their arrays. Raises ``UserError`` as
    :func:`read_run`.
    """
    content = parse_json(path, MAX_RECORD_BYTES, RERUN)
    records = validated(content, path)
    name = content.get("arrays")
    plain = isinstance(name, str) and "/" not in name
    if not plain or (name and not name.startswith(f"{path.stem}--")):
        raise UserError(
            f"{path}: not a valid record (arrays: {one_line(repr(name), 120)}); {RERUN}"
        )
    arrays = path.with_name(name or f"{path.stem}.npz")
    if any(record.outcome == "ok" for record in records) and not arrays.exists():
        raise UserError(f"{arrays}: missing, though its record says 'ok'; {_remedy(path)}")
    return [LoadedRecord(record, path, arrays) for record in records]
