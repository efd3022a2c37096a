"""Train one federation and keep what its attacks and analyses need."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from fedbench.core.contract.attack import ANSWERS, EXCLUDED, LEVELS, ActiveAttack, Attack
from fedbench.core.contract.components import Data, Model
from fedbench.core.contract.defense import FactValue
from fedbench.core.contract.errors import Diverged, SkipCell
from fedbench.core.contract.hooks import DISTRIBUTION
from fedbench.core.contract.samples import MemberData
from fedbench.core.federation.guard import Checks, PhaseError
from fedbench.core.federation.loop import Training, answered, answers
from fedbench.core.federation.setup import Insider, Setup
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.numerics.per_sample import why_one_by_one
from fedbench.core.numerics.rng import key_for
from fedbench.core.numerics.wrappers import in_training_form, wrap
from fedbench.core.population.audit import AuditSet
from fedbench.core.process.channel import at_work
from fedbench.core.run.job import Job, Look
from fedbench.core.run.needs import (
    measurable,
    models_of,
    needed_rows,
    needed_signals,
    require_use,
    signals_of,
)
from fedbench.core.run.process import log_failure
from fedbench.core.run.scene import (
    Parts,
    Scene,
    UsedSamples,
    defense_of,
    held_out,
    own_data,
    quirks,
    samples_of,
    used_samples,
)
from fedbench.core.signals.measure import GRADIENT_SIGNALS, PRE_DEFENSE, Recorder
from fedbench.core.store.record import Utility
from fedbench.core.words import one_line

_DRAWS = 100  # of initial models, until each is picked by enough clients


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What is kept of a training: signals over the pool, and the final model's worth."""

    rows: list[int]
    rounds: np.ndarray
    signals: dict[str, np.ndarray]
    held_out: np.ndarray
    test_correct: np.ndarray
    history: list[dict[str, Any]]
    measured: dict[str, float]
    usage: UsedSamples
    # (round, malicious client) of rows that were not finite
    rejected: tuple[tuple[int, int], ...] = ()
    # [R, K] client -> global model
    assignment: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    # [n_test] final classes
    predicted: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    # [s, pool ++ shadow, C] of the final global models, where shadow models are asked for
    logits: np.ndarray | None = None
    facts: dict[str, FactValue] = field(default_factory=dict)  # what the defense says of its run
    # what it said that cannot be recorded: no reason to lose a training
    complaints: list[str] = field(default_factory=list)
    # why a signal was not measured: it costs the cells that need it
    failed: dict[str, str] = field(default_factory=dict)
    # on how it was trained, for every record of the run
    notes: list[str] = field(default_factory=list)
    # on how a signal was measured, for the cells that need it
    signal_notes: dict[str, str] = field(default_factory=dict)

    @property
    def utility(self) -> Utility:
        """What the final model is worth."""
        return Utility(accuracy=float(self.test_correct.mean()), n_test=len(self.test_correct))

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """What is stored of a training beside every cell's scores: [n_test] test_correct and, where
        there are several global models, [K] the one that serves each client in the end.
        """
        several = self.assignment.max(initial=0) > 0
        return {"test_correct": self.test_correct} | (
            {"assignment": self.assignment[-1].astype(np.int32)} if several else {}
        )


def train(
    job: Job,
    parts: Parts,
    scene: Scene,
    attacks: Sequence[Attack | Look],
    on_round: Callable[[int], None],
) -> Trained:
    """The run, from the first round to the last. Of a passive attack what it looks at is enough; an
    active one takes part.
    """
    device = torch.device(job.device)
    wanted = measurable(job, needed_signals(attacks, job.looks.values()))
    setup = _setup(job, parts, scene, attacks, wanted, device)
    forward, failed = signals_of(job, wanted)
    x, y = samples_of(scene, scene.pool, device)
    recorder = Recorder(
        setup.flat,
        x,
        y,
        forward,
        gradients=bool(wanted & GRADIENT_SIGNALS),
        rows=needed_rows(job, len(setup.initial), attacks),
        coalitions=job.coalitions or (job.averaged,),
        sizes=setup.weighing,
        one_start=len(setup.initial) == 1 and setup.config.max_delay == 0,
        names={n: str(job.signals[n.removesuffix(PRE_DEFENSE)]) for n in forward}
        | {n: f"'{n}' ({DISTRIBUTION} {job.provenance.fedbench})" for n in GRADIENT_SIGNALS},
        on_failure=log_failure,
        n_rounds=len(job.audited_rounds),
    )
    recorder.failed |= failed
    require_use(recorder.refused, (*attacks, *job.looks.values()))
    training = _good_start(job, parts, scene, setup)
    recorder.answer = partial(answered, training) if answers(training.setup) else None
    shadow_models = any(a.needs_shadow_models for a in attacks)
    return _run_rounds(job, scene, training, recorder, on_round, shadow_models)


