"""Small data, jobs without a suite, and finished trainings: the input of checks and of tests."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
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
from fedbench.core.registry.components import Registry
from fedbench.core.registry.use import ComponentUse, UseMaker
from fedbench.core.run.declarations import declaration_mistake
from fedbench.core.run.job import Cell, Job, SignalRequest
from fedbench.core.run.needs import Signals
from fedbench.core.run.provenance import gather
from fedbench.core.run.scene import Parts, Scene, defense_of, set_scene, targets_of
from fedbench.core.run.shadow_models import ShadowLogits, train_shadow_models
from fedbench.core.run.train import Run, Trained, train
from fedbench.core.signals.measure import GRADIENT_SIGNALS
from fedbench.core.spec.setting import Setting
from fedbench.core.spec.suite import Limits

# --- components -----------------------------------------------------------------------------------


class TinyData(Dataset):
    """Noise around one picture per class, a third of the labels wrong.

    ``tokens``: size of the vocabulary; 0: floats.
    """

    class Params(Base):
        holdout: int = 400
        train: int = 160
        shape: tuple[int, ...] = (1, 8, 8)
        classes: int = 4
        tokens: int = 0

    def load(self, seed: int) -> Data:
        rng = np.random.Generator(np.random.Philox([seed, 0x71E5]))
        p = self.params
        pictures = rng.random((p.classes, *p.shape))
        arrays: dict[str, Any] = {}
        sizes = {"train": p.train, "test": 40, "holdout": p.holdout}
        for part, n in sizes.items():
            y = rng.integers(0, p.classes, n)
            x = np.clip(pictures[y] + 0.3 * rng.normal(size=(n, *p.shape)), 0, 1).astype(np.float32)
            if p.tokens:
                x = (x * (p.tokens - 1)).astype(np.int64)
            wrong = rng.random(n) < (0 if part == "test" else 0.3)
            y = np.where(wrong, rng.integers(0, p.classes, n), y).astype(np.int64)
            arrays |= {f"{part}_x": x, f"{part}_y": y}
        return Data(**arrays, n_classes=p.classes)


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
        layers = (nn.Linear(prod(input_shape), 8), nn.BatchNorm1d(8), nn.ReLU())
        return nn.Sequential(nn.Flatten(), *layers, nn.Linear(8, n_classes))


class GivenUse(ComponentUse):
    """The use of a class object, which may be local to a function, or of an instance."""

    _component: Any = PrivateAttr()

    def load(self) -> Any:
        """Return the class."""
        return _class_of(self._component)

    def make(self) -> list[Any]:
        """Return the instance, or a new one."""
        if isinstance(self._component, type):
            return super().make()
        return [self._component]


def given_use(component: Any, params: dict[str, Any] | None = None, name: str = "") -> ComponentUse:
    """Return the use of a class or an instance under a name, by default the class's."""
    cls = _class_of(component)
    name = name or cls.__name__
    use = GivenUse(
        name=name,
        label=name,
        params=params or {},
        target=f"{cls.__module__}:{cls.__qualname__}",
        distribution="tests 0",
        digest="0",
    )
    use._component = component
    return use


def _class_of(component: Any) -> Any:
    return component if isinstance(component, type) else type(component)


@cache
def _signals_on(path: tuple[str, ...]) -> dict[str, ComponentUse]:
    """Return every installed signal that a plugin measures."""
    return Signals(Registry.discover(), {}).uses


def known_use(against: Collection[str]) -> ComponentUse | None:
    """Return the use of the installed defenses of these names, one after the other, with their
    defaults; None where there is none.
    """
    uses = []
    for component in Registry.discover().components("defense"):
        if component.name in against:
            params = component.load().Params().model_dump(mode="json")
            uses.append(UseMaker()(component, params, component.name))
    return uses[0].model_copy(update={"then": tuple(uses[1:])}) if uses else None


