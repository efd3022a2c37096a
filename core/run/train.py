"""Train one federation and keep what its attacks and analyses need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedbench.core.contract.attack import ANSWERS, EXCLUDED, LEVELS, ActiveAttack
from fedbench.core.contract.components import Data, Model
from fedbench.core.contract.defense import FactValue, unserved_by
from fedbench.core.contract.errors import Diverged, SkipCell
from fedbench.core.contract.hooks import DISTRIBUTION
from fedbench.core.contract.samples import MemberData
from fedbench.core.contract.task import Task, unserved
from fedbench.core.federation.guard import PhaseError
from fedbench.core.federation.loop import Training, answered, answers
from fedbench.core.federation.setup import Insider, Setup
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.numerics.per_sample import why_one_by_one
from fedbench.core.numerics.rng import key_for
from fedbench.core.numerics.wrappers import in_training_form, wrap
from fedbench.core.population.audit import AuditSet
from fedbench.core.process.ask import is_own
from fedbench.core.process.channel import at_work
from fedbench.core.recorded.components import RecordedData
from fedbench.core.recorded.replay import Replay
from fedbench.core.run.job import Job
from fedbench.core.run.measurements import (
    Audits,
    UsedSamples,
    final_logits,
    held_out,
    now,
    used_samples,
)
from fedbench.core.run.needs import (
    Requests,
    make_signals,
    measured_signals,
    needed_rows,
    require_use,
)
from fedbench.core.run.pretraining import pretrain
from fedbench.core.run.process import log_failure
from fedbench.core.run.scene import (
    Parts,
    Scene,
    client_data,
    defense_of,
    samples_of,
)
from fedbench.core.signals.measure import GRADIENT_SIGNALS, PRE_DEFENSE, Recorder
from fedbench.core.store.record import Utility
from fedbench.core.words import one_line

if TYPE_CHECKING:
    from fedbench.core.run.shadow_models import ShadowLogits

OnRound = Callable[[int, dict[str, Any] | None], None]
"""called after a round with its number and, where it is audited, its row of the history"""
_DRAWS = 100  # of initial models, until each is picked by enough clients
_SAW_NONMEMBERS = (
    "validation saw the non-members: each client validates on its test part, which the attacks are "
    "asked about"
)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Signals over the pool and the worth of the final model: all that is kept of a training."""

    n_models: int
    """number of global models, s"""
    rows: list[int]
    """ids of the measured rows, [M]"""
    rounds: np.ndarray
    """the audited rounds, [R]"""
    signals: dict[str, np.ndarray]
    """[R, M, N] of each signal, over the pool"""
    usage: UsedSamples
    """what was trained on"""
    held_out: np.ndarray
    """sorted ids of samples that clients keep out of training"""
    test_correct: np.ndarray
    """[n_test] utility of the final model: of classes, whether it is right"""
    predicted: np.ndarray
    """[n_test] the classes it gives; empty where the task has no such prediction"""
    assignment: np.ndarray
    """[R, K] the global model of each client"""
    shares: np.ndarray
    """[G, R, K] each client's share in the mean of each coalition, where that is measured"""
    logits: np.ndarray | None
    """[s, pool ++ shadow, C] of the final global models, where shadow models are asked for"""
    history: list[dict[str, Any]]
    """a row for each audited round"""
    measured: dict[str, float]
    """seconds of training and of measuring signals"""
    rejected: list[tuple[int, int]]
    """(round, malicious client) of rows that were not finite"""
    facts: dict[str, FactValue]
    """what the defense reports of its run"""
    complaints: list[str]
    """facts that cannot be recorded: no reason to lose a training"""
    failed: dict[str, str]
    """signal -> why it was not measured: it costs the cells that need it"""
    notes: list[str]
    """on how it was trained, for every record of the run"""
    signal_notes: dict[str, str]
    """signal -> how it was measured, for the cells that need it"""
    unserved: dict[str, str]
    """signal -> why it does not serve the task; cells that need it are skipped"""
    measure: dict[str, Any]
    """name, unit, range and direction of the utility"""

    @property
    def utility(self) -> Utility:
        """The worth of the final model."""
        values = self.test_correct
        return Utility(accuracy=float(values.mean()), n_test=len(values), **self.measure)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays that are stored beside every cell's scores: [n_test] test_correct and, where there
        are several global models, [K] the one that serves each client in the end.
        """
        arrays = {"test_correct": self.test_correct}
        if self.assignment.max(initial=0) > 0:
            arrays["assignment"] = self.assignment[-1].astype(np.int32)
        return arrays


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run, ready to be judged."""

    job: Job
    scene: Scene
    trained: Trained
    shadows: ShadowLogits | None = None
    """the attacker's own models, where an attack wants some"""


