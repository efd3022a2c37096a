"""A run on a node of a cluster: ``python -m fedbench.core.run.ray_node FOLDER PARENT`` with the
request on standard input.

It leaves ``records/`` and ``logs/`` in the folder. Exit status 0: the run has a record; 3: this
node cannot do the run; 1: it was lost; the reason is on standard error.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedbench.core.contract.errors import UserError
from fedbench.core.process.child import end_with_parent
from fedbench.core.run.executor import Watcher
from fedbench.core.run.job import job_of
from fedbench.core.run.local_executor import LocalProcesses
from fedbench.core.run.provenance import as_here, lacking, require_data
from fedbench.core.run.ray_executor import CANNOT
from fedbench.core.store.results import Results
from fedbench.core.toolkit.download import cache_folder


def main(folder: str, parent: int) -> int:
    """Compute the run and return the exit status."""
    end_with_parent(parent)
    try:
        return _compute(json.load(sys.stdin), Path(folder))
    except UserError as error:
        print("; ".join(error.messages), file=sys.stderr)
    except OSError as error:  # a full disk, no more processes
        print(f"{error.filename or 'the run'}: {error.strerror or error}", file=sys.stderr)
    return CANNOT


def _compute(request: dict[str, Any], folder: Path) -> int:
    if problems := lacking(request["needs"]):
        raise UserError(*problems)
    job = replace(as_here(job_of(request["job"])), results=str(folder))
    require_data(job)
    trainings = cache_folder() / "trainings"  # for attacks that come later
    trainings.mkdir(parents=True, exist_ok=True)
    (folder / "cache").symlink_to(trainings)
    notes = list[str]()
    LocalProcesses(1).execute([job], Watcher(note=notes.append))
    print("; ".join(notes), file=sys.stderr)
    return 0 if Results(folder).path(job.stem).exists() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
