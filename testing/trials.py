"""A small run of a component of each kind, and the named values it answered."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

from fedbench.core import (
    ActiveAttack,
    Analysis,
    Attack,
    Data,
    Dataset,
    Defense,
    FinishedRun,
    Judgement,
    Model,
    Report,
    Signal,
    SkipCell,
    UserError,
)
from fedbench.core.contract.hooks import DISTRIBUTION
from fedbench.core.models.sequential import MLP
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.process.ask import Answer, ask
from fedbench.core.process.channel import at_work
from fedbench.core.registry.components import Registry
from fedbench.core.registry.use import ComponentUse
from fedbench.core.run.analyse import checked, finished
from fedbench.core.run.checks import require_data
from fedbench.core.run.job import SignalRequest
from fedbench.core.run.scene import Scene
from fedbench.core.run.scoring import Answers
from fedbench.core.run.scoring import ask as ask_attack
from fedbench.core.run.train import Trained
from fedbench.core.run.verdict import Verdict, verdict
from fedbench.core.signals.measure import GRADIENT_SIGNALS
from fedbench.core.signals.probes import SignalCall
from fedbench.core.words import describe_error
from fedbench.testing.observe import digests_of, seed_globals
from fedbench.testing.subject import Failed, Skipped, Subject
from fedbench.testing.worlds import (
    PlainLoss,
    TinyData,
    World,
    given_use,
    known_use,
    setting_of,
    train_job,
    world,
)

Values = dict[str, Any]
# the clock of the second pass is so far ahead, for components that read whole seconds
_AHEAD_S = 1_000_003
CLASSES = 4


def trial(subject: Subject, component: Any = None, reverse: bool = False) -> Values:
    """Return everything that ``component``, by default a fresh instance, answers, by name.

    Args:
        reverse: whether to ask a passive attack about the last target first

    Raises:
        SkipCell: it does not apply to the small run
    """
    seed_globals(1)
    if component is None:
        component = subject.make()
    if reverse:
        return _in_reverse(component)
    return _TRIALS[subject.kind](subject, component)


def passes(subject: Subject) -> list[dict[str, str]]:
    """Return digests of the answers of two runs and, of a passive attack, of a third that asks
    about the targets in reverse order.

    They are made once for all checks, each in a fork of this process, in which the component has
    served no run yet. Raises :class:`Skipped` and ``UserError``.
    """
    if "passes" not in subject.notes:
        try:
            _share(subject)
            n = 3 if "passive attack" in subject.kinds else 2
            answer = Answer([ask(partial(_pass, subject, i)) for i in range(n)])
        except (SkipCell, UserError) as error:
            answer = Answer(error=error)
        except Exception as error:
            answer = Answer(error=UserError(located(error)))
        subject.notes["passes"] = answer
    digests: list[dict[str, str]] = subject.notes["passes"].get()
    if reason := digests[0].get("skipped"):
        raise Skipped(reason)
    return digests


def _share(subject: Subject) -> None:
    """Compute what the forks share and the component takes no part in."""
    if "passive attack" in subject.kinds:
        training_for(subject.make())
    elif subject.kind == "analysis" and subject.cls.analyse is not Analysis.analyse:
        finished_run(subject.make())
    elif subject.kind in ("defense", "attack"):
        train_defense(Defense())  # the first training of a process takes five times as long


def _pass(subject: Subject, i: int) -> dict[str, str]:
    now = time.time
    later = patch.object(time, "time", lambda: now() + _AHEAD_S * (i == 1))
    with at_work(f"{subject}: runs"), later:
        try:
            return digests_of(trial(subject, reverse=i == 2))
        except SkipCell as why:
            return {"skipped": str(why)}
        except Exception as error:
            raise UserError(located(error)) from error


def located(error: BaseException) -> str:
    """Return the error's message, with the plugin's line where the engine has not added it."""
    if isinstance(error, UserError | RuntimeError | Failed) and str(error):
        return str(error)
    return describe_error(error)


def reference(subject: Subject) -> dict[str, str]:
    """Return digests of the answers of the first pass. Raises :class:`Skipped` where it fails."""
    try:
        return passes(subject)[0]
    except UserError as error:
        raise Skipped("the small run fails, see `runs`") from error


# --- defenses -------------------------------------------------------------------------------------


def train_defense(
    defense: Defense,
    members: tuple[int, ...] = (0, 1, 2, 3),
    samples: int = 480,
    model: type[Model] = MLP,
    federation: Values | None = None,
    **changes: Any,
) -> Trained:
    """Train five clients, four of which defend. ``changes``: of the setting."""
    optimizer = {"lr": 0.1, "momentum": 0.9}
    fields = {"clients": 5, "rounds": 2, "local_epochs": 1, "optimizer": optimizer}
    defaults = {"audit": {"every": 1, "nonmembers": 20}, "thresholds": [0.5, 0.6]}
    setting = setting_of(fields | (federation or {}), **defaults | changes)
    finished = train_job(
        setting,
        [SignalRequest(needs=frozenset({"loss"}), view="server")],
        defense=given_use(defense),
        dataset=data_for(defense, samples),
        model=net(model),
        members=members,
    )
    return finished.trained


def data_for(defense: Defense, samples: int = 480) -> ComponentUse:
    """Return the use of small data, with hold-out samples for the server's rule."""
    return given_use(TinyData, {"train": samples, "holdout": 400 + defense.root_samples})