def declared_mistake(component: Any) -> str:
    """Return the mistake in the attributes that an attack or an analysis declares, or nothing."""
    try:
        mistake = declaration_mistake(component)
        if not mistake:
            Signals(Registry.discover(), {}).require("it", component.needs)
        return mistake
    except UserError as error:
        return str(error)


# --- jobs -----------------------------------------------------------------------------------------


AUDIT = {"every": 2, "nonmembers": 80, "shadow": {"samples": 60, "models": 2, "epochs": 2}}
FEDERATION = {
    "clients": 4,
    "rounds": 4,
    "local_epochs": 2,
    "batch_size": 20,
    "optimizer": {"lr": 0.3},
}


def setting_of(federation: dict[str, Any] | None = None, **changes: Any) -> Setting:
    """Return a setting of four clients and four rounds, two of them audited.

    Args:
        federation: fields of the federation that change
        changes: other fields of the setting
    """
    fields = {
        "name": "tiny",
        "dataset": {"name": "tiny-data"},
        "model": {"name": "mlp"},
        "federation": FEDERATION | (federation or {}),
        "audit": AUDIT,
    }
    return Setting.model_validate(fields | changes)


_provenance = cache(gather)


def job_of(
    setting: Setting,
    *,
    defense: ComponentUse | None = None,
    dataset: ComponentUse | None = None,
    model: ComponentUse | None = None,
    attack: Attack | None = None,
    members: tuple[int, ...] = (0, 1),
    signals: dict[str, ComponentUse] | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> tuple[Job, Parts, Scene]:
    """Return a job of one cell, its parts and its scene; ``members`` of the clients defend."""
    attack = attack or PlainLoss()
    defense = defense or given_use(Defense, name="plain")
    dataset = dataset or given_use(TinyData, name="tiny-data")
    model = model or given_use(MLP, {"hidden": [12]}, "mlp")
    parts = Parts(dataset=dataset.make()[0], model=model.make()[0], defense=defense_of(defense))
    use = given_use(attack, name="attack")
    adversary = setting.adversary
    malicious = adversary.malicious(setting.federation.clients) if adversary else 0
    cell = Cell(key="", stem="tiny", attack=use, request=SignalRequest.of(attack))
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
        attacker=use if isinstance(attack, ActiveAttack) else None,
        adversary=adversary,
        signals=_signals_on(tuple(sys.path)) | (signals or {}),
        analyses=(),
        digests={"engine": "", "data": parts.dataset.load(seed).digest(), "split": ""},
        device=device,
        results="/nowhere",
        provenance=_provenance("cpu", "float32"),
        limits=Limits(),
        cells=(cell,),
    )
    return job, parts, set_scene(job, parts)


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


def train_job(setting: Setting, attacks: Sequence[Attack | SignalRequest], **changes: Any) -> World:
    """Train the job that :func:`job_of` returns for these arguments, and measure what these
    attacks or requests need.
    """
    job, parts, scene = job_of(setting, **changes)
    trained = train(job, parts, scene, attacks, lambda t, measured: None)
    return World(job=job, parts=parts, scene=scene, trained=trained)


@cache
def world(
    needs: frozenset[str] = frozenset(), groups: bool = False, seed: int = 0, **audit: Any
) -> World:
    """Train a federation and measure these signals, the loss and those of the gradient for every
    view; equal calls share one training.

    Args:
        needs: signals
        groups: whether groups of clients have rotated samples
        audit: changes of the setting's audit, such as ``members_from="holdout"``: the members were
            not trained on
    """
    more: dict[str, Any] = GROUPS if groups else {}
    setting = setting_of(audit=AUDIT | audit, **more)
    measured = needs | {"loss", *GRADIENT_SIGNALS}
    requests = [
        SignalRequest(needs=measured, view=view, needs_shadow_models=True, colluders=1)
        for view in get_args(View)
    ]
    w = train_job(setting, requests, seed=seed)
    return replace(w, shadows=train_shadow_models(w.job, w.parts, w.scene))