def _setup(
    job: Job,
    parts: Parts,
    scene: Scene,
    attacks: Sequence[Attack | Look],
    wanted: set[str],
    device: torch.device,
) -> Setup:
    flat, initial = fresh_models(
        job, parts.model, scene.data, device, models_of(parts.defense, job.clients)
    )
    clients = [own_data(scene, k, device) for k in range(job.clients)]
    return Setup(
        config=job.setting.federation,
        seed=job.seed,
        flat=flat,
        clients=clients,
        n_classes=scene.data.n_classes,
        defense=parts.defense,
        members=job.members,
        initial=initial,
        insider=_insider(job, scene, attacks, device),
        root=MemberData(*samples_of(scene, scene.root, device)) if len(scene.root) else None,
        thresholds=None if scene.thresholds is None else tuple(scene.thresholds.tolist()),
        keep_unprotected=any(n.endswith(PRE_DEFENSE) for n in wanted),
        expected_malicious=job.expected_malicious,
    )


def _good_start(job: Job, parts: Parts, scene: Scene, setup: Setup) -> Training:
    """The federation from initial models that each have their share of the members (IFCA's
    find_good_initializer, docs/methods/clustering.md#ifca); raises ``Diverged`` when none of the
    draws has.
    """
    n, least = len(setup.initial), setup.defense.least_share
    for draw in range(_DRAWS):
        if draw:
            _, initial = fresh_models(job, parts.model, scene.data, setup.device, n, draw)
            # what it learnt belongs to the last draw
            fresh = defense_of(job.defense, job.defending)
            setup = replace(setup, initial=initial, defense=fresh)
        training = Training(setup)
        if n == 1 or not least or not setup.members:
            return training
        picked = np.bincount(training.first_choice(), minlength=n) / len(setup.members)
        if picked.min() >= least:
            return training
    raise Diverged(
        f"none of {_DRAWS} draws of {n} initial models had each picked by {least:.0%} of the "
        "members"
    )


def _insider(
    job: Job, scene: Scene, attacks: Sequence[Attack | Look], device: torch.device
) -> Insider | None:
    """The run's adversary with what its setting grants it; raises ``SkipCell`` where that is less
    than it needs.
    """
    attack = next((a for a in attacks if isinstance(a, ActiveAttack)), None)
    if attack is None or job.adversary is None:
        return None
    granted = job.adversary.knowledge
    if LEVELS.index(granted) < LEVELS.index(attack.knowledge):
        raise SkipCell(
            f"the attack needs the knowledge '{attack.knowledge}', but the setting's adversary has "
            f"'{granted}'"
        )
    x, y = samples_of(scene, scene.asked, device)
    mask_x, mask_y = samples_of(scene, scene.mask, device)
    return Insider(
        attack=attack,
        malicious=job.malicious,
        knowledge=granted,
        start_round=job.adversary.start_round,
        x=x,
        y=y,
        mask_x=mask_x,
        mask_y=mask_y,
    )


def _run_rounds(
    job: Job,
    scene: Scene,
    training: Training,
    recorder: Recorder,
    on_round: Callable[[int], None],
    shadow_models: bool,
) -> Trained:
    device = training.setup.device
    test_x = torch.from_numpy(scene.data.test_x).to(device)
    audited = job.audited_rounds
    history: list[dict[str, Any]] = []
    rejected: list[tuple[int, int]] = []
    assignments: list[tuple[int, ...]] = []
    before: tuple[int, ...] = ()
    predicted, began, signals = np.zeros(0, np.int64), _now(), np.zeros(2)
    for result in training.rounds():
        rejected += [(result.uploads.round, k) for k in result.rejected]
        if (t := result.uploads.round) in audited:
            mark = _now()
            recorder.record(result)
            predicted = predicted_by(training, test_x)
            right = predicted == scene.data.test_y
            row: dict[str, Any] = {
                "round": t,
                "accuracy": float(right.mean()),
                "train_loss": train_loss(training),
            }
            if scene.groups is not None:
                row["group_accuracy"] = [
                    float(right[scene.test_group == g].mean())
                    for g in range(len(scene.groups.names))
                ]
            history.append(row | _clusters(result.assignment, before, len(training.models)))
            assignments.append(result.assignment)
            before = result.assignment
            signals += _now() - mark
        on_round(t)
    cpu, wall = _now() - began - signals
    everyone = np.concatenate([scene.pool, scene.shadow])
    facts, complaints = _facts(training)
    return Trained(
        rows=recorder.rows,
        rounds=np.array(recorder.rounds),
        signals=recorder.arrays(),
        held_out=held_out(scene, training.clients),
        test_correct=predicted == scene.data.test_y,
        history=history,
        usage=used_samples(scene, training.trainer.usage, training.setup.malicious),
        measured={
            "train_cpu_s": float(cpu),
            "train_wall_s": float(wall),
            "signals_cpu_s": float(signals[0]),
        },
        rejected=tuple(rejected),
        assignment=np.array(assignments),
        predicted=predicted,
        logits=final_logits(training, samples_of(scene, everyone, device)[0])
        if shadow_models
        else None,
        facts=facts,
        complaints=complaints,
        failed=recorder.failed,
        notes=_notes(training) + quirks(job.setting.federation),
        signal_notes=recorder.notes,
    )


