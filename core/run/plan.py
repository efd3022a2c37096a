"""A finished plan: every job of a suite with its cells, and the part of it that a command line asks
for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from fedbench.core.contract.errors import UserError
from fedbench.core.run.job import Job
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
    """what is odd about the data or a component, though it can be used"""
    asked: StoredSuite | None = None
    """the suite that it was made of, as a results folder keeps it"""

    @property
    def cells(self) -> list[str]:
        """Every cell's stem."""
        return [cell.stem for job in self.jobs for cell in job.cells]

    def and_left_out(self, cells: Iterable[str]) -> list[str]:
        """The plan's cells and, of ``cells``, those of settings that were not planned now."""
        names = tuple(f"{word(name)}--" for name in self.left_out)
        return [*self.cells, *(c for c in cells if names and c.startswith(names))]

    def only(self, **wanted: set[str]) -> Plan:
        """The part with ``setting``, ``coalition``, ``defense``, ``attack`` and ``seed`` among the
        wanted ones.
        """
        jobs = []
        for job in self.jobs:
            mine = {
                "setting": {job.setting.name},
                "coalition": {job.coalition},
                "seed": {str(job.seed)},
                "defense": {job.defense.label, job.defense.name},
            }
            if not job.averaged:  # an undefended run serves every coalition
                mine["coalition"] |= wanted.get("coalition", set())
            if any(not mine[k] & v for k, v in wanted.items() if k in mine):
                continue
            attacks = wanted.get("attack")
            cells = tuple(
                c for c in job.cells if not attacks or attacks & {c.attack.label, c.attack.name}
            )
            if cells:
                jobs.append(replace(job, cells=cells))
        if not jobs:
            raise UserError(
                f"--only {_only_text(wanted)} leaves no cell; `fedbench run SUITE --dry-run` shows "
                "what there is"
            )
        return replace(self, jobs=jobs)

    def part(self, i: int, n: int) -> Plan:
        """Part ``i`` of ``n`` (from 1): every n-th run, with all its cells. The same plan gives the
        same parts, whatever is computed already; the seeds of one row are spread over them.
        """

        def place(job: Job) -> tuple[str, str, str, int, str]:
            return job.setting.name, job.defense.label, job.coalition, job.seed, job.run_key

        mine = {job.run_key for job in sorted(self.jobs, key=place)[i - 1 :: n]}
        return replace(self, jobs=[job for job in self.jobs if job.run_key in mine])


def settings_asked(resolved: Resolved, only: Mapping[str, set[str]]) -> set[str] | None:
    """The settings in which something of ``only`` (kind -> names) runs, so that no data of the
    others has to be there; None: all.

    An undefended run serves every coalition of its setting, under the name none. Raises
    ``UserError`` for names that the suite does not have.
    """
    for kind in only.keys() - {"seed"}:
        known = set[str]().union(*(_runs(s, resolved, kind) for s in resolved.settings))
        for name in sorted(only[kind] - known):
            right = did_you_mean(name, known) or f"; it has {', '.join(sorted(known))}"
            raise UserError(f"--only {kind}={name}: the suite has no such {kind}{right}")
    asked = {
        s.spec.name
        for s in resolved.settings
        if all(_runs(s, resolved, kind) & names for kind, names in only.items() if kind != "seed")
    }
    return None if len(asked) == len(resolved.settings) else asked


def _runs(setting: ResolvedSetting, resolved: Resolved, kind: str) -> set[str]:
    """What of one kind a setting has, by every name that it may be asked by."""
    if kind == "setting":
        return {setting.spec.name}
    if kind == "coalition":
        return {"none", *(c.name for c in setting.coalitions)}
    uses, named = (
        (resolved.defenses, setting.spec.defenses)
        if kind == "defense"
        else (resolved.attacks, setting.spec.attacks)
    )
    return {
        name
        for use in uses
        if named is None or use.label in named
        for name in (use.label, use.name)
    }


def _only_text(wanted: dict[str, set[str]]) -> str:
    return ",".join(f"{k}={v}" for k, vs in wanted.items() for v in sorted(vs))


def seed_by_seed(jobs: Sequence[Job]) -> list[Job]:
    """One seed of every row before the next seed, so that results of every defense appear early."""
    seeds = {seed: i for i, seed in enumerate(dict.fromkeys(job.seed for job in jobs))}
    return sorted(jobs, key=lambda job: seeds[job.seed])


@cache
def _adapter() -> TypeAdapter[Plan]:
    return TypeAdapter(Plan)


def plan_json(plan: Plan) -> str:
    """The plan as JSON, for another process."""
    return _adapter().dump_json(plan, exclude_unset=True).decode()


def plan_of(text: str) -> Plan:
    """The plan of :func:`plan_json`."""
    return _adapter().validate_json(text)
