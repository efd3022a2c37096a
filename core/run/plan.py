"""A finished plan: every job of a suite with its cells, and the parts that a command asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from fedbench.core.contract.errors import UserError
from fedbench.core.run.job import Cell, Job
from fedbench.core.spec.resolve import Resolved, ResolvedSetting
from fedbench.core.store.stems import word
from fedbench.core.store.stored_suites import StoredSuite
from fedbench.core.words import did_you_mean


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Every job of a suite with all of its cells, in the order of the file."""

    suite: str
    title: str
    jobs: list[Job]
    published: tuple[dict[str, Any], ...] = ()
    """published numbers that the board prints beside ours"""
    analyses: tuple[dict[str, Any], ...] = ()
    """the suite's analyses, as a board finds and draws them: label, name, params"""
    left_out: tuple[str, ...] = ()
    """settings of the suite that were not planned"""
    notes: tuple[str, ...] = ()
    """oddities of the data or a component, though it can be used"""
    disk: Mapping[str, int] = field(default_factory=dict)
    """about how many bytes each run's results take, by its stem"""
    stored: StoredSuite | None = None
    """the suite that it was made of, as a results folder keeps it"""

    @property
    def cells(self) -> list[str]:
        """Every cell's stem."""
        return [cell.stem for job in self.jobs for cell in job.cells]

    def and_left_out(self, cells: Iterable[str]) -> list[str]:
        """Return the plan's cells and, of ``cells``, those of settings that were left out."""
        names = tuple(f"{word(name)}--" for name in self.left_out)
        return [*self.cells, *(cell for cell in cells if names and cell.startswith(names))]

    def first_seeds(self, n: int) -> set[str]:
        """Return the first ``n`` seeds, as :meth:`only` takes them.

        Raises:
            UserError: for more than there are.
        """
        seeds = seeds_of(self.jobs)
        if n > len(seeds):
            names = ", ".join(map(str, seeds))
            raise UserError(f"--seeds {n}: the suite has {len(seeds)} seeds: {names}")
        return set(map(str, seeds[:n]))

    def only(self, **wanted: set[str]) -> Plan:
        """Return the part with ``setting``, ``coalition``, ``defense``, ``attack`` and ``seed``
        among the wanted ones.
        """
        cut = [replace(job, cells=_asked_cells(job, wanted)) for job in self.jobs]
        jobs = [job for job in cut if job.cells]
        if not jobs:
            text = ",".join(f"{kind}={name}" for kind in wanted for name in sorted(wanted[kind]))
            raise UserError(
                f"--only {text} leaves no cell; `fedbench run SUITE --dry-run` shows what there is"
            )
        return replace(self, jobs=jobs)

    def part(self, i: int, n: int) -> Plan:
        """Return part ``i`` of ``n`` (from 1): every n-th run, with all its cells. The same plan
        gives the same parts, whatever is computed already; the seeds of one row are spread over
        them.
        """

        def place(job: Job) -> tuple[str, str, str, int, str]:
            return job.setting.name, job.defense.label, job.coalition, job.seed, job.run_key

        keys = {job.run_key for job in sorted(self.jobs, key=place)[i - 1 :: n]}
        return replace(self, jobs=[job for job in self.jobs if job.run_key in keys])


def _asked_cells(job: Job, wanted: Mapping[str, set[str]]) -> tuple[Cell, ...]:
    """Return the cells of a job that ``wanted`` (kind -> names) asks for."""
    names = {
        "setting": {job.setting.name},
        "coalition": {job.coalition},
        "seed": {str(job.seed)},
        "defense": {job.defense.label, job.defense.name},
    }
    if not job.averaged:  # an undefended run serves every coalition
        del names["coalition"]
    if any(not names[kind] & wanted[kind] for kind in names.keys() & wanted.keys()):
        return ()
    attacks = wanted.get("attack")
    if attacks is None:
        return job.cells
    cells = job.cells
    return tuple(cell for cell in cells if attacks & {cell.attack.label, cell.attack.name})


def settings_of_parts(resolved: Resolved, only: Mapping[str, set[str]]) -> set[str] | None:
    """Return the settings in which something of ``only`` (kind -> names) runs, so that no data of
    the rest has to be there; None for all.

    An undefended run serves every coalition of its setting, under the name none. Raises
    ``UserError`` for names that the suite does not have.
    """
    kinds = [kind for kind in only if kind != "seed"]
    for kind in kinds:
        good = set[str]().union(*(_names(s, resolved, kind) for s in resolved.settings))
        for name in sorted(only[kind] - good):
            hint = did_you_mean(name, good) or f"; it has {', '.join(sorted(good))}"
            raise UserError(f"--only {kind}={name}: the suite has no such {kind}{hint}")
    settings = {
        setting.spec.name
        for setting in resolved.settings
        if all(_names(setting, resolved, kind) & only[kind] for kind in kinds)
    }
    return None if len(settings) == len(resolved.settings) else settings


def _names(setting: ResolvedSetting, resolved: Resolved, kind: str) -> set[str]:
    """Return every name that something of one kind in a setting may be asked by."""
    if kind == "setting":
        return {setting.spec.name}
    if kind == "coalition":
        return {"none", *(coalition.name for coalition in setting.coalitions)}
    uses = resolved.attacks
    labels = setting.spec.attacks
    if kind == "defense":
        uses = resolved.defenses
        labels = setting.spec.defenses
    running = [use for use in uses if labels is None or use.label in labels]
    return {use.label for use in running} | {use.name for use in running}


def seed_by_seed(jobs: Sequence[Job]) -> list[Job]:
    """Return one seed of every row before the next seed, so that results of every defense appear
    early.
    """
    seeds = seeds_of(jobs)
    return sorted(jobs, key=lambda job: seeds.index(job.seed))


def seeds_of(jobs: Sequence[Job]) -> list[int]:
    """Return the seeds, in their order."""
    return list(dict.fromkeys(job.seed for job in jobs))


@cache
def _adapter() -> TypeAdapter[Plan]:
    return TypeAdapter(Plan)


def plan_json(plan: Plan) -> str:
    """Return the plan as JSON, for another process."""
    return _adapter().dump_json(plan, exclude_unset=True).decode()


def plan_of(text: str) -> Plan:
    """Return the plan of :func:`plan_json`."""
    return _adapter().validate_json(text)
