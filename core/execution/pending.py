"""Which cells still have to be computed."""

from __future__ import annotations

from dataclasses import replace

from fedbench.core.execution.job import Cell, Job
from fedbench.core.store.results import Results

_GOOD = ("ok", "skipped")


def has_record(store: Results, cell: Cell) -> bool:
    """Whether the cell has a record (an unreadable one raises ``UserError``: it is never silently replaced)."""
    return store.read(cell.stem) is not None


def pending(jobs: list[Job], store: Results, rerun: str) -> list[Job]:
    """The jobs cut down to the cells that ``rerun`` asks for: missing, failed (and missing), always or never."""
    out = []
    for job in jobs:
        cells = tuple(c for c in job.cells if _wanted(c, store, rerun))
        if cells:
            out.append(replace(job, cells=cells))
    return out


def _wanted(cell: Cell, store: Results, rerun: str) -> bool:
    record = store.read(cell.stem)
    if rerun == "never":
        return False
    return rerun == "always" or record is None or (rerun == "failed" and record.outcome not in _GOOD)