def train(
    job: Job,
    parts: Parts,
    scene: Scene,
    attacks: Requests,
    on_round: OnRound,
) -> Trained:
    """Train the run from the first round to the last. Of a passive attack its request is enough; an
    active one takes part.
    """
    if reason := unserved_by(parts.defense, scene.data.task):
        raise SkipCell(reason)
    names = measured_signals(job, attacks)
    setup = _setup(job, parts, scene, attacks, names)
    recorder = _recorder(job, scene, setup, attacks, names)
    training: Training
    if isinstance(scene.data, RecordedData):
        training = Replay(setup, scene.data.rounds(), scene.data.optional)
    else:
        training = _good_start(job, parts, scene, setup)
    if answers(training.setup):
        recorder.answer = partial(answered, training)
    shadow_models = any(attack.needs_shadow_models for attack in attacks)
    return _run_rounds(
        job,
        scene,
        training,
        recorder,
        on_round,
        shadow_models,
    )


# --- before round 1 -------------------------------------------------------------------------------


def _setup(
    job: Job,
    parts: Parts,
    scene: Scene,
    attacks: Requests,
    names: set[str],
) -> Setup:
    device = torch.device(job.device)
    n_models = parts.defense.n_models or job.clients
    flat, initial = fresh_models(job, parts.model, scene.data, device, n_models)
    root = MemberData(*samples_of(scene, scene.root, device)) if len(scene.root) else None
    thresholds = None if scene.thresholds is None else tuple(scene.thresholds.tolist())
    return Setup(
        config=job.setting.federation,
        seed=job.seed,
        flat=flat,
        clients=[client_data(scene, k, device) for k in range(job.clients)],
        n_classes=scene.data.n_classes,
        defense=parts.defense,
        members=job.members,
        initial=initial,
        insider=_insider(job, scene, attacks, device),
        root=root,
        thresholds=thresholds,
        keep_unprotected=any(name.endswith(PRE_DEFENSE) for name in names),
        expected_malicious=job.expected_malicious,
    )


def _recorder(
    job: Job,
    scene: Scene,
    setup: Setup,
    attacks: Requests,
    names: set[str],
) -> Recorder:
    """Return the recorder of the signals. Raises ``UserError`` where there is room for none."""
    signals, failed = make_signals(job, names)
    task = scene.data.task
    reasons = {name: unserved(task, s.tasks, f"signal '{name}'") for name, s in signals.items()}
    signals = {name: signal for name, signal in signals.items() if not reasons[name]}
    engine = f"({DISTRIBUTION} {job.provenance.fedbench})"
    parties = {name: f"'{name}' {engine}" for name in GRADIENT_SIGNALS}
    uses = {name: job.signals[name.removesuffix(PRE_DEFENSE)] for name in signals}
    parties |= {name: str(use) for name, use in uses.items()}
    x, y = samples_of(scene, scene.pool, setup.device)
    recorder = Recorder(
        setup.flat,
        x,
        y,
        signals,
        gradients=bool(names & GRADIENT_SIGNALS),
        rows=needed_rows(job, len(setup.initial), attacks),
        coalitions=job.coalitions or (job.averaged,),
        sizes=setup.weighing,
        one_start=len(setup.initial) == 1 and setup.config.max_delay == 0,
        names=parties,
        own={name for name, use in uses.items() if is_own(use.distributions)},
        on_failure=log_failure,
        n_rounds=len(job.audited_rounds),
        unserved={name: reason for name, reason in reasons.items() if reason},
    )
    recorder.failed |= failed
    require_use(recorder.refused, (*attacks, *job.requests.values()))
    return recorder


def _insider(
    job: Job,
    scene: Scene,
    attacks: Requests,
    device: torch.device,
) -> Insider | None:
    """Return the run's adversary with what its setting grants it; raises ``SkipCell`` where that is
    less than it needs.
    """
    attack = next((a for a in attacks if isinstance(a, ActiveAttack)), None)
    if attack is None or job.adversary is None:
        return None
    if reason := unserved(scene.data.task, attack.tasks, "the attack"):
        raise SkipCell(reason)
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


