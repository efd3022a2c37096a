"""One run as data: all that a worker process needs, and nothing it has to ask for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fedbench.core.contract.attack import View
from fedbench.core.contract.hooks import CONTRACT_VERSION
from fedbench.core.population.audit import Target
from fedbench.core.registry.use import ComponentUse
from fedbench.core.spec.setting import Adversary, Setting
from fedbench.core.spec.suite import Limits
from fedbench.core.store.integrity import key_of
from fedbench.core.store.record import Provenance
from fedbench.core.store.stems import run_stem


@dataclass(frozen=True, kw_only=True)
class Look:
    """What an attack or an analysis wants measured, as it declared when the run was planned: known
    without its code.
    """

    needs: frozenset[str]
    view: View
    colluders: int = 0
    needs_shadow_models: bool = False
    knows_half: bool = False
    also: frozenset[View] = frozenset()

    @classmethod
    def of(cls, made: Any) -> Look:
        """What an attack or an analysis declares."""
        colluders, shadow_models = (
            getattr(made, "colluders", 0),
            bool(getattr(made, "needs_shadow_models", False)),
        )
        return cls(
            needs=frozenset(made.needs),
            view=made.view,
            colluders=colluders,
            needs_shadow_models=shadow_models,
            knows_half=bool(getattr(made, "knows_half", False)),
            also=frozenset(getattr(made, "also", ())),
        )


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One attack on one run. ``stem`` is its name; ``look``: what the attack sees; ``identity``:
    what ``key`` is made of besides the run's identity.
    """

    key: str
    stem: str
    attack: ComponentUse
    look: Look
    identity: dict[str, Any]
    notes: tuple[str, ...] = ()
    """what was odd about the components that it is made with, when it was planned"""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One federated training and the cells still wanted of it.

    ``setting``: as the suite has it, whole. ``adversary``: who attacks from inside, the setting's
    or the default one, where an active attack could take part; ``attacker``: the active attack that
    this run is trained with. ``repeated_holdout``: the share of the hold-out that repeats training
    samples.
    """

    run_key: str = ""
    suite: str
    setting: Setting
    coalition: str
    members: tuple[int, ...]
    coalitions: tuple[tuple[int, ...], ...] = ()
    """the members of each, where several coalitions defend (or are ``observed``) at once"""
    targets: tuple[Target, ...]
    seed: int
    tuning: bool = False
    """whether the seed is one on which strengths are chosen, which no other table of a board counts
    """
    dataset: ComponentUse
    model: ComponentUse
    defense: ComponentUse
    attacker: ComponentUse | None
    adversary: Adversary | None
    observed: tuple[int, ...] = ()
    """without members: clients of a coalition with the mean that the view ``coalition`` shows,
    which the row stands beside
    """
    signals: dict[str, ComponentUse]
    analyses: tuple[ComponentUse, ...]
    looks: dict[str, Look] = field(default_factory=dict)
    """what each analysis wants measured, by its label"""
    digests: dict[str, str]
    repeated_holdout: float = 0.0
    device: str
    results: str
    provenance: Provenance
    limits: Limits
    debug: bool = False
    """whether failures leave whole tracebacks"""
    cells: tuple[Cell, ...] = field(default=())

    @property
    def title(self) -> str:
        """For people: setting, coalition, defense, seed."""
        who = f" vs {self.attacker.label}" if self.attacker else ""
        return f"{self.setting.name}/{self.coalition} {self.defense.label}{who} seed {self.seed}"

    @property
    def stem(self) -> str:
        """The name of the run's files."""
        attacker = self.attacker.label if self.attacker else None
        return run_stem(
            self.setting.name, self.coalition, self.defense.label, attacker, self.seed, self.run_key
        )

    @property
    def log_path(self) -> Path:
        """The file with what plugins print in its processes, and tracebacks."""
        return Path(self.results) / "logs" / f"{self.run_key[:32]}.log"

    @property
    def clients(self) -> int:
        """K."""
        return self.setting.federation.clients

    @property
    def averaged(self) -> tuple[int, ...]:
        """The clients of the mean that the view ``coalition`` shows."""
        return self.members or self.observed

    @property
    def defending(self) -> tuple[tuple[int, ...], ...]:
        """The members of each of several coalitions that defend."""
        return self.coalitions if self.members else ()

    @property
    def audited_rounds(self) -> set[int]:
        """every, 2 every, ..., and always the last round."""
        rounds, every = self.setting.federation.rounds, self.setting.audit.every
        return {*range(every, rounds + 1, every), rounds}

    @property
    def references(self) -> int | None:
        """How many other clients a target is compared with; None: all, since there are no more, the
        setting says so, or the targets are many clients together.
        """
        most = self.setting.audit.references
        if (
            most == "all"
            or self.clients <= most + 1
            or any(target.client is None for target in self.targets)
        ):
            return None
        return most

    @property
    def malicious(self) -> int:
        """How many clients the adversary controls, the last ones; 0 without one."""
        return self.adversary.malicious(self.clients) if self.adversary else 0

    @property
    def expected_malicious(self) -> int:
        """How many malicious clients the server's rule is told to expect."""
        return self.adversary.expected(self.clients) if self.adversary else 0

    @property
    def who(self) -> str:
        """For people: the members, of several coalitions each one's."""
        return " and ".join(str(list(group)) for group in self.coalitions or (self.averaged,))

    def described(self) -> dict[str, Any]:
        """The setting in words a board can print."""
        shown = self.setting.model_dump(
            mode="json", include={"partition", "federation", "audit", "groups", "thresholds"}
        )
        shown = _without(shown, {"federation.recipe", *_as_ever(self)})
        who = self.adversary
        inside = (
            {
                "malicious": self.malicious,
                "knowledge": who.knowledge,
                "mask_set": who.mask_set,
                "start_round": who.start_round,
                "assumed": self.expected_malicious,
            }
            if who
            else None
        )
        several = (
            {"coalitions": {self.coalition: [list(group) for group in self.coalitions]}}
            if self.coalitions
            else {}
        )
        repeated = (
            {"repeated_holdout": round(self.repeated_holdout, 4)} if self.repeated_holdout else {}
        )
        return (
            {
                "dataset": {"name": self.dataset.name, "params": self.dataset.params} | repeated,
                "model": {"name": self.model.name, "params": self.model.params},
                "partition": shown["partition"],
                "federation": shown["federation"],
                "audit": shown["audit"],
                "adversary": self.attacker.label if self.attacker else None,
                "insider": inside,
                "groups": shown["groups"],
                "thresholds": shown["thresholds"],
            }
            | several
            | ({"tuning": True} if self.tuning else {})
        )


