"""A finished training that attacks, analyses and reports are asked about: made once, by the engine's own parts alone."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from fedbench.core.contract.attack import ActiveAttack
from fedbench.core.contract.defense import Defense
from fedbench.core.contract.hooks import PROJECT
from fedbench.core.contract.threat import View
from fedbench.core.execution.needs import Signals
from fedbench.core.execution.plugin_checks import declaration_mistake
from fedbench.core.execution.provenance import gather
from fedbench.core.experiment.candidates import targets_of
from fedbench.core.experiment.job import Cell, Job, Look, cell_identity, key_of_run
from fedbench.core.experiment.parts import Parts, defense_of
from fedbench.core.experiment.scene import Scene, make_scene, set_scene
from fedbench.core.experiment.shadow_models import ShadowLogits, train_shadow_models
from fedbench.core.experiment.train import Trained, train
from fedbench.core.models.mlp import MLP
from fedbench.core.population.audit import split_digest
from fedbench.core.registry.components import Registry
from fedbench.core.registry.use import ComponentUse
from fedbench.core.signals.measure import GRADIENT_SIGNALS, PRE_DEFENSE
from fedbench.core.spec.suite import Limits, Setting
from fedbench.core.store.integrity import keys_of
from fedbench.core.words.nearest import did_you_mean
from fedbench.testing.jobs import given_use
from fedbench.testing.trials.data import PlainLoss, TinyPictures

Members = Literal["training", "holdout"]
_VIEWS: tuple[View, ...] = ("server", "client", "coalition", "external")
_NO_RESULTS = "/nowhere"


@dataclass(frozen=True, kw_only=True)
class World:
    """A job with its data and, once trained, what was measured."""

    job: Job
    parts: Parts
    scene: Scene
    trained: Trained
    shadows: ShadowLogits | None


def setting_of(**changes: Any) -> Setting:
    """Four clients, four rounds, two of them audited; the first two defend."""
    fields = {
        "name": "tiny", "dataset": {"name": "tiny-pictures"}, "model": {"name": "mlp"},
        "federation": {"clients": 4, "rounds": 4, "local_epochs": 2, "batch_size": 20, "optimizer": {"lr": 0.3}},
        "audit": {"every": 2, "nonmembers": 80, "shadow": {"samples": 60, "models": 2, "epochs": 2}},
    }  # fmt: skip
    return Setting.model_validate({**fields, **changes})


GROUPS = {
    "groups": [{"name": "upright", "fraction": 0.5, "rotation": [0, 5]}, {"name": "turned", "rotation": [80, 90]}],
    "thresholds": [0.5, 0.6],
}


def known_signals() -> dict[str, ComponentUse]:
    """Every installed signal that a plugin measures."""
    return _signals_on(tuple(sys.path))


@cache
def _signals_on(path: tuple[str, ...]) -> dict[str, ComponentUse]:
    """Of the packages that are installed along a path."""
    return Signals(Registry.discover(), {}).uses


def _others(needs: Iterable[str]) -> frozenset[str]:
    """Those of these signals that do not come with the harness: they are measured for who needs them alone."""
    known = known_signals()
    own = {n: n.removesuffix(PRE_DEFENSE) for n in needs}
    return frozenset(n for n, o in own.items() if o in known and not _is_ours(known[o]))


def _is_ours(use: ComponentUse) -> bool:
    return use.distribution.startswith(f"{PROJECT} ")


def is_known(signal: str) -> bool:
    """Whether an installed signal, or one of the engine's own, has this name."""
    own = signal.removesuffix(PRE_DEFENSE)
    return own in known_signals() or signal in GRADIENT_SIGNALS


def declared_mistake(made: Any) -> str:
    """What is wrong with the facts that an attack or an analysis states about itself, or nothing."""
    if mistake := declaration_mistake(made):
        return mistake
    unknown = sorted(n for n in made.needs if not is_known(n))
    hint = did_you_mean(unknown[0], known_signals()) if unknown else ""
    return f"needs name the signal '{unknown[0]}', which no installed package announces{hint}" if unknown else ""


@cache
def _provenance(device: str) -> Any:
    return gather(device, "float32")


