"""In which order the runs of a plan are computed; it changes no result."""

from __future__ import annotations

from collections.abc import Sequence

from fedbench.core.experiment.job import Job


def seed_by_seed(jobs: Sequence[Job]) -> list[Job]:
    """One seed of every row before the next seed: so that soon something is known of every defense, what it does and costs."""
    seeds = {seed: i for i, seed in enumerate(dict.fromkeys(job.seed for job in jobs))}
    return sorted(jobs, key=lambda job: seeds[job.seed])
