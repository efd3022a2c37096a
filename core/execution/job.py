"""One run as data: all that a worker process needs, and nothing it has to ask for."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from fedbench.core.store.record import ComponentUse


@dataclass(frozen=True)
class Use:
    """A component with its resolved parameters; ``target`` is ``"package.module:Class"``."""

    name: str
    label: str
    params: dict[str, Any]
    target: str
    distribution: str
    digest: str

    def identity(self) -> dict[str, Any]:
        """What can change the answer: not the label."""
        return {"name": self.name, "params": self.params, "distribution": self.distribution, "digest": self.digest}

    def make(self) -> Any:
        """The component itself."""
        module, _, name = self.target.partition(":")
        return getattr(import_module(module), name)(**self.params)

    def recorded(self) -> ComponentUse:
        """As it stands in a record."""
        return ComponentUse(
            name=self.name, label=self.label, params=self.params, distribution=self.distribution, digest=self.digest
        )


@dataclass(frozen=True)
class Cell:
    """One attack on one run. ``stem`` names its files; ``view`` is what the attack sees."""

    key: str
    stem: str
    attack: Use
    view: str


@dataclass(frozen=True)
class Job:
    """One federated training and the cells still wanted of it."""

    run_key: str
    suite: str
    setting: str
    coalition: str
    members: tuple[int, ...]
    targets: tuple[int, ...]
    seed: int
    dataset: Use
    model: Use
    defense: Use
    adversary: Use | None
    signals: dict[str, Use]
    partition: dict[str, Any]
    federation: dict[str, Any]
    audit: dict[str, Any]
    digests: dict[str, str]
    device: str
    results: str
    provenance: dict[str, Any]
    run_seconds: float
    memory_gb: float | None
    cells: tuple[Cell, ...] = field(default=())

    @property
    def title(self) -> str:
        """For people: setting, coalition, defense, seed."""
        who = f" vs {self.adversary.label}" if self.adversary else ""
        return f"{self.setting}/{self.coalition} {self.defense.label}{who} seed {self.seed}"

    def facts(self) -> dict[str, Any]:
        """The setting in words a board can print."""
        return {
            "dataset": {"name": self.dataset.name, "params": self.dataset.params},
            "model": {"name": self.model.name, "params": self.model.params},
            "partition": self.partition,
            "federation": self.federation,
            "audit": self.audit,
            "adversary": self.adversary.label if self.adversary else None,
        }


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spare spaces; refuses NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def key_of(value: Any) -> str:
    """Hex sha256 of the canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()
