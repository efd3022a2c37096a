"""A small run of a component of each kind, and the named values it answered."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
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
from fedbench.core.process.ask import ask
from fedbench.core.process.channel import at_work, pass_on_interrupt
from fedbench.core.registry.components import Registry
from fedbench.core.registry.use import ComponentUse
from fedbench.core.run.analyse import checked, finished
from fedbench.core.run.checks import require_data
from fedbench.core.run.job import Job, SignalRequest
from fedbench.core.run.scene import Scene
from fedbench.core.run.scoring import Answers
from fedbench.core.run.scoring import ask as ask_attack
from fedbench.core.run.train import Trained, train
from fedbench.core.run.verdict import verdict
from fedbench.core.run.worker import run_job
from fedbench.core.signals.measure import GRADIENT_SIGNALS
from fedbench.core.signals.probes import SignalCall
from fedbench.core.store.reading import load_records
from fedbench.core.store.results import Results
from fedbench.core.words import describe_error
from fedbench.testing.observe import digests_of, seed_globals
from fedbench.testing.subject import Failed, Skipped, Subject
from fedbench.testing.worlds import PlainLoss, TinyData, World, given_use, job_of, setting_of, world


def trial(subject: Subject, made: Any = None, turned: bool = False) -> dict[str, Any]:
    """Name -> value of everything that ``made``, by default a fresh instance, answers. ``turned``:
    about the last target first.

    Raises :class:`Skipped` where it does not apply to the small run, and the engine's errors.
    """
    seed_globals(1)
    made = subject.make() if made is None else made
    try:
        return (
            _attack(made, turned)
            if subject.kind == "attack"
            else _TRIALS[subject.kind](subject, made)
        )
    except SkipCell as why:
        raise Skipped(f"it does not apply to the small federation of the checks: {why}") from why


# the clock of the second pass is so far ahead, for components that read whole seconds
_AHEAD_S = 1_000_003.0


def passes(subject: Subject) -> list[dict[str, str]]:
    """Digests of the answers of two runs and, of a passive attack, of a third that asks about the
    targets in reverse order.

    Made once for all checks, each in a fork of this process, in which the component has served no
    run yet. Raises :class:`Skipped` and ``UserError``.
    """
    if "passes" not in subject.notes:
        try:
            _share(subject)
            n = 3 if "passive attack" in subject.kinds else 2
            subject.notes["passes"] = [ask(partial(_pass, subject, i)) for i in range(n)]
        except (Skipped, UserError) as error:
            subject.notes["passes"] = error
        except BaseException as error:
            pass_on_interrupt(error)
            subject.notes["passes"] = UserError(located(error))
    if isinstance(found := subject.notes["passes"], BaseException):
        raise found
    if found[0].get("skipped"):
        raise Skipped(found[0]["skipped"])
    return found  # type: ignore[no-any-return]


def _share(subject: Subject) -> None:
    """Compute here what the forks share and the component takes no part in."""
    if "passive attack" in subject.kinds:
        world(subject.make().needs)
    elif subject.kind == "analysis" and subject.cls.analyse is not Analysis.analyse:
        finished_run(subject.make())
    elif subject.kind == "report":
        _records()
    elif subject.kind in ("defense", "attack"):
        train_defense(Defense())  # the first training of a process takes five times as long
    elif subject.kind == "dataset":
        import sklearn.datasets  # noqa: F401 - as the processes of runs do, see core/run/preload.py


def _pass(subject: Subject, i: int) -> dict[str, str]:
    ahead, now, now_ns = _AHEAD_S * (i == 1), time.time, time.time_ns
    later = patch.object(time, "time", lambda: now() + ahead)
    later_ns = patch.object(time, "time_ns", lambda: now_ns() + int(ahead * 1e9))
    with at_work(f"{subject}: runs"), later, later_ns:
        try:
            return digests_of(trial(subject, turned=i == 2))
        except Skipped as why:
            return {"skipped": str(why)}
        except BaseException as error:
            pass_on_interrupt(error)
            raise UserError(located(error)) from error


def located(error: BaseException) -> str:
    """The error's message, with the plugin's line where the engine has not added it."""
    return (
        str(error)
        if isinstance(error, UserError | RuntimeError | Failed) and str(error)
        else describe_error(error)
    )


def reference(subject: Subject) -> dict[str, str]:
    """Digests of the answers of the first pass. Raises :class:`Skipped` where a pass fails."""
    try:
        return passes(subject)[0]
    except UserError as error:
        raise Skipped("the small run fails, see `runs`") from error


# --- defenses -------------------------------------------------------------------------------------


def train_defense(
    made: Defense,
    members: tuple[int, ...] = (0, 1, 2, 3),
    samples: int = 480,
    model: type[Model] = MLP,
    **changes: Any,
) -> Trained:
    """A training of five clients, four of which defend. ``changes``: of the setting; of its
    federation field by field.
    """
    federation = {
        "clients": 5,
        "rounds": 2,
        "local_epochs": 1,
        "batch_size": 20,
        "optimizer": {"lr": 0.1, "momentum": 0.9},
    }
    defaults = {"audit": {"every": 1, "nonmembers": 20}, "thresholds": [0.5, 0.6]}
    setting = setting_of(
        **{**defaults, **changes, "federation": federation | changes.get("federation", {})}
    )
    data = given_use(TinyData, {"train": samples, "holdout": 400 + made.root_samples})
    job, parts, scene = job_of(
        setting, defense=given_use(made), dataset=data, model=net(model), members=members
    )
    return train(
        job, parts, scene, [SignalRequest(needs=frozenset({"loss"}), view="server")], lambda t: None
    )


def net(model: type[Model] = MLP) -> ComponentUse:
    """The use of a small network."""
    return given_use(model, {"hidden": [12]} if model is MLP else {}, "net")


def _defense(subject: Subject, made: Defense) -> dict[str, Any]:
    """What is measured of every upload and of the final model, and the facts."""
    trained = train_defense(made)
    return {
        "the loss under the uploads": trained.signals,
        "the predictions of the final model": trained.predicted,
        "the clients' models": trained.assignment,
        "its facts": trained.facts,
    }


# --- attacks --------------------------------------------------------------------------------------


def asked(made: Attack, seed: int = 0, **audit: Any) -> tuple[Answers, World]:
    """The answers for all targets, and the training. A passive attack shares a training, an active
    one takes part in its own.
    """
    active = isinstance(made, ActiveAttack)
    seen = trained_with(made, seed, **audit) if active else world(made.needs, seed=seed, **audit)
    return answers_of(made, seen), seen


def answers_of(made: Attack, seen: World) -> Answers:
    """Its answers about a finished training."""
    return ask_attack(seen.run, made)


def trained_with(
    made: Attack,
    seed: int = 0,
    adversary: dict[str, Any] | None = None,
    model: type[Model] = MLP,
    device: str = "cpu",
    **audit: Any,
) -> World:
    """A training of four clients, the last of which the attack controls, with full knowledge unless
    ``adversary`` says less.
    """
    federation = {
        "clients": 4,
        "rounds": 3,
        "local_epochs": 1,
        "batch_size": 20,
        "optimizer": {"lr": 0.2},
    }
    asked = {"every": 2, "targets": "honest", "members": 40, "nonmembers": 40, **audit}
    inside = {"clients": 1, "knowledge": "rule", "mask_set": 12, **(adversary or {})}
    setting = setting_of(audit=asked, adversary=inside, federation=federation)
    use = given_use(made, name="attack")
    job, parts, scene = job_of(
        setting, attack=use, made=made, members=(), seed=seed, model=net(model)
    )
    job = replace(job, device=device)
    return World(
        job=job, parts=parts, scene=scene, trained=train(job, parts, scene, [made], lambda t: None)
    )


def _attack(made: Attack, turned: bool) -> dict[str, Any]:
    """Scores of every target, and what an active attack did to the federation. Raises ``UserError``
    for invalid scores.
    """
    if turned:
        seen = world(made.needs)
        scene = replace(seen.scene, audits=seen.scene.audits[::-1])
        return _by_target(scene, answers_of(made, replace(seen, scene=scene)))
    found, seen = asked(made)
    verdict(seen.run, seen.job.cells[0], found)
    for scores, rounds in zip(found.scores, found.by_round, strict=True):
        if rounds is not None and not np.array_equal(
            rounds[-1].argsort(kind="stable"), scores.argsort(kind="stable")
        ):
            raise UserError(
                "the last row of score_rounds ranks the candidates otherwise than score; expected "
                "the same order"
            )
    said = _by_target(seen.scene, found)
    if isinstance(made, ActiveAttack):
        said["the signals of its training"] = seen.trained.signals
        said["the predictions of the final model"] = seen.trained.predicted
    return said


def _by_target(scene: Scene, found: Answers) -> dict[str, Any]:
    answers = zip(scene.audits, found.scores, found.by_round, strict=True)
    return {
        f"the score of {audit.target.words()}": [scores, rounds]
        for audit, scores, rounds in answers
    }


# --- data sets, models, signals -------------------------------------------------------------------


def loaded(subject: Subject, made: Dataset, seed: int = 0) -> Data:
    """The data, validated. Raises :class:`Skipped` where they are not on this machine."""
    if not type(made).here():
        raise Skipped("its data are not on this machine, and a check downloads nothing")
    return require_data(made.load(seed), subject.name)


def samples(subject: Subject, made: Model) -> tuple[torch.Tensor, int]:
    """([6, *input] samples of a common shape that the model takes, 4 classes). Raises
    :class:`Skipped` where it takes none.
    """
    g = torch.Generator().manual_seed(5)
    common = [
        torch.randn(6, *shape, generator=g)
        for shape in ((3, 32, 32), (1, 28, 28), (1, 8, 8), (20,), (12, 5))
    ]
    refused = ""
    for x in (*common, torch.randint(0, 16, (6, 12), generator=g)):
        try:
            built(made, x, 4)
        except UserError as error:
            refused = str(error)
        else:
            return x, 4
    raise Skipped(f"it takes none of the inputs that are tried ({refused})")


def built(made: Model, x: torch.Tensor, classes: int) -> nn.Module:
    """A module, built as the engine builds it: torch's generator is keyed before."""
    torch.random.default_generator.manual_seed(3)
    module = made.build(tuple(x.shape[1:]), classes)
    if not isinstance(module, nn.Module):
        raise Failed(f"build returned {type(module).__name__}; expected a torch.nn.Module")
    return module


