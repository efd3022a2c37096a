"""Which cells still have to be computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedbench.core.contract.errors import UserError
from fedbench.core.experiment.job import Job
from fedbench.core.store.reading import LoadedRecord
from fedbench.core.store.record import overall_auc
from fedbench.core.store.results import Results


@dataclass(frozen=True, slots=True, kw_only=True)
class CellState:
    """How the cell of this name ended. ``cpu``: the type of CPU that made it, None for a GPU; ``auc``: over all targets."""

    stem: str
    outcome: str
    reason: str
    by_adversary: bool
    complaints: tuple[str, ...]
    cpu: str | None
    auc: float | None

    @classmethod
    def of(cls, loaded: LoadedRecord) -> CellState:
        """The state of a cell with a record."""
        r = loaded.record
        return cls(
            stem=loaded.stem, outcome=r.outcome, reason=r.reason, by_adversary=r.by_adversary,
            complaints=tuple(r.complaints), cpu=r.provenance.cpu_type if r.provenance.device == "cpu" else None,
            auc=overall_auc(r.pooled),
        )  # fmt: skip

    @property
    def is_result(self) -> bool:
        """Whether the cell needs no second try: it has scores, was skipped, or diverged because of an adversary."""
        return self.outcome in ("ok", "skipped") or self.by_adversary


def recorded(jobs: Sequence[Job], store: Results) -> list[CellState]:
    """The states of those cells of the jobs that have a record. Raises ``UserError`` with every record that cannot be used: it is
    never silently replaced."""
    wanted = {cell.key for job in jobs for cell in job.cells}
    found, problems = list[CellState](), list[str]()
    for stem in dict.fromkeys(job.stem for job in jobs):
        try:
            found += [CellState.of(r) for r in store.cells(stem) if r.record.key in wanted]
        except UserError as error:
            problems += error.messages
    if problems:
        raise UserError(*problems)
    return found


def other_cpus(jobs: Sequence[Job], found: Sequence[CellState]) -> list[str]:
    """The types of CPU, other than that of this machine, that made some of the records: their last digits may differ."""
    return sorted({state.cpu for state in found if state.cpu is not None} - {job.provenance.cpu_type for job in jobs})


def pending(jobs: list[Job], found: Sequence[CellState], rerun: str) -> list[Job]:
    """The jobs cut down to the cells that ``rerun`` asks for: missing (of those ``found``), failed (and missing), always or
    never."""
    good = {state.stem: state.is_result for state in found}
    cut = (replace(job, cells=tuple(c for c in job.cells if _wanted(good.get(c.stem), rerun))) for job in jobs)
    return [job for job in cut if job.cells]


def _wanted(good: bool | None, rerun: str) -> bool:
    """``good``: None of a cell without a record."""
    if rerun == "never":
        return False
    return rerun == "always" or good is None or (rerun == "failed" and not good)