def _now() -> np.ndarray:
    """[2] seconds of this process's CPU, and of the clock, without those of the checks of what
    plugins do.
    """
    return np.array([time.process_time() - Checks.cpu_s, time.perf_counter() - Checks.wall_s])


def _facts(training: Training) -> tuple[dict[str, FactValue], list[str]]:
    """(what the defense says of its run, why it could not be recorded)."""
    try:
        return training.facts(), []
    except PhaseError as error:
        log_failure(error)
        return {}, [one_line(str(error), 1000)]


def _notes(training: Training) -> list[str]:
    """How the clients were trained and the per-sample gradients that the training itself asked for
    (a defense, or an adversary's bench) computed, and whether a defense answers for the global
    models.
    """
    modes = (True, False) if training.setup.insider is not None else (True,)
    of_gradients = (why_one_by_one(training.setup.flat.module, mode) for mode in modes)
    why = [why for why in (training.trainer.note, *of_gradients) if why]
    return [*why, ANSWERS] if answers(training.setup) else why


def _clusters(
    assignment: tuple[int, ...], before: tuple[int, ...], n_models: int
) -> dict[str, Any]:
    """Sizes of the clusters, and how many clients moved since the last audited round; nothing with
    one model.
    """
    if n_models == 1 or n_models == len(assignment):
        return {}
    moved = sum(a != b for a, b in zip(assignment, before, strict=True)) if before else 0
    return {"clusters": np.bincount(assignment, minlength=n_models).tolist(), "moved": moved}


def fresh_models(
    job: Job,
    builder: Model,
    data: Data,
    device: torch.device,
    n: int,
    draw: int = 0,
    purpose: str = "init",
) -> tuple[FlatModel, torch.Tensor]:
    """A module, and [n, P] keyed initial parameters."""

    def build(j: int) -> FlatModel:
        torch.random.default_generator.manual_seed(
            key_for(job.seed, purpose, round=draw, client=j) >> 1
        )
        with at_work(f"model {job.model}"):
            built = builder.build(data.input_shape, data.n_classes)
        federation = job.setting.federation
        module = in_training_form(built, federation.precision, federation.memory_format)
        return FlatModel(wrap(module, data), device)

    first = build(0)
    return first, torch.stack([first.params.clone(), *(build(j).params for j in range(1, n))])


def kinds_of(audit: AuditSet, trained: Trained) -> np.ndarray:
    """[n] MEMBER, OFL, IFL, or EXCLUDED where the defense kept the sample out of training."""
    return np.where(np.isin(audit.ids, trained.held_out), EXCLUDED, audit.kind)


# --- evaluation of the global models --------------------------------------------------------------


def final_logits(training: Training, x: torch.Tensor) -> np.ndarray:
    """[s, n, C]: what each of the global models answers."""
    return np.stack(
        [_answers(training, j, x).float().cpu().numpy() for j in range(len(training.models))]
    )


def predicted_by(training: Training, x: torch.Tensor) -> np.ndarray:
    """[n_test] the class that the global model gives each sample.

    With several global models, sample i is put to the model of client i mod K: the mean is then the
    clients' mean accuracy, and a sample still has one answer, which paired tests need.
    """
    out = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    clients = torch.arange(len(x), device=x.device) % len(training.assignment)
    for j in sorted(set(training.assignment.values())):
        mine = torch.isin(
            clients,
            torch.tensor([k for k, m in training.assignment.items() if m == j], device=x.device),
        )
        if bool(mine.any()):
            out[mine] = _answers(training, j, x[mine]).argmax(1)
    return out.cpu().numpy()


def train_loss(training: Training) -> float:
    """Mean cross-entropy of each client's global model on (up to 200 of) its training samples."""
    clients, found = training.setup.clients, torch.zeros(len(training.setup.clients))
    for j in sorted(set(training.assignment.values())):
        mine = [k for k, model in training.assignment.items() if model == j]
        some = [
            (clients[k].x[pick], clients[k].y[pick])
            for k in mine
            for pick in [clients[k].trainable[:200]]
        ]
        x, y = (torch.cat(parts) for parts in zip(*some, strict=True))
        losses = torch.nn.functional.cross_entropy(_logits(training, j, x), y, reduction="none")
        found[mine] = (
            torch.stack([own.mean() for own in losses.split([len(y) for _, y in some])])
            .float()
            .cpu()
        )
    return float(found.mean())


def _answers(training: Training, j: int, x: torch.Tensor) -> torch.Tensor:
    return answered(training, j, _logits(training, j, x))


def _logits(training: Training, j: int, x: torch.Tensor) -> torch.Tensor:
    return training.setup.flat.logits(training.state[j], x)
