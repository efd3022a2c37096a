"""The observations that a training left in the cache of its folder, and a check of those that came
in a bundle.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from pydantic import ConfigDict

from fedbench.core.contract.defense import FactValue
from fedbench.core.contract.errors import UserError
from fedbench.core.store.arrays import RunArrays
from fedbench.core.store.integrity import key_of
from fedbench.core.store.reading import MAX_RECORD_BYTES, LoadedRecord, run_by_run
from fedbench.core.store.record import RoundRow
from fedbench.core.store.run_file import digest_of_arrays
from fedbench.core.store.scores import RecordPart

_REMEDY = "ask its author for a bundle without observations"


class _Facts(RecordPart):
    """Facts beside the arrays: those that are checked; the digest covers all."""

    model_config = ConfigDict(extra="ignore")

    run_key: str
    cpu: str
    device: str
    digest: str
    rows: list[int]
    n_models: int
    n_classes: int
    root: int
    history: list[RoundRow]
    measured: dict[str, float]
    facts: dict[str, FactValue]
    complaints: list[str]
    notes: list[str]
    failed: dict[str, str]
    signal_notes: dict[str, str]
    code: dict[str, str]
    rejected: list[tuple[int, int]]


def observations_of(loaded: LoadedRecord) -> Path:
    """Return the path at which the observations of a record's run lie, if they were kept."""
    return loaded.path.parents[1] / "cache" / f"{loaded.record.run_key[:32]}.npz"


def require_observations(root: Path, records: Iterable[LoadedRecord]) -> None:
    """Check the sizes, types and digests of all observations in an unpacked bundle, and that each
    is of the training that its records are of. Raises ``UserError``.

    Whether any training gave these signals is not known.
    """
    runs: dict[Path, list[LoadedRecord]] = {}
    for loaded in records:
        runs.setdefault(observations_of(loaded), []).append(loaded)
    for path in sorted((root / "cache").glob("*")):
        if path not in runs:
            raise UserError(f"{path}: observations of a run without a record")
        _require(path, runs[path])


def _require(path: Path, run: Sequence[LoadedRecord]) -> None:
    file = RunArrays(path, _REMEDY)
    arrays = {name: file.array("", name) for name in file.names}
    try:
        text = arrays.pop("meta").tobytes()
        if len(text) > MAX_RECORD_BYTES:
            raise ValueError("its facts are too long")
        content = json.loads(text)
        facts = _Facts.model_validate(content)
        del content["digest"]
        digest = key_of({"meta": content, "arrays": digest_of_arrays(arrays)})
        correct = arrays["test_correct"]
        agree = facts.run_key == run[0].record.run_key and all(
            _agree(loaded, facts, correct) for loaded in run_by_run(run)
        )
    except (KeyError, ValueError, RecursionError) as error:
        raise file.error(
            f"not observations as fedbench keeps them ({type(error).__name__})"
        ) from error
    if digest != facts.digest:
        raise file.error("the observations were changed after they were measured")
    if not agree:
        raise file.error("the observations are not those of its records")


def _agree(loaded: LoadedRecord, facts: _Facts, test_correct: np.ndarray) -> bool:
    """Return whether a record agrees with the observations of its training, as far as it goes."""
    record = loaded.record
    if record.outcome == "ok" and not np.array_equal(loaded.test_correct(), test_correct):
        return False
    trained = (record.history, record.facts)
    return record.utility is None or trained == (facts.history, facts.facts)
