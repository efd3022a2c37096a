"""A finished plan: every job of a suite with its cells, and the part of it that a command line asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from fedbench.core.contract.errors import UserError
from fedbench.core.run.job import Job
from fedbench.core.spec.resolve import Resolved, ResolvedSetting
from fedbench.core.store.plans import Asked
from fedbench.core.store.stems import word


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
    asked: Asked | None = None
    """the suite that it was made of, as a results folder keeps it"""
    work: dict[str, Work] = field(default_factory=dict)
    """what a sample costs in each setting"""

    @property
    def cells(self) -> list[str]:
        """Every cell's stem."""
        return [cell.stem for job in self.jobs for cell in job.cells]

    def and_left_out(self, cells: Iterable[str]) -> list[str]:
        """The plan's cells and, of ``cells``, those of settings that were not planned now."""
        names = tuple(f"{word(name)}--" for name in self.left_out)
        return [*self.cells, *(c for c in cells if names and c.startswith(names))]

    def only(self, **wanted: set[str]) -> Plan:
        """The part whose ``setting``, ``coalition``, ``defense``, ``attack`` and ``seed`` are among the wanted ones."""
        jobs = []
        for job in self.jobs:
            mine = {
                "setting": {job.setting.name}, "coalition": {job.coalition}, "seed": {str(job.seed)},
                "defense": {job.defense.label, job.defense.name},
            }  # fmt: skip
            if not job.averaged:  # an undefended run serves every coalition
                mine["coalition"] |= wanted.get("coalition", set())
            if any(not mine[k] & v for k, v in wanted.items() if k in mine):
                continue
            attacks = wanted.get("attack")
            cells = tuple(c for c in job.cells if not attacks or attacks & {c.attack.label, c.attack.name})
            if cells:
                jobs.append(replace(job, cells=cells))
        if not jobs:
            raise UserError(f"--only {_only_text(wanted)} leaves no cell; `fedbench run SUITE --dry-run` shows what there is")
        return replace(self, jobs=jobs)

    def part(self, i: int, n: int) -> Plan:
        """Part ``i`` of ``n`` (from 1), of like cost as the others; every run is in one of them, with all its cells. The same
        plan gives the same parts, whatever is computed already."""
        return replace(self, jobs=shares(self.jobs, self.work, n)[i - 1])

    def share_of(self, whole: Plan) -> float:
        """How much of the expected cost of ``whole`` this part has."""
        mine, all_of_it = (sum(expected_cost(j, self.work[j.setting.name]) for j in plan.jobs) for plan in (self, whole))
        return mine / all_of_it


def settings_asked(resolved: Resolved, only: Mapping[str, set[str]]) -> set[str] | None:
    """The settings in which something of ``only`` (kind -> names) runs, so that no data of the others has to be there; None: all.

    An undefended run serves every coalition of its setting, under the name none.
    """
    asked = {s.spec.name for s in resolved.settings if all(_runs(s, resolved, kind) & names for kind, names in only.items()
                                                           if kind != "seed")}  # fmt: skip
    return None if len(asked) == len(resolved.settings) else asked


def _runs(setting: ResolvedSetting, resolved: Resolved, kind: str) -> set[str]:
    """What of one kind a setting has, by every name that it may be asked by."""
    if kind == "setting":
        return {setting.spec.name}
    if kind == "coalition":
        return {"none", *(c.name for c in setting.coalitions)}
    uses, named = (resolved.defenses, setting.spec.defenses) if kind == "defense" else (resolved.attacks, setting.spec.attacks)
    return {name for use in uses if named is None or use.label in named for name in (use.label, use.name)}


def _only_text(wanted: dict[str, set[str]]) -> str:
    return ",".join(f"{k}={v}" for k, vs in wanted.items() for v in sorted(vs))


# -- What a run costs, told from its suite alone, and plans cut into parts of like cost --


_BACKWARD = 2  # a backward pass costs about two forward passes
_SAMPLE = 2e5  # what a sample costs beside its arithmetic, in floating-point operations: kernels of small models are short
_RUN = 5e9  # what a run costs before its first sample: processes, data, records


@dataclass(frozen=True)
class Work:
    """What a setting's samples cost: ``samples`` to train on, ``flops`` of one forward pass of one sample."""

    samples: int
    flops: float


def expected_cost(job: Job, work: Work) -> float:
    """Of training, audit and shadow models, in floating-point operations; only ratios mean anything. What a defense adds is not
    known before it runs."""
    setting, federation = job.setting, job.setting.federation
    forward = work.flops + _SAMPLE
    a_client = work.samples / federation.clients
    if federation.local_batches is not None:
        a_client = min(a_client, federation.local_batches * federation.batch_size)
    present = federation.rounds * federation.participation * federation.clients
    trained = present * federation.local_epochs * a_client * (1 + _BACKWARD)
    candidates = len(job.targets) * setting.audit.nonmembers + work.samples
    audited = len(job.audited_rounds) * min(candidates, 2 * work.samples) * (1 + _BACKWARD)
    shadow = setting.audit.shadow
    if shadow is not None and any(cell.look.needs_shadow_models for cell in job.cells):
        trained += shadow.models * shadow.epochs * shadow.samples / 2 * (1 + _BACKWARD)
    return _RUN + forward * (trained + audited)


def shares(jobs: Sequence[Job], work: Mapping[str, Work], n: int) -> list[list[Job]]:
    """The jobs in ``n`` parts of like cost, each in the order of the plan: the most expensive first, each to the part that has
    least. Equal ones go by name, so that the seeds of one row, and what its defense costs, are spread over the parts."""
    cost = {job.run_key: expected_cost(job, work[job.setting.name]) for job in jobs}

    def place(job: Job) -> tuple[float, str, str, str, int, str]:
        return -cost[job.run_key], job.setting.name, job.defense.label, job.coalition, job.seed, job.run_key

    filled, part_of = [0.0] * n, dict[str, int]()
    for job in sorted(jobs, key=place):
        part_of[job.run_key] = i = min(range(n), key=lambda part: (filled[part], part))
        filled[i] += cost[job.run_key]
    return [[job for job in jobs if part_of[job.run_key] == i] for i in range(n)]


# -- In which order the runs of a plan are computed; it changes no result --


def seed_by_seed(jobs: Sequence[Job]) -> list[Job]:
    """One seed of every row before the next seed: so that soon something is known of every defense, what it does and costs."""
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
