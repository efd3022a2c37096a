"""Small data, jobs without a suite, and finished trainings: the input of checks and of tests."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any, get_args

import numpy as np
from pydantic import PrivateAttr
from torch import nn

from fedbench.core import (
    ActiveAttack,
    Attack,
    Audit,
    Data,
    Dataset,
    Defense,
    Model,
    Observations,
    UserError,
)
from fedbench.core.contract.attack import View
from fedbench.core.contract.components import Params as Base
from fedbench.core.models.sequential import MLP
from fedbench.core.population.audit import split_digest
from fedbench.core.registry.components import Registry
from fedbench.core.registry.use import ComponentUse
from fedbench.core.run.declarations import declaration_mistake
from fedbench.core.run.job import Cell, Job, SignalRequest, identity_of_cell
from fedbench.core.run.needs import Signals
from fedbench.core.run.provenance import gather
from fedbench.core.run.scene import Parts, Scene, defense_of, make_scene, set_scene, targets_of
from fedbench.core.run.shadow_models import ShadowLogits, train_shadow_models
from fedbench.core.run.train import Run, Trained, train
from fedbench.core.signals.measure import GRADIENT_SIGNALS
from fedbench.core.spec.setting import Setting
from fedbench.core.spec.suite import Limits
from fedbench.core.store.integrity import keys_of

# --- components -----------------------------------------------------------------------------------


class TinyData(Dataset):
    """Noise around one picture per class, a third of the labels wrong. ``tokens``: size of the
    vocabulary; 0: floats.
    """

    class Params(Base):
        holdout: int = 400
        train: int = 160
        shape: tuple[int, ...] = (1, 8, 8)
        classes: int = 4
        tokens: int = 0

    def load(self, seed: int) -> Data:
        rng, p = np.random.Generator(np.random.Philox([seed, 0x71E5])), self.params
        pictures = rng.random((p.classes, *p.shape))

        def split(n: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
            y = rng.integers(0, p.classes, n)
            x = np.clip(pictures[y] + 0.3 * rng.normal(size=(n, *p.shape)), 0, 1).astype(np.float32)
            if p.tokens:
                x = (x * (p.tokens - 1)).astype(np.int64)
            return x, np.where(rng.random(n) < noise, rng.integers(0, p.classes, n), y).astype(
                np.int64
            )

        (train_x, train_y), (test_x, test_y), (holdout_x, holdout_y) = (
            split(p.train, 0.3),
            split(40, 0),
            split(p.holdout, 0.3),
        )
        return Data(
            train_x=train_x,
            train_y=train_y,
            test_x=test_x,
            test_y=test_y,
            holdout_x=holdout_x,
            holdout_y=holdout_y,
            n_classes=p.classes,
        )


class PlainLoss(Attack):
    """Minus a signal, of a vector its first number, under the target's last upload."""

    signal = "loss"
    needs = frozenset({"loss"})

    def score(self, observations: Observations, audit: Audit) -> np.ndarray:
        last = np.nan_to_num(observations.of_target(self.signal)[-1].astype(np.float64))
        return -last.reshape(len(last), -1)[:, 0]


class NormedNet(Model):
    """A small network with batch normalisation."""

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        layers = (
            nn.Linear(prod(input_shape), 8),
            nn.BatchNorm1d(8),
            nn.ReLU(),
            nn.Linear(8, n_classes),
        )
        return nn.Sequential(nn.Flatten(), *layers)


class GivenUse(ComponentUse):
    """The use of a class object, which may be local to a function, or of an instance."""

    _given: Any = PrivateAttr()

    def load(self) -> Any:
        """The class."""
        return self._given if isinstance(self._given, type) else type(self._given)

    def make(self) -> list[Any]:
        """The given instance, or a new one."""
        return super().make() if isinstance(self._given, type) else [self._given]


def given_use(given: Any, params: dict[str, Any] | None = None, name: str = "") -> ComponentUse:
    """The use of a class or an instance under a name, by default the class's."""
    cls = given if isinstance(given, type) else type(given)
    name, target = name or cls.__name__, f"{cls.__module__}:{cls.__qualname__}"
    made = GivenUse(
        name=name,
        label=name,
        params=params or {},
        target=target,
        distribution="tests 0",
        digest="0",
    )
    made._given = given
    return made


def known_signals() -> dict[str, ComponentUse]:
    """Every installed signal that a plugin measures."""
    return _signals_on(tuple(sys.path))


@cache
def _signals_on(path: tuple[str, ...]) -> dict[str, ComponentUse]:
    return Signals(Registry.discover(), {}).uses


def declared_mistake(made: Any) -> str:
    """The mistake in the attributes that an attack or an analysis declares, or nothing."""
    try:
        mistake = declaration_mistake(made)
        if not mistake:
            Signals(Registry.discover(), {}).require("it", made.needs)
        return mistake
    except UserError as error:
        return str(error)