def _good_start(
    job: Job,
    parts: Parts,
    scene: Scene,
    setup: Setup,
) -> Training:
    """Return the federation from initial models that each have their share of the members (IFCA's
    find_good_initializer, docs/methods/clustering.md#ifca); raises ``Diverged`` when none of the
    draws has.
    """
    n = len(setup.initial)
    least = setup.defense.least_share
    for draw in range(_DRAWS):
        if draw:
            _, initial = fresh_models(
                job,
                parts.model,
                scene.data,
                setup.device,
                n,
                draw,
            )
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


def fresh_models(
    job: Job,
    builder: Model,
    data: Data,
    device: torch.device,
    n: int,
    draw: int = 0,
    purpose: str = "init",
) -> tuple[FlatModel, torch.Tensor]:
    """Return a module, and [n, P] keyed initial parameters."""
    config = job.setting.federation

    def build(j: int) -> FlatModel:
        key = key_for(job.seed, purpose, round=draw, client=j) >> 1
        torch.manual_seed(key)
        with at_work(f"model {job.model}"):
            module = builder.build(data.input_shape, data.n_classes).to(device)
            pretrain(job, builder, module, data, key)
        form = config.precision, config.memory_format, config.compile
        module = in_training_form(module, *form)
        return FlatModel(wrap(module, data), device, data.task)

    first = build(0)
    return first, torch.stack([first.params.clone(), *(build(j).params for j in range(1, n))])


# --- rounds ---------------------------------------------------------------------------------------


def _run_rounds(
    job: Job,
    scene: Scene,
    training: Training,
    recorder: Recorder,
    on_round: OnRound,
    shadow_models: bool,
) -> Trained:
    audits = Audits(scene, training, recorder, job.setting.audit.precision)
    rejected = []
    began = now()
    for result in training.rounds():
        t = result.uploads.round
        rejected += [(t, k) for k in result.rejected]
        measured = None
        if t in job.audited_rounds:
            audits.add(result)
            measured = audits.history[-1]
        on_round(t, measured)
    cpu, wall = now() - began - audits.seconds
    if isinstance(training, Replay):
        cpu = wall = 0.0  # it was trained elsewhere
    logits = None
    if shadow_models:
        everything = np.concatenate([scene.pool, scene.shadow])
        logits = final_logits(training, samples_of(scene, everything, training.setup.device)[0])
    facts, complaints = _facts(training)
    return Trained(
        n_models=len(training.models),
        rows=recorder.rows,
        rounds=np.array(recorder.rounds),
        signals=recorder.arrays(),
        usage=used_samples(scene, training.trainer.usage, training.setup.malicious),
        held_out=held_out(scene, training.clients),
        test_correct=audits.values,
        predicted=audits.predicted,
        assignment=np.array(audits.assignments),
        shares=recorder.shares,
        logits=logits,
        history=audits.history,
        measured={
            "train_cpu_s": float(cpu),
            "train_wall_s": float(wall),
            "signals_cpu_s": float(audits.seconds[0]),
        },
        rejected=rejected,
        facts=facts,
        complaints=complaints,
        failed=recorder.failed,
        notes=_notes(training),
        signal_notes=recorder.notes,
        unserved=recorder.unserved,
        measure=_measure(scene.data.task),
    )


def _measure(task: Task) -> dict[str, Any]:
    utility = task.utilities[0]
    return {name: getattr(utility, name) for name in ("name", "unit", "low", "high", "direction")}


def _facts(training: Training) -> tuple[dict[str, FactValue], list[str]]:
    """Return (the facts that the defense reports, why they could not be recorded)."""
    try:
        return training.facts(), training.complaints
    except PhaseError as error:
        log_failure(error)
        return {}, [one_line(str(error), 1000)]


def _notes(training: Training) -> list[str]:
    """Return notes on how the clients were trained, how per-sample gradients for a defense or an
    adversary were computed, whether a defense answers for the global models, and what the clients
    validate on.
    """
    if isinstance(training, Replay):
        return []
    setup = training.setup
    modes = (True, False) if setup.insider is not None else (True,)
    notes = [training.trainer.note, *(why_one_by_one(setup.flat.module, mode) for mode in modes)]
    if answers(setup):
        notes.append(ANSWERS)
    if setup.config.validation_on != "own":
        notes.append(_SAW_NONMEMBERS)
    return [note for note in notes if note]


def kinds_of(audit: AuditSet, trained: Trained) -> np.ndarray:
    """Return [n] MEMBER, OFL, IFL, or EXCLUDED where a defense kept the sample out of training."""
    return np.where(np.isin(audit.ids, trained.held_out), EXCLUDED, audit.kind)
