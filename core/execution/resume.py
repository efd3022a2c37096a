"""Which cells still have to be computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedbench.core.experiment.job import Job
from fedbench.core.store.brief import Brief, read_brief
from fedbench.core.store.proven import Proven
from fedbench.core.store.reading import read_each
from fedbench.core.store.results import Results
from fedbench.core.store.shared import Shared


def recorded(jobs: Sequence[Job], store: Results) -> list[Brief]:
    """How those cells of the jobs ended that have a record. Raises ``UserError`` with every one that cannot be used: it is never
    silently replaced."""
    proven, shared = Proven(store.root), Shared()
    paths = (p for job in jobs for c in job.cells if (p := store.path(c.stem)).exists())
    found = read_each(paths, lambda path: read_brief(path, proven, shared))
    proven.save()
    return found


def other_cpus(jobs: Sequence[Job], found: Sequence[Brief]) -> list[str]:
    """The types of CPU, other than the one at hand, that made some of the records on a CPU: their last digits may differ."""
    here = {job.provenance.cpu_type for job in jobs} | {job.provenance.cpu for job in jobs}  # before schema 3 the model alone
    made = {brief.cpu for brief in found if brief.cpu is not None}
    return sorted(made - here)


def pending(jobs: list[Job], found: Sequence[Brief], rerun: str) -> list[Job]:
    """The jobs cut down to the cells that ``rerun`` asks for: missing (of those ``found``), failed (and missing), always or
    never."""
    good = {brief.path.stem: brief.is_result for brief in found}
    cut = (replace(job, cells=tuple(c for c in job.cells if _wanted(good.get(c.stem), rerun))) for job in jobs)
    return [job for job in cut if job.cells]


def _wanted(good: bool | None, rerun: str) -> bool:
    """``good``: None of a cell without a record."""
    if rerun == "never":
        return False
    return rerun == "always" or good is None or (rerun == "failed" and not good)
