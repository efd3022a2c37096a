"""Which GPU a run goes to, where a machine has several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from fedbench.core.experiment.job import Job
from fedbench.core.registry.ask import ask


def gpus_for(jobs: Iterable[Job]) -> tuple[str, ...]:
    """The GPUs that runs on ``cuda`` share: all of the first one's model, since on another one they could have other bits. None
    where no job asks for ``cuda``, or for a certain GPU. Looked up in a process apart: CUDA, once started, is lost in forks."""
    return tuple(ask(_alike)) if any(job.device == "cuda" for job in jobs) else ()


def placed(job: Job, running: Iterable[Job], gpus: Sequence[str]) -> Job:
    """The job on the GPU with the fewest runs; as it is where it asks for a certain device."""
    if job.device != "cuda" or not gpus:
        return job
    busy = Counter(other.device for other in running)
    return replace(job, device=min(gpus, key=lambda gpu: busy[gpu]))


def _alike() -> list[str]:
    import torch

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return [f"cuda:{i}" for i, name in enumerate(names) if name == names[0]]
