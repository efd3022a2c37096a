"""A run as data: all that a worker process needs, and the keys of the run and of its cells."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fedbench.core.contract.attack import View
from fedbench.core.contract.hooks import CONTRACT_VERSION
from fedbench.core.population.audit import Target
from fedbench.core.registry.use import ComponentUse
from fedbench.core.spec.setting import Adversary, Setting
from fedbench.core.spec.suite import Limits
from fedbench.core.store.integrity import described_of, key_of
from fedbench.core.store.record import Provenance
from fedbench.core.store.stems import stem


@dataclass(frozen=True, kw_only=True)
class SignalRequest:
    """Signals that an attack or an analysis wants measured, as it declared them."""

    needs: frozenset[str]
    """names of the signals"""
    view: View
    """the view through which they are seen"""
    colluders: int = 0
    """clients that share what they see"""
    needs_shadow_models: bool = False
    """whether it asks for shadow models, too"""
    knows_half: bool = False
    """whether it is taught the membership of half of the candidates"""
    against: frozenset[str] = frozenset()
    """names of the defenses that it knows"""
    also: frozenset[View] = frozenset()
    """further views of an analysis"""

    @classmethod
    def of(cls, component: Any) -> SignalRequest:
        """Return the request of an attack or an analysis."""
        names = [f.name for f in fields(cls) if hasattr(component, f.name)]
        values = {name: getattr(component, name) for name in names}
        for name in ("needs", "also", "against"):
            values[name] = frozenset(values.get(name, ()))
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Attack on a run."""

    key: str
    """hex sha256 of :func:`identity_of_cell`"""
    stem: str
    """its name"""
    attack: ComponentUse
    request: SignalRequest
    """what the attack wants measured"""
    notes: tuple[str, ...] = ()
    """oddities of the components that it is made with, found when it was planned"""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Federated training, and the cells still wanted of it."""

    suite: str
    setting: Setting
    """whole, as the suite has it"""
    coalition: str
    """its name"""
    members: tuple[int, ...]
    """the clients that defend"""
    coalitions: tuple[tuple[int, ...], ...] = ()
    """the members of each, where several coalitions defend (or are ``observed``) at once"""
    observed: tuple[int, ...] = ()
    """without members: clients of a coalition with the mean that the view ``coalition`` shows,
    which the row stands beside
    """
    targets: tuple[Target, ...]
    seed: int
    tuning: bool = False
    """whether strengths are chosen on the seed, so that no other table of a board counts it"""
    dataset: ComponentUse
    model: ComponentUse
    defense: ComponentUse
    attacker: ComponentUse | None
    """the active attack that the run is trained with"""
    adversary: Adversary | None
    """the setting's adversary, or the default one, where an active attack could take part"""
    signals: dict[str, ComponentUse]
    """every installed signal that a plugin measures, by name"""
    analyses: tuple[ComponentUse, ...]
    requests: dict[str, SignalRequest] = field(default_factory=dict)
    """what each analysis wants measured, by its label"""
    digests: dict[str, str]
    """sha256 of the data, the split and the engine's code"""
    repeated_holdout: float = 0.0
    """the share of the hold-out that repeats training samples"""
    nonmembers: str = ""
    """sites that outside non-members are from, where the data set tells sites apart"""
    device: str
    results: str
    """the results folder"""
    provenance: Provenance
    limits: Limits
    debug: bool = False
    """whether plugins are watched closely, and failures leave whole tracebacks"""
    cells: tuple[Cell, ...] = field(default=())

    @cached_property
    def run_key(self) -> str:
        """Hex sha256 of :func:`identity`."""
        return key_of(identity(self))

    @property
    def title(self) -> str:
        """Setting, coalition, defense and seed, for people."""
        attacker = f" vs {self.attacker.label}" if self.attacker else ""
        return (
            f"{self.setting.name}/{self.coalition} {self.defense.label}{attacker} seed {self.seed}"
        )

    @property
    def stem(self) -> str:
        """The name of the run's files."""
        attacker = self.attacker.label if self.attacker else None
        return stem(
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
        """Every round that ``audit.every`` divides, and the last one."""
        rounds = self.setting.federation.rounds
        step = self.setting.audit.every
        return {*range(step, rounds + 1, step), rounds}

    @property
    def references(self) -> int | None:
        """The number of clients that a target is compared with; None for all, where there are no
        more, the setting says so, or the targets are many clients together.
        """
        most = self.setting.audit.references
        many = any(target.client is None for target in self.targets)
        if most == "all" or many or self.clients <= most + 1:
            return None
        return most

    @property
    def malicious(self) -> int:
        """The number of clients the adversary controls, the last ones; 0 without one."""
        return self.adversary.malicious(self.clients) if self.adversary else 0

    @property
    def expected_malicious(self) -> int:
        """The number of malicious clients that the server's rule is told to expect."""
        return self.adversary.expected(self.clients) if self.adversary else 0

    @property
    def members_text(self) -> str:
        """The members, of several coalitions each one's, for people."""
        return " and ".join(str(list(group)) for group in self.coalitions or (self.averaged,))

    def signals_of(self, cell: Cell) -> dict[str, ComponentUse]:
        """The signals of plugins that a cell's attack and the analyses read, by the name that they
        ask for.
        """
        requests = [cell.request, *self.requests.values()]
        names = sorted(set[str]().union(*(request.needs for request in requests)))
        base_names = {name: name.partition("@")[0] for name in names}
        return {n: self.signals[base] for n, base in base_names.items() if base in self.signals}

    def described(self) -> dict[str, Any]:
        """The setting in words a board can print."""
        described = described_of(identity(self), self.coalition)
        described["adversary"] = self.attacker.label if self.attacker else None
        described["insider"] = _insider_of(self)
        if self.repeated_holdout:
            described["dataset"]["repeated_holdout"] = round(self.repeated_holdout, 4)
        if self.nonmembers:
            described["nonmembers"] = self.nonmembers
        return described


# --- identities and keys --------------------------------------------------------------------------

# of where a run is made: what changes numbers beyond their last digits
_LIBRARIES = ("torch", "numpy", "scipy", "scikit_learn", "cpu_capability", "dtype")


def identity(job: Job) -> dict[str, Any]:
    """Return everything that can change what a training answers, as JSON values.

    Left out are names for people, what follows from the data (their digest is here), what is
    measured beside the training (it enters the keys of cells), and where and how the run is
    computed. The numbers that an adversary is expected with reach the server's rule without an
    attack, too; that a seed is for tuning changes no number, but its records say so.
    """
    return {
        "contract": CONTRACT_VERSION,
        "digests": job.digests,
        "device": job.device.split(":")[0],
        "provenance": {name: getattr(job.provenance, name) for name in _LIBRARIES},
        "dataset": job.dataset.identity(),
        "model": job.model.identity(),
        "defense": job.defense.identity(),
        "attacker": job.attacker.identity() if job.attacker else None,
        "adversary": _insider_of(job) if job.attacker else None,
        "expected_malicious": job.expected_malicious,
        "members": list(job.members),
        "coalitions": list(map(list, job.coalitions)),
        "observed": list(job.observed),
        "targets": [target.code for target in job.targets],
        "seed": job.seed,
        "tuning": job.tuning,
        "setting": _setting_of(job),
    }


# fields that enter the key only where they are set, with their defaults
_LATER = (
    ("federation", "compile", False),
    ("federation", "test_by", "class"),
    ("audit", "precision", "fp32"),
)


def _setting_of(job: Job) -> dict[str, Any]:
    """Return the setting's fields that no other field of the job resolves. The values of a recipe
    are in the fields; numbers of references that come to the same are the same.
    """
    setting = job.setting.model_dump(
        mode="json",
        include={"partition", "federation", "data_seed", "audit", "groups", "thresholds"},
    )
    setting["federation"].pop("recipe", None)
    for part, name, default in _LATER:  # earlier records lack them
        if setting[part][name] == default:
            del setting[part][name]
    if setting["data_seed"] is None:
        del setting["data_seed"]
    setting["audit"]["references"] = job.references
    return setting


def _insider_of(job: Job) -> dict[str, Any] | None:
    """Return the adversary, its clients as numbers: a share that comes to the same is the same."""
    adversary = job.adversary
    if adversary is None:
        return None
    return {
        "malicious": job.malicious,
        "knowledge": adversary.knowledge,
        "mask_set": adversary.mask_set,
        "start_round": adversary.start_round,
        "assumed": job.expected_malicious,
    }


def cell_identity(job: Job, cell: Cell) -> dict[str, Any]:
    """Return what the key of a cell is made of besides its run: its attack, and the analyses and
    the signals that both read.
    """
    return {
        "attack": cell.attack.identity(),
        "signals": {name: use.identity() for name, use in job.signals_of(cell).items()},
        "analyses": {use.label: use.identity() for use in job.analyses},
    }


def identity_of_cell(job: Job, cell: Cell) -> dict[str, Any]:
    """Return everything that can change a cell's scores, as its record holds it."""
    return {"run": identity(job), **cell_identity(job, cell)}


# --- jobs for other processes ---------------------------------------------------------------------


@cache
def _adapter() -> TypeAdapter[Job]:
    return TypeAdapter(Job)


def job_json(job: Job) -> str:
    """Return the job as JSON, for another process."""
    # what a suite leaves out is left out: some values are refused where they are given but not
    # needed
    return _adapter().dump_json(job, exclude_unset=True).decode()


def job_of(text: str) -> Job:
    """Return the job of :func:`job_json`."""
    return _adapter().validate_json(text)