def _model(subject: Subject, made: Model) -> dict[str, Any]:
    """Parameters and logits."""
    x, classes = samples(subject, made)
    module = built(made, x, classes).eval()
    if set(module.parameters()) & set(built(made, x, classes).parameters()):
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


def measure(subject: Subject, made: Signal, chunk: int = 23) -> dict[str, Any]:
    """[23] or [23, d] numbers, asked for ``chunk`` samples at a time. Raises :class:`Skipped` for
    signals of the engine.
    """
    if (
        subject.found is not None
        and subject.found.distribution == DISTRIBUTION
        and subject.name in GRADIENT_SIGNALS
    ):
        raise Skipped("the engine measures this signal for all clients at once")
    data = TinyData(train=23).load(0)
    x, y = torch.from_numpy(data.train_x), torch.from_numpy(data.train_y)
    flat = FlatModel(built(MLP(hidden=[6]), x, data.n_classes).eval(), torch.device("cpu"))
    update = torch.randn(flat.params.shape, generator=torch.Generator().manual_seed(2)) * 0.1
    with torch.no_grad():
        logits = [flat.module(part) for part in x.split(chunk)]
        pairs = list(zip(x.split(chunk), y.split(chunk), strict=True))
        return {
            "the numbers": SignalCall(made, f"'{subject.name}'", flat).row(update, pairs, logits)
        }


