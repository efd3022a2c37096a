"""Jobs without a suite: uses of classes, a planned job with another setting, and a cell judged at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic import PrivateAttr

from fedbench.core.contract.attack import Attack
from fedbench.core.experiment.job import Cell, Job
from fedbench.core.experiment.judge import ask
from fedbench.core.experiment.scene import Scene
from fedbench.core.experiment.shadow_models import ShadowLogits
from fedbench.core.experiment.train import Trained
from fedbench.core.experiment.verdict import Verdict, verdict
from fedbench.core.registry.use import ComponentUse
from fedbench.core.spec.suite import Setting


class GivenUse(ComponentUse):
    """A use of a class that is at hand, wherever it was defined."""

    _cls: type = PrivateAttr()

    def load(self) -> Any:
        """That class."""
        return self._cls


def given_use(cls: type, params: dict[str, Any], name: str = "", distribution: str = "tests 0") -> ComponentUse:
    """The use of a class, under a name."""
    made = GivenUse(
        name=name or cls.__name__, label=name or cls.__name__, params=params, target=f"{cls.__module__}:{cls.__qualname__}",
        distribution=distribution, digest="0",
    )  # fmt: skip
    made._cls = cls
    return made


def use(cls: type, **params: Any) -> ComponentUse:
    """The use of a class at the top of a test module."""
    return ComponentUse(
        name=cls.__name__, label=cls.__name__, params=params, target=f"{cls.__module__}:{cls.__qualname__}",
        distribution="tests 0", digest="0",
    )  # fmt: skip


def judge(job: Job, cell: Cell, attack: Attack, scene: Scene, trained: Trained, shadows: ShadowLogits | None = None) -> Verdict:
    """Asked and judged in this process: a run does the first in a process of its own."""
    return verdict(job, cell, scene, trained, ask(job, attack, scene, trained, shadows))


def with_setting(job: Job, **changes: Any) -> Job:
    """The job in a setting with these changes, which are checked as a suite's are; a mapping changes the fields it names."""
    return replace(job, setting=Setting.model_validate(_merged(job.setting.model_dump(), changes)))


def _merged(old: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    inside = {k: _merged(old[k], v) for k, v in changes.items() if isinstance(v, dict) and isinstance(old.get(k), dict)}
    return {**old, **changes, **inside}
