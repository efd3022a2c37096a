"""Train one federation and keep what its attacks need; a finished training is cached, so attacks can come later."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedbench.core.contract.attack import LEVELS, ActiveAttack, Attack, View
from fedbench.core.contract.contexts import MemberData
from fedbench.core.contract.dataset import Data
from fedbench.core.contract.defense import Defense
from fedbench.core.contract.errors import Diverged, SkipCell
from fedbench.core.experiment.job import Job, key_of
from fedbench.core.experiment.scene import Scene
from fedbench.core.federation.loop import Training
from fedbench.core.federation.setup import Insider, Setup, TrainConfig
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.numerics.normalise import wrap
from fedbench.core.numerics.precision import in_precision
from fedbench.core.numerics.rng import key_for
from fedbench.core.population.audit import EXCLUDED, AuditSet
from fedbench.core.signals.measure import GRADIENT_SIGNALS, PRE_DEFENSE, Recorder, rows_of
from fedbench.core.store.files import npz_bytes, read_npz, write_atomically

_DRAWS = 100  # of initial models, until each is picked by enough clients


@dataclass(frozen=True)
class Trained:
    """What is kept of a training: signals over the pool, and the final model's worth."""

    rows: list[int]
    rounds: np.ndarray
    signals: dict[str, np.ndarray]
    held_out: np.ndarray
    test_correct: np.ndarray
    history: list[dict[str, Any]]
    measured: dict[str, float]
    rejected: tuple[tuple[int, int], ...] = ()  # (round, malicious client) of rows that were not finite
    assignment: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int64))  # [R, K] client -> global model
    predicted: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # [n_test] final classes
    logits: np.ndarray | None = None  # [s, pool ++ shadow, C] of the final global models, where shadow models are asked for


def audited_rounds(rounds: int, every: int) -> set[int]:
    """every, 2 every, ..., and always the last round."""
    return {*range(every, rounds + 1, every), rounds}


def needed_signals(attacks: list[Attack]) -> set[str]:
    """The union over the attacks of a run."""
    return set().union(*(a.needs for a in attacks)) if attacks else set()


def views_of(attacks: list[Attack]) -> set[View]:
    """The views that a run measures: those of its attacks, and the server's for what colluding clients share."""
    return {a.view for a in attacks} | ({"server"} if any(a.colluders for a in attacks) else set())


def needed_rows(job: Job, attacks: list[Attack]) -> set[int]:
    """Ids of the rows that the attacks of a run look at."""
    clients = job.federation["clients"]
    return set(rows_of(views_of(attacks), clients, job.members, models_of(job.defense.make(), clients)))


def models_of(defense: Defense, clients: int) -> int:
    """How many global models there are."""
    return defense.n_models or clients


def train(job: Job, scene: Scene, attacks: list[Attack], on_round: Callable[[int], None]) -> Trained:
    """The run, from the first round to the last."""
    device = torch.device(job.device)
    setup = _setup(job, scene, attacks, device)
    wanted = needed_signals(attacks)
    forward = {n: job.signals[b].make() for n in wanted if (b := n.removesuffix(PRE_DEFENSE)) in job.signals}
    recorder = Recorder(
        setup.flat, *samples_of(scene, scene.pool, device), forward, bool(wanted & GRADIENT_SIGNALS),
        len(setup.clients), job.members, views_of(attacks), [len(s) for s in scene.shards],
        one_start=len(setup.initial) == 1 and setup.config.max_delay == 0, n_models=len(setup.initial),
    )  # fmt: skip
    federation = _good_start(job, scene, setup)
    shadow_models = any(a.needs_shadow_models for a in attacks)
    return _run_rounds(job, scene, federation, recorder, on_round, shadow_models)


def _setup(job: Job, scene: Scene, attacks: list[Attack], device: torch.device) -> Setup:
    defense = job.defense.make()
    flat, initial = fresh_models(job, scene.data, device, models_of(defense, job.federation["clients"]))
    clients = [
        MemberData(torch.from_numpy(scene.data.train_x[s]).to(device), torch.from_numpy(scene.data.train_y[s]).to(device))
        for s in scene.shards
    ]
    return Setup(
        config_of(job), job.seed, flat, clients, scene.data.n_classes, defense, job.members, initial,
        _insider(job, scene, attacks, device), MemberData(*samples_of(scene, scene.root, device)) if len(scene.root) else None,
        None if scene.thresholds is None else tuple(scene.thresholds.tolist()),
        any(n.endswith(PRE_DEFENSE) for n in needed_signals(attacks)),
    )  # fmt: skip


