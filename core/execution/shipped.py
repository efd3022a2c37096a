"""Finished cells on their way from the machine that computed them to the one that keeps the results."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from fedbench.core.contract.errors import UserError
from fedbench.core.experiment.job import Job
from fedbench.core.experiment.process import log_path
from fedbench.core.store.reading import read_record
from fedbench.core.store.record import Record
from fedbench.core.store.results import Results


@dataclass(frozen=True)
class Shipped:
    """The files of the cell of this ``key``, byte by byte; ``scores`` None where it has none."""

    key: str
    record: bytes
    scores: bytes | None


def packed(job: Job, key: str) -> Shipped:
    """A cell's files, which are deleted where they lie."""
    path = Results(Path(job.results)).path(_stem(job, key))
    scores = path.with_suffix(".npz")
    found = Shipped(key, path.read_bytes(), scores.read_bytes() if scores.exists() else None)
    for one in (path, scores):
        one.unlink(missing_ok=True)
    return found


def unpack(job: Job, came: Shipped) -> Record:
    """Check a cell's files as every reader of records does, and that they are the job's; then keep them as they are.

    Raises ``UserError`` for files that are not this cell's record, and ``OSError`` when they cannot be written.
    """
    stem = _stem(job, came.key)
    with tempfile.TemporaryDirectory(prefix="fedbench-") as aside:
        path = Path(aside) / f"{stem}.json"
        path.write_bytes(came.record)
        if came.scores is not None:
            path.with_suffix(".npz").write_bytes(came.scores)
        record = read_record(path).record
    says = (record.key, record.run_key, record.suite, record.setting, record.coalition)
    if says != (came.key, job.run_key, job.suite, job.setting.name, job.coalition):
        raise UserError(f"{stem}: what came is the record of another cell")
    Results(Path(job.results)).put(stem, job.suite, came.record, came.scores)
    return record


def packed_log(job: Job) -> bytes:
    """What the run's workers printed, if they did."""
    path = log_path(job)
    return path.read_bytes() if path.exists() else b""


def unpack_log(job: Job, text: bytes) -> None:
    """Keep it at the end of the run's log. Raises ``OSError``."""
    path = log_path(job)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as log:
        log.write(text)


def _stem(job: Job, key: str) -> str:
    found = next((cell.stem for cell in job.cells if cell.key == key), None)
    if found is None:
        raise UserError(f"the run {job.title} has no cell {key[:12]}")
    return found
