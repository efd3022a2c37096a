"""Which cells still have to be computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedbench.core.experiment.job import Cell, Job
from fedbench.core.store.reading import LoadedRecord, read_all
from fedbench.core.store.record import Record
from fedbench.core.store.results import Results

_GOOD = ("ok", "skipped")


def has_record(store: Results, cell: Cell) -> bool:
    """Whether the cell has a record (one that cannot be used raises ``UserError``: it is never silently replaced)."""
    return store.read(cell.stem) is not None


def recorded(jobs: Sequence[Job], store: Results) -> list[LoadedRecord]:
    """The records that the jobs' cells have. Raises ``UserError`` with every one that cannot be used."""
    return read_all(p for job in jobs for c in job.cells if (p := store.path(c.stem)).exists())


def other_cpus(jobs: Sequence[Job], found: Sequence[LoadedRecord]) -> list[str]:
    """The types of CPU, other than the one at hand, that made some of the records on a CPU: their last digits may differ."""
    here = {job.provenance.cpu_type for job in jobs} | {job.provenance.cpu for job in jobs}  # before schema 3 the model alone
    made = {r.record.provenance.cpu_type for r in found if r.record.provenance.device == "cpu"}
    return sorted(made - here)


def pending(jobs: list[Job], found: Sequence[LoadedRecord], rerun: str) -> list[Job]:
    """The jobs cut down to the cells that ``rerun`` asks for: missing (of those ``found``), failed (and missing), always or
    never."""
    good = {loaded.path.stem: is_result(loaded.record) for loaded in found}
    cut = (replace(job, cells=tuple(c for c in job.cells if _wanted(good.get(c.stem), rerun))) for job in jobs)
    return [job for job in cut if job.cells]


def is_result(record: Record) -> bool:
    """Whether a cell came out: with scores, skipped for a reason, or diverged as an adversary wanted."""
    return record.outcome in _GOOD or record.by_adversary


def _wanted(good: bool | None, rerun: str) -> bool:
    """``good``: None of a cell without a record."""
    if rerun == "never":
        return False
    return rerun == "always" or good is None or (rerun == "failed" and not good)