# --- analyses and reports -------------------------------------------------------------------------


def finished_run(made: Analysis) -> tuple[FinishedRun, Judgement]:
    """The analysis's view of a run that it applies to, and an attack's judgement. Raises
    :class:`Skipped`.
    """
    for groups in (False, True):
        seen = world(made.needs, groups=groups)
        if made.applies(seen.job.described()):
            judged = verdict(seen.run, seen.job.cells[0], answers_of(PlainLoss(), seen))
            return finished(seen.run, made), judged.judgement
    raise Skipped(
        "it applies to none of the settings that are tried: one plain, one with groups of clients "
        "and thresholds"
    )


def _analysis(subject: Subject, made: Analysis) -> dict[str, Any]:
    """Its findings."""
    if type(made).analyse is Analysis.analyse:
        raise Skipped("it computes nothing of a run: it only draws")
    run, judgement = finished_run(made)
    findings = made.analyse(run, deepcopy(judgement))
    if findings is None:
        return {"its findings": None}
    found, arrays = checked(findings)
    return {"its findings": found.model_dump(mode="json"), "the arrays of its findings": arrays}


@cache
def _records() -> tempfile.TemporaryDirectory[str]:
    """A results folder with records of two defenses and two seeds."""
    folder = tempfile.TemporaryDirectory(prefix="fedbench-check-")
    for seed in (0, 1):
        for name in ("plain", "other"):
            job, *_ = job_of(setting_of(), defense=given_use(Defense, name=name), seed=seed)
            run_in(Path(folder.name), job)
    return folder


