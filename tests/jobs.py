"""Jobs for tests: a planned one with another setting, and uses of classes that a test defines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedbench.core.experiment.job import Job
from fedbench.core.registry.use import ComponentUse
from fedbench.core.spec.suite import Setting


def use(cls: type, **params: Any) -> ComponentUse:
    """The use of a class at the top of a test module."""
    return ComponentUse(
        name=cls.__name__, label=cls.__name__, params=params, target=f"{cls.__module__}:{cls.__qualname__}",
        distribution="tests 0", digest="0",
    )  # fmt: skip


def with_setting(job: Job, **changes: Any) -> Job:
    """The job in a setting with these changes, which are checked as a suite's are; a mapping changes the fields it names."""
    return replace(job, setting=Setting.model_validate(_merged(job.setting.model_dump(), changes)))


def _merged(old: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    inside = {k: _merged(old[k], v) for k, v in changes.items() if isinstance(v, dict) and isinstance(old.get(k), dict)}
    return {**old, **changes, **inside}