def job_of(
    setting: Setting, *, defense: ComponentUse | None = None, dataset: ComponentUse | None = None,
    model: ComponentUse | None = None, attack: ComponentUse | None = None, made: Any = None,
    analyses: Iterable[tuple[ComponentUse, Any]] = (), members: tuple[int, ...] = (0, 1), seed: int = 0,
) -> tuple[Job, Parts, Scene]:  # fmt: skip
    """A job as a plan has it, its parts and its scene. ``made``: the attack, from which its look is taken."""
    active = isinstance(made, ActiveAttack)
    defense, attack = defense or given_use(Defense, {}, "plain"), attack or given_use(PlainLoss, {}, "plain-loss")
    dataset, model = dataset or given_use(TinyPictures, {}, "tiny-pictures"), model or given_use(MLP, {"hidden": [12]}, "mlp")
    adversary = setting.adversary
    malicious = adversary.malicious(setting.federation.clients) if adversary else 0
    job = Job(
        suite="tiny", setting=setting, coalition="pair", members=members, targets=targets_of(setting, members, malicious),
        seed=seed, dataset=dataset, model=model, defense=defense, attacker=attack if active else None, adversary=adversary,
        signals=known_signals(), analyses=tuple(u for u, _ in analyses), looks={u.label: Look.of(m) for u, m in analyses},
        digests={"engine": "", "data": "", "split": ""}, device="cpu", results=_NO_RESULTS, provenance=_provenance("cpu"),
        limits=Limits(),
    )  # fmt: skip
    parts = Parts(dataset=dataset.make()[0], model=model.make()[0], defense=defense_of(defense))
    data, root = parts.dataset.load(seed), parts.defense.root_samples
    scene = make_scene(data, setting, job.targets, seed, adversary=adversary, poisoned=active, root=root)
    job = replace(job, digests={"engine": "", "data": data.digest(), "split": split_digest(scene.split, scene.audits)})
    job = replace(job, run_key=key_of_run(job))
    read = {*made.needs} if made is not None else {*PlainLoss.needs}
    names = {n: n.removesuffix(PRE_DEFENSE) for n in sorted(read.union(*(m.needs for _, m in analyses)))}
    identity = cell_identity(job, attack, {n: job.signals[own] for n, own in names.items() if own in job.signals})
    look = Look.of(made) if made is not None else Look.of(PlainLoss())
    cell = Cell(key=keys_of(identity)[1], stem=f"{defense.name}-{attack.name}", attack=attack, look=look, identity=identity)
    return replace(job, cells=(cell,)), parts, scene if scene.groups is None else set_scene(job, parts)


def world(
    members_from: Members = "training", together: bool = False, groups: bool = False, seed: int = 0, alone: bool = False,
    needs: Iterable[str] = (),
) -> World:  # fmt: skip
    """The training that passive attacks and analyses look at: every signal of the harness, and of ``needs``, was measured for
    every view.

    ``members_from`` "holdout": nobody trained on the members asked about. ``together``: asked about all clients at once;
    ``alone``: about one client only.
    """
    return _world(members_from, together, groups, seed, alone, _others(needs), tuple(sys.path))


@cache
def _world(
    members_from: Members, together: bool, groups: bool, seed: int, alone: bool, others: frozenset[str], path: tuple[str, ...]
) -> World:
    audit: dict[str, Any] = {"every": 2, "nonmembers": 80, "members_from": members_from}
    audit |= {"shadow": {"samples": 60, "models": 2, "epochs": 2}}
    audit |= {"targets": "honest", "members": 60} if together else {"targets": [0]} if alone else {}
    job, parts, scene = job_of(setting_of(audit=audit, **(GROUPS if groups else {})), seed=seed)
    ours = {name for name, use in known_signals().items() if _is_ours(use)}
    measured = frozenset({*ours, *others, *GRADIENT_SIGNALS, f"loss{PRE_DEFENSE}"})
    looks = [Look(needs=measured, view=view, needs_shadow_models=True, colluders=1) for view in _VIEWS]
    trained = train(job, parts, scene, looks, lambda t: None)
    return World(job=job, parts=parts, scene=scene, trained=trained, shadows=train_shadow_models(job, parts, scene))