def _report(made: Report) -> dict[str, Any]:
    """Every file it writes, and its summary."""
    with tempfile.TemporaryDirectory(prefix="fedbench-check-") as name:
        folder = Path(shutil.copytree(_records().name, name, dirs_exist_ok=True))
        before = {path for path in folder.rglob("*") if path.is_file()}
        told = made.write(folder, plots=False)
        if not isinstance(told, Path) or not told.exists():
            raise Failed(f"write returned {told!r:.100}; expected the path of a file that it wrote")
        said = {
            str(p.relative_to(folder)): p.read_bytes()
            for p in sorted(folder.rglob("*"))
            if p.is_file() and p not in before
        }
        return said | {"the summary": made.summary(folder)}


_TRIALS: dict[str, Callable[[Subject, Any], dict[str, Any]]] = {
    "defense": _defense,
    "dataset": lambda subject, made: vars(loaded(subject, made)),
    "model": _model,
    "signal": measure,
    "analysis": _analysis,
    "report": lambda subject, made: _report(made),
}

# --- from data to a record ------------------------------------------------------------------------


def run_in(folder: Path, job: Job) -> None:
    """Run a job as `fedbench run` does, and read its record back. Raises :class:`Skipped` and
    :class:`Failed`.
    """
    cell = job.cells[0]
    results = Results.create(folder, job.suite)
    ask(lambda: run_job(replace(job, results=str(folder)), lambda kind, what: None))
    results.set_manifest([*results.marker()["cells"], cell.stem], "Tiny")
    record = next(loaded.record for loaded in load_records(folder) if loaded.record.key == cell.key)
    if record.outcome == "skipped":
        raise Skipped(f"it does not apply to the small federation of the checks: {record.reason}")
    if record.outcome != "ok":
        raise Failed(record.reason)


def job_with(subject: Subject) -> Job:
    """The job of one small run with a defense, data set, model or signal in it."""
    own, made = given_use(subject.cls, subject.params, subject.name), subject.make()
    federation = {
        "clients": 4,
        "rounds": 2,
        "local_epochs": 1,
        "local_batches": 2,
        "batch_size": 10,
        "optimizer": {"lr": 0.05},
    }
    uses: dict[str, Any] = {}
    judge: Attack = PlainLoss()
    if subject.kind == "defense":
        sizes = {"train": 480, "holdout": 400 + made.root_samples}
        uses = {"defense": own, "dataset": given_use(TinyData, sizes)}
    elif subject.kind == "dataset":
        loaded(subject, made)
        model = Registry.discover().get("model", made.default_model)
        uses = {"dataset": own, "model": given_use(model.load(), name=model.name)}
    elif subject.kind == "model":
        x, classes = samples(subject, made)
        data = {"train": 32, "holdout": 40, "shape": x.shape[1:], "classes": classes}
        uses = {
            "model": own,
            "dataset": given_use(TinyData, data | {"tokens": 0 if x.is_floating_point() else 16}),
        }
        federation |= {"rounds": 1, "local_batches": 1, "batch_size": 4}
    else:
        measure(subject, made)
        judge = type(
            "BySignal", (PlainLoss,), {"signal": subject.name, "needs": frozenset({subject.name})}
        )()
        uses = {"attack": given_use(judge)}
    setting = setting_of(
        federation=federation, audit={"every": 1, "nonmembers": 20}, thresholds=[0.5, 0.6]
    )
    job, *_ = job_of(setting, made=judge, **uses)
    return (
        replace(job, signals={**job.signals, subject.name: own})
        if subject.kind == "signal"
        else job
    )
