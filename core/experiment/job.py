"""One run as data: all that a worker process needs, and nothing it has to ask for."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
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
    then: tuple[Use, ...] = ()
    """defenses applied after this one"""

    def identity(self) -> dict[str, Any]:
        """What can change the answer: not the label."""
        own = {"name": self.name, "params": self.params, "distribution": self.distribution, "digest": self.digest}
        return own | ({"then": [part.identity() for part in self.then]} if self.then else {})

    def make(self) -> Any:
        """The component itself; with what follows it, one that applies all in order."""
        module, _, name = self.target.partition(":")
        made = getattr(import_module(module), name)(**self.params)
        if not self.then:
            return made
        from fedbench.core.federation.compose import Composite

        return Composite([made, *(part.make() for part in self.then)])

    def recorded(self) -> ComponentUse:
        """As it stands in a record; a composition under the names of all, each with its own parameters."""
        if not self.then:
            return ComponentUse(
                name=self.name, label=self.label, params=self.params, distribution=self.distribution, digest=self.digest
            )
        parts = [replace(self, then=()), *self.then]
        packages = dict.fromkeys(part.distribution for part in parts)
        return ComponentUse(
            name="+".join(part.name for part in parts), label=self.label, params={p.name: p.params for p in parts},
            distribution=", ".join(packages), digest=key_of([part.identity() for part in parts]),
        )  # fmt: skip


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
    insider: dict[str, Any] | None
    """the setting's adversary: malicious, knowledge, mask_set, start_round, assumed"""
    signals: dict[str, Use]
    partition: dict[str, Any]
    federation: dict[str, Any]
    audit: dict[str, Any]
    groups: list[dict[str, Any]] | None
    thresholds: list[float] | None
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
            "insider": self.insider,
            "groups": self.groups,
            "thresholds": self.thresholds,
        }


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spare spaces; refuses NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def key_of(value: Any) -> str:
    """Hex sha256 of the canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()
