"""Finished runs on their way from the machine that computed them to the one that keeps the results."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from fedbench.core.contract.errors import UserError
from fedbench.core.experiment.job import Job
from fedbench.core.experiment.process import log_path
from fedbench.core.store.reading import read_run
from fedbench.core.store.record import Record
from fedbench.core.store.results import Results
from fedbench.core.store.run_file import CellResult


@dataclass(frozen=True)
class Shipped:
    """The files of a run by their names, byte by byte."""

    files: dict[str, bytes]


def packed(job: Job) -> Shipped:
    """The files of the job's run; none where it has no record."""
    return Shipped({path.name: path.read_bytes() for path in sorted(Results(Path(job.results)).records.glob(f"{job.stem}*"))})


def unpack(job: Job, came: Shipped) -> list[Record]:
    """Check the files of a run as every reader of records does, and that they are the job's; then add its cells to the results.

    Raises ``UserError`` for files that are not this run's, and ``OSError`` when they cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="fedbench-") as aside:
        for name, content in came.files.items():
            if Path(name).name != name or not name.startswith(job.stem):
                raise UserError(f"{job.stem}: what came is the file of another run")
            (Path(aside) / name).write_bytes(content)
        loaded = read_run(Path(aside) / f"{job.stem}.json")
        cells = [CellResult(r.record, r.all_arrays()) for r in loaded]
    wanted = {cell.key for cell in job.cells}
    says = {(r.record.run_key, r.record.suite, r.record.setting, r.record.coalition) for r in loaded}
    if says != {(job.run_key, job.suite, job.setting.name, job.coalition)} or {r.record.key for r in loaded} != wanted:
        raise UserError(f"{job.stem}: what came is the record of another run")
    Results(Path(job.results)).write(job.stem, cells)
    return [cell.record for cell in cells]


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