def net(model: type[Model] = MLP) -> ComponentUse:
    """Return the use of a small network."""
    return given_use(model, {"hidden": [12]} if model is MLP else {}, "net")


def _defense(subject: Subject, defense: Defense) -> Values:
    trained = train_defense(defense)
    return {
        "the loss under the uploads": trained.signals,
        "the predictions of the final model": trained.predicted,
        "the clients' models": trained.assignment,
        "its facts": trained.facts,
    }


# --- attacks --------------------------------------------------------------------------------------


def training_for(attack: Attack, seed: int = 0, **audit: Any) -> World:
    """Return a shared training or, for an active attack, one that it takes part in."""
    if isinstance(attack, ActiveAttack):
        return train_with(attack, seed, **audit)
    return world(frozenset(attack.needs), seed=seed, **audit)


def ask_all(attack: Attack, seed: int = 0, **audit: Any) -> tuple[Answers, World]:
    """Return the answers for all targets, and the training."""
    finished = training_for(attack, seed, **audit)
    return answers_of(attack, finished), finished


def answers_of(attack: Attack, finished: World) -> Answers:
    """Return its answers about a finished training. An adaptive attack gets the defaults of the
    defenses that it knows.
    """
    job = replace(finished.job, defense=known_use(attack.against) or finished.job.defense)
    return ask_attack(replace(finished, job=job).run, attack)


def train_with(
    attack: Attack,
    seed: int = 0,
    adversary: Values | None = None,
    model: type[Model] = MLP,
    device: str = "cpu",
    **audit: Any,
) -> World:
    """Train four clients, the last of which the attack controls, with full knowledge unless
    ``adversary`` says less.
    """
    setting = setting_of(
        {"rounds": 3, "local_epochs": 1, "optimizer": {"lr": 0.2}},
        audit={"every": 2, "targets": "honest", "members": 40, "nonmembers": 40, **audit},
        adversary={"clients": 1, "knowledge": "rule", "mask_set": 12, **(adversary or {})},
    )
    changes: Values = {"model": net(model), "seed": seed, "device": device}
    return train_job(setting, [attack], attack=attack, members=(), **changes)


def _attack(subject: Subject, attack: Attack) -> Values:
    """Return the scores of every target, and what an active attack did to the federation.

    Raises ``UserError`` for invalid scores.
    """
    answers, finished = ask_all(attack)
    _judge(finished, answers)
    for scores, rounds in zip(answers.scores, answers.by_round, strict=True):
        if rounds is not None and not np.array_equal(
            rounds[-1].argsort(kind="stable"), scores.argsort(kind="stable")
        ):
            raise UserError(
                "the last row of score_rounds ranks the candidates otherwise than score; expected "
                "the same order"
            )
    values = _by_target(finished.scene, answers)
    if isinstance(attack, ActiveAttack):
        values["the signals of its training"] = finished.trained.signals
        values["the predictions of the final model"] = finished.trained.predicted
    return values


def _in_reverse(attack: Attack) -> Values:
    """Return the scores of every target, asked for from the last to the first."""
    finished = training_for(attack)
    scene = replace(finished.scene, audits=finished.scene.audits[::-1])
    return _by_target(scene, answers_of(attack, replace(finished, scene=scene)))


def _judge(finished: World, answers: Answers) -> Verdict:
    return verdict(finished.run, finished.job.cells[0], answers)


def _by_target(scene: Scene, answers: Answers) -> Values:
    names = [f"the score of {audit.target.words()}" for audit in scene.audits]
    return dict(zip(names, zip(answers.scores, answers.by_round, strict=True), strict=True))


# --- data sets, models, signals -------------------------------------------------------------------


def load(subject: Subject, dataset: Dataset, seed: int = 0) -> Data:
    """Return the data, validated. Raises :class:`Skipped` where they are not on this machine."""
    if not type(dataset).here():
        raise Skipped("its data are not on this machine, and a check downloads nothing")
    return require_data(dataset.load(seed), subject.name)


def samples_for(model: Model) -> torch.Tensor:
    """Return samples of a common shape that the model takes, [6, *input].

    Raises :class:`Skipped` where it takes none.
    """
    g = torch.Generator().manual_seed(5)
    shapes = ((3, 32, 32), (1, 28, 28), (1, 8, 8), (20,), (12, 5))
    common = [torch.randn(6, *shape, generator=g) for shape in shapes]
    for x in (*common, torch.randint(0, 16, (6, 12), generator=g)):
        try:
            build(model, x)
        except UserError as error:
            refused = str(error)
        else:
            return x
    raise Skipped(f"it takes none of the inputs that are tried ({refused})")


