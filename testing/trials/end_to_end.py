"""A component's whole way: data, training, attack, verdict, record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedbench.core.contract.attack import Attack, Audit, Observations
from fedbench.core.contract.dataset import Data, Dataset
from fedbench.core.contract.defense import Defense
from fedbench.core.contract.errors import UserError
from fedbench.core.experiment.analyse import checked, own_judgement
from fedbench.core.experiment.judge import ask
from fedbench.core.experiment.train import Trained, train
from fedbench.core.models.mlp import MLP
from fedbench.core.registry.components import Registry
from fedbench.core.registry.use import ComponentUse
from fedbench.testing.jobs import given_use
from fedbench.testing.results import Failed, Skipped
from fedbench.testing.subject import Subject
from fedbench.testing.trials import attack, finished, small
from fedbench.testing.trials.data import PlainLoss, TinyPictures
from fedbench.testing.trials.world import World, job_of, setting_of

_SHORT = {"clients": 4, "rounds": 2, "local_epochs": 1, "local_batches": 2, "batch_size": 10, "optimizer": {"lr": 0.05}}
_TRAIN, _TEST, _HOLDOUT = 32, 8, 32
_FEW, _MANY = 160, 480  # training samples of a defense's four clients


def run(subject: Subject, folder: Path) -> None:
    """Leave a record of a small run in ``folder``. Raises whatever goes wrong on the way."""
    if subject.kind == "report":
        finished.write(subject.make())
        return
    if subject.kind == "attack":
        answers, seen = attack.asked(subject.make())
        finished.recorded(seen.job, seen.scene, seen.trained, answers, folder)
        return
    if subject.kind == "analysis":
        _analysed(subject, folder)
        return
    try:
        seen, judge = trained_with(subject)
    except UserError:  # of a defense that needs more samples a client, as in `trials/defense.py: begun`
        if subject.kind != "defense":
            raise
        seen, judge = trained_with(subject, samples=_MANY)
    finished.recorded(seen.job, seen.scene, seen.trained, ask(seen.job, judge, seen.scene, seen.trained), folder)


def _use(subject: Subject) -> ComponentUse:
    return given_use(subject.cls, subject.params, subject.name)


def trained_with(subject: Subject, device: str = "cpu", samples: int = _FEW) -> tuple[World, Attack]:
    """A training with a defense, a data set, a model or a signal in it, and the attack to judge it."""
    federation: dict[str, Any] = dict(_SHORT)
    changes: dict[str, Any] = {"thresholds": [0.5, 0.6]} if subject.kind == "defense" else {}
    parts: dict[str, Any] = {}
    judge: Attack = PlainLoss()
    if subject.kind == "defense":
        parts["defense"] = _use(subject)
        sizes = {"holdout": 400 + subject.make().root_samples, "train": samples}
        parts["dataset"] = given_use(TinyPictures, sizes, "tiny-pictures")
    elif subject.kind == "dataset":
        parts |= {"dataset": _use(subject), "model": _model_for(subject)}
    elif subject.kind == "model":
        x, classes = small.samples(subject, subject.make())
        federation |= {"rounds": 1, "local_batches": 1, "batch_size": 4}
        parts |= {"model": _use(subject), "dataset": given_use(shaped(x, classes), {}, "shaped")}
    else:
        small.measure(subject, subject.make())  # is it one of the engine's own?
        judge = reads_only(subject.name)
    audit = {"every": 1, "nonmembers": 20}
    job, made, scene = job_of(setting_of(federation=federation, audit=audit, **changes), made=judge, **parts)
    if subject.kind == "signal":  # a bare class stands in no registry
        job = replace(job, signals={**job.signals, subject.name: _use(subject)})
    job = replace(job, device=device)
    trained = train(job, made, scene, (job.cells and [job.cells[0].look]) or [], lambda t: None)
    if trained.failed:
        raise Failed("; ".join(trained.failed.values()))
    return World(job=job, parts=made, scene=scene, trained=trained, shadows=None), judge


def _model_for(subject: Subject) -> ComponentUse:
    """A small network for a data set of numbers; its own default for one of tokens, which a small network does not take."""
    data = small.loaded(subject)  # is it here?
    if data.train_x.dtype == np.uint8 or np.issubdtype(data.train_x.dtype, np.floating):
        return given_use(MLP, {"hidden": [12]}, "mlp")
    found = Registry.discover().get("model", subject.cls.default_model)
    return given_use(found.load(), {}, found.name)


def reads_only(signal: str) -> Attack:
    """An attack that scores by one signal."""

    class Reads(Attack):
        needs = frozenset({signal})

        def score(self, observations: Observations, audit: Audit) -> np.ndarray:
            last = np.nan_to_num(observations.of_target(signal)[-1].astype(np.float64))
            return last if last.ndim == 1 else last[:, 0]  # any number of a vector will do

    return Reads()


def shaped(x: torch.Tensor, classes: int) -> type[Dataset]:
    """A data set of samples like these."""

    class Shaped(Dataset):
        licence = "CC0"

        def load(self, seed: int) -> Data:
            rng = np.random.Generator(np.random.Philox([seed, 0x5A4E]))

            def split(n: int) -> tuple[np.ndarray, np.ndarray]:
                size = (n, *x.shape[1:])
                drawn = rng.normal(size=size) if x.is_floating_point() else rng.integers(0, int(x.max()) + 1, size)
                return drawn.astype(x.numpy().dtype), rng.integers(0, classes, n)

            (train_x, train_y), (test_x, test_y), (hold_x, hold_y) = split(_TRAIN), split(_TEST), split(_HOLDOUT)
            images, half = x.dtype == torch.uint8, (0.5,) * x.shape[1]
            return Data(
                train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y, holdout_x=hold_x, holdout_y=hold_y,
                n_classes=classes, mean=half if images else None, std=half if images else None,
            )  # fmt: skip

    return Shaped


def _analysed(subject: Subject, folder: Path) -> None:
    made = subject.make()
    seen, told, judgement = finished.said_of(made)
    findings = made.analyse(told, own_judgement(judgement))
    found = {} if findings is None else {subject.name: checked(findings)[0]}
    answers = ask(seen.job, PlainLoss(), seen.scene, seen.trained)
    finished.recorded(seen.job, seen.scene, seen.trained, answers, folder, found)


def plain_training() -> Trained:
    """What costs are compared with."""
    job, parts, scene = job_of(setting_of())
    return train(job, parts, scene, [job.cells[0].look], lambda t: None)


def on_device(subject: Subject, device: str) -> None:
    """The part of it that computes on tensors."""
    if subject.kind in ("model", "signal"):
        trained_with(subject, device)
    elif "active attack" in subject.kinds:
        attack.trained_with(subject.make(), device=device)
    else:
        raise Skipped("it works on arrays, on the CPU")


__all__ = ["Defense", "on_device", "plain_training", "run", "trained_with"]
