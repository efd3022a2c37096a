"""What a run is made of: each component is built once, where the run begins."""

from __future__ import annotations

from dataclasses import dataclass

from fedbench.core.contract.dataset import Dataset
from fedbench.core.contract.defense import Defense
from fedbench.core.contract.model import Model
from fedbench.core.experiment.job import Job
from fedbench.core.federation.coalitions import allied
from fedbench.core.federation.compose import composed
from fedbench.core.registry.use import ComponentUse


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A run's components. ``defense`` keeps what it learns on itself, so a training that starts anew takes a fresh one."""

    dataset: Dataset
    model: Model
    defense: Defense


def build(job: Job) -> Parts:
    """Every component that decides a training; attacks and analyses have processes of their own, signals come later."""
    return Parts(dataset=job.dataset.make()[0], model=job.model.make()[0], defense=defense_of(job.defense, job.defending))


def defense_of(use: ComponentUse, coalitions: tuple[tuple[int, ...], ...] = ()) -> Defense:
    """A fresh defense; with what follows it, one that applies all in order; of several ``coalitions``, an instance each."""
    return allied(coalitions, lambda: composed(use.make()))