def build(model: Model, x: torch.Tensor) -> nn.Module:
    """Build a module for 4 classes as the engine does: torch's generator is keyed before."""
    torch.random.default_generator.manual_seed(3)
    module = model.build(tuple(x.shape[1:]), CLASSES)
    if not isinstance(module, nn.Module):
        raise Failed(f"build returned {type(module).__name__}; expected a torch.nn.Module")
    return module


def _model(subject: Subject, model: Model) -> Values:
    x = samples_for(model)
    module = build(model, x).eval()
    if set(module.parameters()) & set(build(model, x).parameters()):
        raise subject.failed(
            "build returned the module of an earlier call; expected a fresh one, or runs go on "
            "from each other"
        )
    if not any(p.requires_grad for p in module.parameters()):
        raise subject.failed(
            "its module has no parameters to train; expected some with requires_grad=True"
        )
    with torch.no_grad():
        return {"the parameters": dict(module.state_dict()), "the logits": module(x)}


def measure(subject: Subject, signal: Signal, chunk: int = 23, update_seed: int = 2) -> Values:
    """Return [23] or [23, d] numbers, asked for ``chunk`` samples at a time.

    Raises :class:`Skipped` for signals of the engine.
    """
    announced = subject.announced
    of_engine = announced is not None and announced.distribution == DISTRIBUTION
    if of_engine and subject.name in GRADIENT_SIGNALS:
        raise Skipped("the engine measures this signal for all clients at once")
    data = TinyData(train=23).load(0)
    x = torch.from_numpy(data.train_x)
    y = torch.from_numpy(data.train_y)
    flat = FlatModel(build(MLP(hidden=[6]), x).eval(), torch.device("cpu"))
    generator = torch.Generator().manual_seed(update_seed)
    update = torch.randn(flat.params.shape, generator=generator) * 0.1
    with torch.no_grad():
        logits = [flat.module(part) for part in x.split(chunk)]
        batches = list(zip(x.split(chunk), y.split(chunk), strict=True))
        call = SignalCall(signal, f"'{subject.name}'", flat)
        return {"the numbers": call.row(update, batches, logits)}


# --- analyses and reports -------------------------------------------------------------------------


def finished_run(analysis: Analysis) -> tuple[FinishedRun, Judgement]:
    """Return the analysis's view of a run that it applies to, and an attack's judgement.

    Raises :class:`Skipped` where it applies to none.
    """
    for groups in (False, True):
        w = world(frozenset(analysis.needs), groups=groups)
        if analysis.applies(w.job.described()):
            judged = _judge(w, answers_of(PlainLoss(), w))
            return finished(w.run, analysis), judged.judgement
    raise Skipped(
        "it applies to none of the settings that are tried: one plain, one with groups of clients "
        "and thresholds"
    )


def _analysis(subject: Subject, analysis: Analysis) -> Values:
    if type(analysis).analyse is Analysis.analyse:
        raise Skipped("it computes nothing of a run: it only draws")
    run, judgement = finished_run(analysis)
    findings = analysis.analyse(run, deepcopy(judgement))
    if findings is None:
        return {"its findings": None}
    numbers, arrays = checked(findings)
    return {"its findings": numbers.model_dump(mode="json"), "the arrays of its findings": arrays}


def _report(subject: Subject, report: Report) -> Values:
    raise Skipped("it draws a finished suite: run `fedbench leaderboard` with it")


_TRIALS: dict[str, Callable[[Subject, Any], Values]] = {
    "defense": _defense,
    "attack": _attack,
    "dataset": lambda subject, dataset: vars(load(subject, dataset)),
    "model": _model,
    "signal": measure,
    "analysis": _analysis,
    "report": _report,
}

# --- from data to a verdict -----------------------------------------------------------------------


def train_and_judge(subject: Subject, device: str = "cpu") -> None:
    """Train and judge one small run with a defense, data set, model or signal in it."""
    use = given_use(subject.cls, subject.params, subject.name)
    component = subject.make()
    changes: Values = {subject.kind: use, "attack": PlainLoss()}
    if subject.kind == "defense":
        changes["dataset"] = data_for(component)
    elif subject.kind == "dataset":
        load(subject, component)
        model = Registry.discover().get("model", component.default_model)
        changes["model"] = given_use(model.load(), name=model.name)
    elif subject.kind == "model":
        x = samples_for(component)
        tokens = 0 if x.is_floating_point() else 16
        sizes = {"train": 32, "holdout": 40, "shape": x.shape[1:], "tokens": tokens}
        changes["dataset"] = given_use(TinyData, sizes)
    else:
        reads = {"signal": subject.name, "needs": frozenset({subject.name})}
        by_signal = type("BySignal", (PlainLoss,), reads)()
        changes = {"signals": {subject.name: use}, "attack": by_signal}
    federation = {"rounds": 2, "local_epochs": 1, "local_batches": 1, "batch_size": 4}
    setting = setting_of(
        federation | {"optimizer": {"lr": 0.05}},
        audit={"every": 1, "nonmembers": 20},
        thresholds=[0.5, 0.6],
    )
    attack = changes["attack"]
    finished = train_job(setting, [attack], device=device, **changes)
    _judge(finished, answers_of(attack, finished))