# Fields that cannot change what a training answers. Everything else is part of its key: a new field
# counts unless it is named here, and `tests/test_job.py` changes every one of them.
NO_INFLUENCE = frozenset(
    {
        "run_key",
        "cells",  # made from the identity
        "suite",
        "coalition",
        "setting.name",  # names for people; who defends is `members`
        "signals",
        "analyses",
        "looks",  # measured beside the training; they enter the keys of cells
        "results",
        "limits",
        "debug",
        "repeated_holdout",  # computed from the data; their digest is part of the key
        # the uses below are resolved in fields of their own, and labels choose what runs at all
        "setting.dataset",
        "setting.model",
        "setting.adversary",
        "setting.coalitions",
        "setting.defenses",
        "setting.attacks",
        "setting.federation.recipe",  # its values are in the fields
        # of where it ran, only the libraries and the dtype change numbers beyond their last digits
        "provenance.fedbench",
        "provenance.python",
        "provenance.git_commit",
        "provenance.git_dirty",
        "provenance.platform",
        "provenance.cpu",
        "provenance.device",
        "provenance.threads",
        "provenance.deterministic",
    }
)
# Of these a passive run is independent too: the same whatever an adversary might do.
_ADVERSARY = frozenset({"adversary"})
# And where all members defend together, who they are says it all.
_SEVERAL = frozenset({"coalitions"})
# Of a run that is reported: a suite without tuning seeds has the keys it had before there were any.
_TUNING = frozenset({"tuning"})
# Settings that are in no key while they have the value that all runs had before there was a choice.
_LATER = {"memory_format": "contiguous", "backend": "auto"}
# Shadow models are trained alone: neither a defense nor the federation around them can change them.
# The split is in `digests`.
NOT_OF_SHADOW_MODELS = frozenset(
    {
        "members",
        "coalitions",
        "targets",
        "tuning",
        "defense",
        "attacker",
        "adversary",
        "expected_malicious",
        "setting.partition",
        "setting.thresholds",
        "setting.audit.every",
        "setting.audit.nonmembers",
        "setting.audit.members",
        "setting.audit.targets",
        "setting.audit.references",
        "setting.federation.clients",
        "setting.federation.rounds",
        "setting.federation.local_epochs",
        "setting.federation.local_batches",
        "setting.federation.weight_order",
        "setting.federation.participation",
        "setting.federation.max_delay",
        "setting.federation.weights",
        "setting.federation.validation",
        "setting.federation.test",
        "setting.federation.validation_on",
    }
)


