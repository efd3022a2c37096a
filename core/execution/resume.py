"""Which cells still have to be computed."""

from __future__ import annotations

from dataclasses import replace

from fedbench.core.experiment.job import Cell, Job
from fedbench.core.store.reading import read_all
from fedbench.core.store.results import Results

_GOOD = ("ok", "skipped")


def has_record(store: Results, cell: Cell) -> bool:
    """Whether the cell has a record (one that cannot be used raises ``UserError``: it is never silently replaced)."""
    return store.read(cell.stem) is not None


def pending(jobs: list[Job], store: Results, rerun: str) -> list[Job]:
    """The jobs cut down to the cells that ``rerun`` asks for: missing, failed (and missing), always or never.

    Raises ``UserError`` with every record that cannot be used, before anything is computed.
    """
    found = read_all(p for job in jobs for c in job.cells if (p := store.path(c.stem)).exists())
    outcomes = {loaded.path.stem: loaded.record.outcome for loaded in found}
    cut = (replace(job, cells=tuple(c for c in job.cells if _wanted(outcomes.get(c.stem), rerun))) for job in jobs)
    return [job for job in cut if job.cells]


def _wanted(outcome: str | None, rerun: str) -> bool:
    if rerun == "never":
        return False
    return rerun == "always" or outcome is None or (rerun == "failed" and outcome not in _GOOD)
