"""What a run costs, told from its suite alone, and plans cut into parts of like cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedbench.core.experiment.job import Job

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