def _good_start(job: Job, scene: Scene, setup: Setup) -> Training:
    """The federation from initial models that each have their share of the members (IFCA's find_good_initializer,
    docs/methods/clustering.md#ifca); raises ``Diverged`` when none of the draws has."""
    n, least = len(setup.initial), setup.defense.least_share
    for draw in range(_DRAWS):
        if draw:
            _, initial = fresh_models(job, scene.data, setup.device, n, draw)
            setup = replace(setup, initial=initial, defense=job.defense.make())
        federation = Training(setup)
        if n == 1 or not least or not setup.members:
            return federation
        picked = np.bincount(federation.first_choice(), minlength=n) / len(setup.members)
        if picked.min() >= least:
            return federation
    raise Diverged(f"none of {_DRAWS} draws of {n} initial models had each picked by {least:.0%} of the members")


def samples_of(scene: Scene, ids: np.ndarray, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """(x, y) of these samples on the device."""
    return torch.from_numpy(scene.x_of(ids)).to(device), torch.from_numpy(scene.y_of(ids)).to(device)


def _insider(job: Job, scene: Scene, attacks: list[Attack], device: torch.device) -> Insider | None:
    """The run's adversary with what its setting grants it; raises ``SkipCell`` where that is less than it needs."""
    attack = next((a for a in attacks if isinstance(a, ActiveAttack)), None)
    if attack is None or job.insider is None:
        return None
    granted = job.insider["knowledge"]
    if LEVELS.index(granted) < LEVELS.index(attack.knowledge):
        raise SkipCell(f"the attack needs the knowledge '{attack.knowledge}', but the setting's adversary has '{granted}'")
    x, y = samples_of(scene, scene.pool[scene.presented], device)
    return Insider(
        attack, job.insider["malicious"], granted, job.insider["start_round"], x, y, *samples_of(scene, scene.mask, device)
    )


def _run_rounds(
    job: Job, scene: Scene, federation: Training, recorder: Recorder, on_round: Callable[[int], None], shadow_models: bool
) -> Trained:
    device = federation.setup.device
    test_x = torch.from_numpy(scene.data.test_x).to(device)
    audited = audited_rounds(federation.setup.config.rounds, job.audit["every"])
    history: list[dict[str, Any]] = []
    rejected: list[tuple[int, int]] = []
    assignments: list[tuple[int, ...]] = []
    before: tuple[int, ...] = ()
    signals_cpu, predicted, began = 0.0, np.zeros(0, np.int64), time.process_time()
    for result in federation.rounds():
        rejected += [(result.uploads.round, k) for k in result.rejected]
        if (t := result.uploads.round) in audited:
            mark = time.process_time()
            recorder.record(result)
            predicted = _predicted(federation, test_x)
            right = predicted == scene.data.test_y
            row: dict[str, Any] = {"round": t, "accuracy": float(right.mean()), "train_loss": _train_loss(federation)}
            if scene.groups is not None:
                row["group_accuracy"] = [float(right[scene.test_group == g].mean()) for g in range(len(scene.groups.names))]
            history.append(row | _clusters(result.assignment, before, len(federation.models)))
            assignments.append(result.assignment)
            before = result.assignment
            signals_cpu += time.process_time() - mark
        on_round(t)
    total = time.process_time() - began
    held = [s[c.held_out.cpu().numpy()] for s, c in zip(scene.shards, federation.clients, strict=True) if c.held_out is not None]
    return Trained(
        recorder.rows, np.array(recorder.rounds), recorder.arrays(),
        np.sort(np.concatenate(held)) if held else np.zeros(0, np.int64), predicted == scene.data.test_y, history,
        {"train_cpu_s": total - signals_cpu, "signals_cpu_s": signals_cpu}, tuple(rejected), np.array(assignments), predicted,
        _final_logits(federation, scene) if shadow_models else None,
    )  # fmt: skip


def _clusters(assignment: tuple[int, ...], before: tuple[int, ...], n_models: int) -> dict[str, Any]:
    """Sizes of the clusters, and how many clients moved since the last audited round; nothing with one model."""
    if n_models == 1 or n_models == len(assignment):
        return {}
    moved = sum(a != b for a, b in zip(assignment, before, strict=True)) if before else 0
    return {"clusters": np.bincount(assignment, minlength=n_models).tolist(), "moved": moved}


def _final_logits(federation: Training, scene: Scene) -> np.ndarray:
    """[s, pool ++ shadow, C] of every final global model."""
    x, _ = samples_of(scene, np.concatenate([scene.pool, scene.shadow]), federation.setup.device)
    return np.stack([_logits(federation, j, x).float().cpu().numpy() for j in range(len(federation.models))])


def fresh_models(
    job: Job, data: Data, device: torch.device, n: int, draw: int = 0, purpose: str = "init"
) -> tuple[FlatModel, torch.Tensor]:
    """A module, and [n, P] keyed initial parameters."""
    builder = job.model.make()

    def build(j: int) -> FlatModel:
        torch.random.default_generator.manual_seed(key_for(job.seed, purpose, round=draw, client=j) >> 1)
        module = in_precision(builder.build(data.input_shape, data.n_classes), job.federation["precision"])
        return FlatModel(wrap(module, data), device)

    first = build(0)
    return first, torch.stack([first.params.clone(), *(build(j).params for j in range(1, n))])


def config_of(job: Job) -> TrainConfig:
    f, o = job.federation, job.federation["optimizer"]
    schedule = o["schedule"]
    return TrainConfig(
        f["rounds"], f["local_epochs"], f["batch_size"], o["lr"], o["momentum"], o["weight_decay"], f["participation"],
        schedule["name"], schedule["factor"] or 1.0, tuple(schedule["rounds"] or ()), f["weight_order"], f["max_delay"],
        f["precision"], o["name"], tuple(o["betas"] or (0.9, 0.999)), o["keep_state"],
        job.insider["assumed"] if job.insider else 0, f["local_batches"],
    )  # fmt: skip


def _logits(federation: Training, j: int, x: torch.Tensor) -> torch.Tensor:
    return federation.setup.flat.logits(federation.models[j], federation.buffers[j], x)


def _predicted(federation: Training, x: torch.Tensor) -> np.ndarray:
    """[n_test] the class that the global model gives each sample.

    With several global models, sample i is put to the model of client i mod K: the mean is then the clients' mean
    accuracy, and a sample still has one answer, which paired tests need.
    """
    out = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    clients = torch.arange(len(x), device=x.device) % len(federation.assignment)
    for j in sorted(set(federation.assignment.values())):
        mine = torch.isin(clients, torch.tensor([k for k, m in federation.assignment.items() if m == j], device=x.device))
        if bool(mine.any()):
            out[mine] = _logits(federation, j, x[mine]).argmax(1)
    return out.cpu().numpy()


def _train_loss(federation: Training) -> float:
    """Mean cross-entropy of each client's global model on (up to 200 of) its own samples."""
    losses = []
    for k, data in enumerate(federation.setup.clients):
        logits = _logits(federation, federation.assignment[k], data.x[:200])
        losses.append(torch.nn.functional.cross_entropy(logits, data.y[:200]))
    return float(torch.stack(losses).mean())


def kinds_of(audit: AuditSet, trained: Trained) -> np.ndarray:
    """[n] MEMBER, OFL, IFL, or EXCLUDED where the defense kept the sample out of training."""
    return np.where(np.isin(audit.ids, trained.held_out), EXCLUDED, audit.kind)


def cache_path(job: Job) -> Path:
    """Where this training's observations are kept."""
    return Path(job.results) / "cache" / f"{job.run_key[:32]}.npz"


def save(job: Job, trained: Trained) -> None:
    """Keep the observations, so that a new attack needs no new training."""
    meta = {"rows": trained.rows, "history": trained.history, "measured": trained.measured, "run_key": job.run_key}
    meta["code"] = {n: _code_of(job, n) for n in trained.signals}
    arrays = {f"signal:{n}": a for n, a in trained.signals.items()}
    arrays |= {"rounds": trained.rounds, "held_out": trained.held_out, "test_correct": trained.test_correct}
    arrays |= {"assignment": trained.assignment, "predicted": trained.predicted}
    if trained.logits is not None:
        arrays["logits"] = trained.logits
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    write_atomically(cache_path(job), npz_bytes(arrays, compress=False))


def _code_of(job: Job, signal: str) -> str:
    """What measured a signal: the run's key does not say, since a training serves attacks on any signals."""
    use = job.signals.get(signal.removesuffix(PRE_DEFENSE))
    return key_of(use.identity()) if use else "engine"


def load(job: Job, wanted: set[str], rows: set[int], shadow_models: bool) -> Trained | None:
    """The cached training, if it is there, whole, and measured what is wanted."""
    path = cache_path(job)
    if not path.exists():
        return None
    try:
        arrays = read_npz(path)
        meta = json.loads(arrays.pop("meta").tobytes())
    except (OSError, ValueError, KeyError):
        return None  # a damaged cache only costs the training again
    signals = {n.removeprefix("signal:"): a for n, a in arrays.items() if n.startswith("signal:")}
    if meta["run_key"] != job.run_key or not wanted <= signals.keys() or not rows <= set(meta["rows"]):
        return None
    if shadow_models and "logits" not in arrays:
        return None
    if any(meta["code"].get(n) != _code_of(job, n) for n in wanted):
        return None
    return Trained(
        meta["rows"], arrays["rounds"], signals, arrays["held_out"], arrays["test_correct"], meta["history"],
        meta["measured"], (), arrays["assignment"], arrays["predicted"], arrays.get("logits"),
    )  # fmt: skip