# --- jobs -----------------------------------------------------------------------------------------


AUDIT = {"every": 2, "nonmembers": 80, "shadow": {"samples": 60, "models": 2, "epochs": 2}}


def setting_of(**changes: Any) -> Setting:
    """Four clients, four rounds, two of them audited; the first two clients defend."""
    fields = {
        "name": "tiny",
        "dataset": {"name": "tiny-data"},
        "model": {"name": "mlp"},
        "federation": {
            "clients": 4,
            "rounds": 4,
            "local_epochs": 2,
            "batch_size": 20,
            "optimizer": {"lr": 0.3},
        },
        "audit": AUDIT,
    }
    return Setting.model_validate({**fields, **changes})


_provenance = cache(gather)


def job_of(
    setting: Setting,
    *,
    defense: ComponentUse | None = None,
    dataset: ComponentUse | None = None,
    model: ComponentUse | None = None,
    attack: ComponentUse | None = None,
    made: Any = None,
    members: tuple[int, ...] = (0, 1),
    seed: int = 0,
) -> tuple[Job, Parts, Scene]:
    """A job of one cell, its parts and its scene. ``made``: the instance of the attack, by default
    the one with PlainLoss.
    """
    made = made or PlainLoss()
    active = isinstance(made, ActiveAttack)
    defense, attack = (
        defense or given_use(Defense, name="plain"),
        attack or given_use(PlainLoss, name="plain-loss"),
    )
    dataset, model = (
        dataset or given_use(TinyData, name="tiny-data"),
        model or given_use(MLP, {"hidden": [12]}, "mlp"),
    )
    adversary = setting.adversary
    malicious = adversary.malicious(setting.federation.clients) if adversary else 0
    job = Job(
        suite="tiny",
        setting=setting,
        coalition="pair",
        members=members,
        targets=targets_of(setting, members, malicious),
        seed=seed,
        dataset=dataset,
        model=model,
        defense=defense,
        attacker=attack if active else None,
        adversary=adversary,
        signals=known_signals(),
        analyses=(),
        digests={"engine": "", "data": "", "split": ""},
        device="cpu",
        results="/nowhere",
        provenance=_provenance("cpu", "float32"),
        limits=Limits(),
    )
    parts = Parts(dataset=dataset.make()[0], model=model.make()[0], defense=defense_of(defense))
    data, root = parts.dataset.load(seed), parts.defense.root_samples
    scene = make_scene(
        data, setting, job.targets, seed, adversary=adversary, poisoned=active, root=root
    )
    job = replace(
        job,
        digests={
            "engine": "",
            "data": data.digest(),
            "split": split_digest(scene.split, scene.audits),
        },
    )
    stem = f"{defense.name}-{attack.name}"
    cell = Cell(key="", stem=stem, attack=attack, request=SignalRequest.of(made))
    cell = replace(cell, key=keys_of(identity_of_cell(job, cell))[1])
    return (
        replace(job, cells=(cell,)),
        parts,
        scene if scene.groups is None else set_scene(job, parts),
    )


# --- finished trainings ---------------------------------------------------------------------------

GROUPS = {
    "groups": [
        {"name": "upright", "fraction": 0.5, "rotation": [0, 5]},
        {"name": "turned", "rotation": [80, 90]},
    ],
    "thresholds": [0.5, 0.6],
}


@dataclass(frozen=True, kw_only=True)
class World:
    """A job with its data and the result of its training."""

    job: Job
    parts: Parts
    scene: Scene
    trained: Trained
    shadows: ShadowLogits | None = None

    @property
    def run(self) -> Run:
        """The run, as the judges get it."""
        return Run(job=self.job, scene=self.scene, trained=self.trained, shadows=self.shadows)


def world(needs: Iterable[str] = (), *, groups: bool = False, seed: int = 0, **audit: Any) -> World:
    """A training in which these signals, the loss and those of the gradient were measured for every
    view. ``audit``: changes of the setting's audit, such as ``members_from="holdout"``: the members
    were not trained on.
    """
    return _world(frozenset(needs), groups, seed, tuple(audit.items()), tuple(sys.path))


@cache
def _world(
    needs: frozenset[str],
    groups: bool,
    seed: int,
    audit: tuple[tuple[str, Any], ...],
    path: tuple[str, ...],
) -> World:
    job, parts, scene = job_of(
        setting_of(audit=AUDIT | dict(audit), **(GROUPS if groups else {})), seed=seed
    )
    measured = needs | {"loss", *GRADIENT_SIGNALS}
    requests = [
        SignalRequest(needs=measured, view=view, needs_shadow_models=True, colluders=1)
        for view in get_args(View)
    ]
    trained = train(job, parts, scene, requests, lambda t: None)
    return World(
        job=job,
        parts=parts,
        scene=scene,
        trained=trained,
        shadows=train_shadow_models(job, parts, scene),
    )