def identity(job: Job, without: Iterable[str] = ()) -> dict[str, Any]:
    """Everything that can change what a training answers, as JSON values: the job's fields minus
    ``NO_INFLUENCE`` and ``without`` (dotted paths). What the server assumes reaches its rule even
    without an attack. That a seed is one of tuning changes no answer; its records say so, and what
    a record says is proven by its key.
    """
    everything = {
        f.name: _plain(getattr(job, f.name))
        for f in dataclasses.fields(job)
        if f.name not in NO_INFLUENCE
    }
    everything |= {"contract": CONTRACT_VERSION, "device": job.device.split(":")[0]}
    everything["expected_malicious"] = job.expected_malicious
    if job.adversary:  # a number and a share of the clients that come to the same are the same
        everything["adversary"] |= {"clients": job.malicious, "assumed": job.expected_malicious}
    left_out = {
        *NO_INFLUENCE,
        *without,
        *(() if job.attacker else _ADVERSARY),
        *(() if job.coalitions else _SEVERAL),
    }
    left_out |= set() if job.tuning else _TUNING
    left_out |= {f"setting.{path}" for path in _as_ever(job)}
    return _without(everything, left_out)


def _as_ever(job: Job) -> list[str]:
    """Dotted paths of the setting's later fields that have their old value, or no effect."""
    federation = [
        f"federation.{name}"
        for name, was in _LATER.items()
        if getattr(job.setting.federation, name) == was
    ]
    return federation + ([] if job.references else ["audit.references"])


def key_of_run(job: Job) -> str:
    """Hex sha256 of the identity."""
    return key_of(identity(job))


def cell_identity(
    job: Job, attack: ComponentUse, signals: dict[str, ComponentUse]
) -> dict[str, Any]:
    """What the key of a cell is made of besides its run (``store/integrity.py``, ``keys_of``): its
    attack, the ``signals`` that the attack and the job's analyses read, by name, and these
    analyses.
    """
    return {
        "attack": attack.identity(),
        "signals": {name: use.identity() for name, use in signals.items()},
        "analyses": {use.label: use.identity() for use in job.analyses},
    }


def identity_of_cell(job: Job, cell: Cell) -> dict[str, Any]:
    """Everything that can change a cell's scores, as its record holds it."""
    return {"run": identity(job), **cell.identity}


def _plain(value: Any) -> Any:
    if isinstance(value, ComponentUse):
        return value.identity()
    if isinstance(value, Target):
        return value.code
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def _without(tree: dict[str, Any], paths: set[str], at: str = "") -> dict[str, Any]:
    return {
        name: _without(value, paths, f"{at}{name}.") if isinstance(value, dict) else value
        for name, value in tree.items()
        if f"{at}{name}" not in paths
    }


@cache
def _adapter() -> TypeAdapter[Job]:
    return TypeAdapter(Job)


def job_json(job: Job) -> str:
    """The job as JSON, for another process."""
    # what a suite leaves out is left out: some values are refused where they are given but not
    # needed
    return _adapter().dump_json(job, exclude_unset=True).decode()


def job_of(text: str) -> Job:
    """The job of :func:`job_json`."""
    return _adapter().validate_json(text)
