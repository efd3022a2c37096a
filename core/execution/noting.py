"""Every record that a run writes is read back at once and, where it passes all checks, known to later commands."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from fedbench.core.contract.errors import UserError
from fedbench.core.execution.executor import Watcher
from fedbench.core.experiment.job import Job
from fedbench.core.store.proven import Proven
from fedbench.core.store.reading import read_record
from fedbench.core.store.recount import not_recounted
from fedbench.core.store.results import Results


def note(path: Path, proven: Proven) -> None:
    """Check the record at ``path`` as every reader does, and keep that it passed."""
    with contextlib.suppress(UserError):  # gone or damaged already: whoever reads it next says so
        not_recounted(read_record(path, proven=proven), proven)
    proven.append()


def noting(watcher: Watcher, root: Path) -> Watcher:
    """The same watcher, with a look at every cell's record in the results folder ``root`` before the cell is shown."""
    proven, store = Proven(root), Results(root)

    def cell(job: Job, key: str, outcome: str, reason: str, by_adversary: bool, auc: float | None) -> None:
        for path in (store.path(cell.stem) for cell in job.cells if cell.key == key):
            note(path, proven)
        watcher.cell(job, key, outcome, reason, by_adversary, auc)

    return replace(watcher, cell=cell)
