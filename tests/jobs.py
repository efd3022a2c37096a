"""Uses of test classes, changed jobs, and verdicts in this process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedbench.core.contract.attack import Attack
from fedbench.core.registry.use import ComponentUse
from fedbench.core.run.job import Cell, Job
from fedbench.core.run.scene import Scene
from fedbench.core.run.scoring import ask
from fedbench.core.run.shadow_models import ShadowLogits
from fedbench.core.run.train import Run, Trained
from fedbench.core.run.verdict import Verdict, verdict
from fedbench.core.spec.setting import Setting


def use(cls: type, **params: Any) -> ComponentUse:
    """The use of a class at the top of a test module."""
    name, target = cls.__name__, f"{cls.__module__}:{cls.__qualname__}"
    return ComponentUse(
        name=name, label=name, params=params, target=target, distribution="tests 0", digest="0"
    )


def judge(
    job: Job,
    cell: Cell,
    attack: Attack,
    scene: Scene,
    trained: Trained,
    shadows: ShadowLogits | None = None,
) -> Verdict:
    """The verdict of an attack that is asked in this process."""
    run = Run(job=job, scene=scene, trained=trained, shadows=shadows)
    return verdict(run, cell, ask(run, attack))


def with_setting(job: Job, **changes: Any) -> Job:
    """The job in a setting with these changes, validated; a mapping changes the fields it names."""
    return replace(job, setting=Setting.model_validate(_merged(job.setting.model_dump(), changes)))


def _merged(old: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    inside = {
        k: _merged(old[k], v)
        for k, v in changes.items()
        if isinstance(v, dict) and isinstance(old.get(k), dict)
    }
    return {**old, **changes, **inside}
