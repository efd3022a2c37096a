"""Train one federation and keep what its attacks need; a finished training is cached, so attacks can come later."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedbench.core.contract.attack import LEVELS, ActiveAttack, Attack
from fedbench.core.contract.contexts import MemberData
from fedbench.core.contract.dataset import Data
from fedbench.core.contract.errors import SkipCell
from fedbench.core.data.audit import (
    EXCLUDED,
    AuditSet,
    attack_set,
    audit_set,
    mask_set,
    opaque_names,
    pool_of,
    refuse_overlap,
    root_set,
)
from fedbench.core.data.partition import Shards, partition
from fedbench.core.execution.job import Job
from fedbench.core.federation.flat import FlatModel
from fedbench.core.federation.loop import Federation
from fedbench.core.federation.normalise import wrap
from fedbench.core.federation.precision import in_precision
from fedbench.core.federation.setup import Insider, Setup, TrainConfig
from fedbench.core.rng import key_for
from fedbench.core.signals.measure import GRADIENT_SIGNALS, PRE_DEFENSE, Recorder
from fedbench.core.store.files import npz_bytes, read_npz, write_atomically

_EVALUATION_CHUNK = 512  # of a ResNet18: 1 GB of activations


@dataclass(frozen=True)
class Scene:
    """A run's data: who trains on what, and whom the attacks are asked about."""

    data: Data
    shards: Shards
    audits: list[AuditSet]
    names: np.ndarray  # what an attack calls a sample: it must not learn the position in train ++ holdout
    aligned: bool = True
    mask: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # ids of the adversary's own samples
    root: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # ids of the server's

    @property
    def pool(self) -> np.ndarray:
        """Sorted ids of every audited sample (positions in train ++ holdout); all of them where lists are redrawn."""
        return pool_of(self.audits) if self.aligned else np.arange(len(self.names))

    @property
    def presented(self) -> np.ndarray:
        """[N] positions in the pool in the order an attack gets to see them: by name, so that order tells nothing."""
        return np.argsort(self.names[self.pool])

    def x_of(self, ids: np.ndarray) -> np.ndarray:
        """[n, *input] samples of these ids."""
        return _take(self.data.train_x, self.data.holdout_x, ids)

    def y_of(self, ids: np.ndarray) -> np.ndarray:
        """[n] labels of these ids."""
        return _take(self.data.train_y, self.data.holdout_y, ids)

    def canary_of(self, ids: np.ndarray) -> np.ndarray:
        """[n] bool."""
        return _take(self.data.train_canary, self.data.holdout_canary, ids)


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


def set_scene(job: Job) -> Scene:
    """Load, partition and draw the audit lists; raises ``UserError`` for data that cannot carry the setting."""
    data = job.dataset.make().load(job.seed)
    return make_scene(
        data, job.partition, job.federation, job.audit, job.targets, job.seed, job.insider,
        job.defense.make().root_samples, job.adversary is not None,
    )  # fmt: skip


def make_scene(
    data: Data, rule: dict[str, Any], federation: dict[str, Any], audit: dict[str, Any], targets: tuple[int, ...], seed: int,
    insider: dict[str, Any] | None = None, root: int = 0, poisoned: bool = False,
) -> Scene:  # fmt: skip
    """The same from data already loaded. ``insider``: the setting's adversary, which attacks if ``poisoned``;
    ``root``: how many samples the server's rule wants."""
    clients, n_holdout = federation["clients"], len(data.holdout_y)
    given = {k: v for k, v in rule.items() if v is not None}
    shards = partition(data.train_y, clients, seed, **given | ({"beta": float(given["beta"])} if "beta" in given else {}))
    malicious = insider["malicious"] if insider else 0
    if audit["targets"] == "honest":
        audits = [attack_set(shards, n_holdout, malicious, audit["members"], audit["nonmembers"], seed)]
    else:
        audits = [audit_set(shards, n_holdout, t, audit["nonmembers"], seed) for t in targets]
    names = opaque_names(len(data.train_y) + n_holdout, seed)
    mask = mask_set(shards, malicious, insider["mask_set"], seed) if insider and poisoned else np.zeros(0, np.int64)
    roots = root_set(len(data.train_y), n_holdout, audits, root, seed) if root else np.zeros(0, np.int64)
    refuse_overlap(roots, shards, audits)
    return Scene(data, shards, audits, names, audit.get("align_nonmembers", True), mask, roots)


def audited_rounds(rounds: int, every: int) -> set[int]:
    """every, 2 every, ..., and always the last round."""
    return {*range(every, rounds + 1, every), rounds}


def needed_signals(attacks: list[Attack]) -> set[str]:
    """The union over the attacks of a run."""
    return set().union(*(a.needs for a in attacks)) if attacks else set()


def train(job: Job, scene: Scene, attacks: list[Attack], on_round: Callable[[int], None]) -> Trained:
    """The run, from the first round to the last."""
    device = torch.device(job.device)
    flat, initial = _fresh_model(job, scene.data, device)
    clients = [
        MemberData(torch.from_numpy(scene.data.train_x[s]).to(device), torch.from_numpy(scene.data.train_y[s]).to(device))
        for s in scene.shards
    ]
    pool_x, pool_y = _samples(scene, scene.pool, device)
    wanted, config = needed_signals(attacks), _config(job)
    setup = Setup(
        config, job.seed, flat, clients, scene.data.n_classes, job.defense.make(), job.members, initial,
        _insider(job, scene, attacks, device), MemberData(*_samples(scene, scene.root, device)) if len(scene.root) else None,
        any(n.endswith(PRE_DEFENSE) for n in wanted),
    )  # fmt: skip
    forward = {n: job.signals[b].make() for n in wanted if (b := n.removesuffix(PRE_DEFENSE)) in job.signals}
    recorder = Recorder(
        flat, pool_x, pool_y, forward, bool(wanted & GRADIENT_SIGNALS),
        len(clients), job.members, {a.view for a in attacks}, [len(s) for s in scene.shards],
        one_start=len(initial) == 1 and config.max_delay == 0,
    )  # fmt: skip
    federation = Federation(setup)
    return _run_rounds(job, scene, federation, recorder, on_round)


def _samples(scene: Scene, ids: np.ndarray, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
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
    x, y = _samples(scene, scene.pool[scene.presented], device)
    return Insider(
        attack, job.insider["malicious"], granted, job.insider["start_round"], x, y, *_samples(scene, scene.mask, device)
    )


def _run_rounds(
    job: Job, scene: Scene, federation: Federation, recorder: Recorder, on_round: Callable[[int], None]
) -> Trained:
    device = federation.setup.device
    test = [torch.from_numpy(a).to(device) for a in (scene.data.test_x, scene.data.test_y)]
    audited = audited_rounds(federation.setup.config.rounds, job.audit["every"])
    history: list[dict[str, Any]] = []
    rejected: list[tuple[int, int]] = []
    signals_cpu, correct, began = 0.0, np.zeros(0, bool), time.process_time()
    for result in federation.rounds():
        rejected += [(result.uploads.round, k) for k in result.rejected]
        if (t := result.uploads.round) in audited:
            mark = time.process_time()
            recorder.record(result)
            correct = _correct(federation, *test)
            history.append({"round": t, "accuracy": float(correct.mean()), "train_loss": _train_loss(federation)})
            signals_cpu += time.process_time() - mark
        on_round(t)
    total = time.process_time() - began
    held = [s[c.held_out.cpu().numpy()] for s, c in zip(scene.shards, federation.clients, strict=True) if c.held_out is not None]
    return Trained(
        recorder.rows, np.array(recorder.rounds), recorder.arrays(),
        np.sort(np.concatenate(held)) if held else np.zeros(0, np.int64), correct, history,
        {"train_cpu_s": total - signals_cpu, "signals_cpu_s": signals_cpu}, tuple(rejected),
    )  # fmt: skip


def _fresh_model(job: Job, data: Data, device: torch.device) -> tuple[FlatModel, torch.Tensor]:
    """The module, and [s, P] keyed initial parameters of the s global models."""
    builder, n_models = job.model.make(), max(1, job.defense.make().n_models)
    flats = []
    for j in range(n_models):
        torch.random.default_generator.manual_seed(key_for(job.seed, "init", client=j) >> 1)
        module = in_precision(builder.build(data.input_shape, data.n_classes), job.federation["precision"])
        flats.append(FlatModel(wrap(module, data), device))
    return flats[0], torch.stack([f.params.clone() for f in flats])


def _config(job: Job) -> TrainConfig:
    f, o = job.federation, job.federation["optimizer"]
    schedule = o["schedule"]
    return TrainConfig(
        f["rounds"], f["local_epochs"], f["batch_size"], o["lr"], o["momentum"], o["weight_decay"], f["participation"],
        schedule["name"], schedule["factor"] or 1.0, tuple(schedule["rounds"] or ()), f["weight_order"], f["max_delay"],
        f["precision"], o["name"], tuple(o["betas"] or (0.9, 0.999)), o["keep_state"],
        job.insider["assumed"] if job.insider else 0, f["local_batches"],
    )  # fmt: skip


@torch.no_grad()
def _logits(federation: Federation, j: int, x: torch.Tensor) -> torch.Tensor:
    flat = federation.setup.flat
    flat.params.copy_(federation.models[j])
    flat.buffers.copy_(federation.buffers[j])
    flat.module.eval()
    return torch.cat([flat.module(part) for part in x.split(_EVALUATION_CHUNK)])


def _correct(federation: Federation, x: torch.Tensor, y: torch.Tensor) -> np.ndarray:
    """[n_test] bool: is the sample classified correctly by the global model?

    With several global models, sample i is put to the model of client i mod K: the mean is then the clients' mean
    accuracy, and a sample still has one answer, which paired tests need.
    """
    correct = torch.zeros(len(y), dtype=torch.bool, device=y.device)
    clients = torch.arange(len(y), device=y.device) % len(federation.assignment)
    for j in sorted(set(federation.assignment.values())):
        mine = torch.isin(clients, torch.tensor([k for k, m in federation.assignment.items() if m == j], device=y.device))
        correct[mine] = _logits(federation, j, x[mine]).argmax(1) == y[mine]
    return correct.cpu().numpy()


def _train_loss(federation: Federation) -> float:
    """Mean cross-entropy of each client's global model on (up to 200 of) its own samples."""
    losses = []
    for k, data in enumerate(federation.setup.clients):
        logits = _logits(federation, federation.assignment[k], data.x[:200])
        losses.append(torch.nn.functional.cross_entropy(logits, data.y[:200]))
    return float(torch.stack(losses).mean())


def _take(first: np.ndarray, second: np.ndarray, ids: np.ndarray) -> np.ndarray:
    inside = ids < len(first)
    out = np.empty((len(ids), *first.shape[1:]), first.dtype)
    out[inside], out[~inside] = first[ids[inside]], second[ids[~inside] - len(first)]
    return out


def kinds_of(audit: AuditSet, trained: Trained) -> np.ndarray:
    """[n] MEMBER, OFL, IFL, or EXCLUDED where the defense kept the sample out of training."""
    return np.where(np.isin(audit.ids, trained.held_out), EXCLUDED, audit.kind)


def cache_path(job: Job) -> Path:
    """Where this training's observations are kept."""
    return Path(job.results) / "cache" / f"{job.run_key[:32]}.npz"


def save(job: Job, trained: Trained) -> None:
    """Keep the observations, so that a new attack needs no new training."""
    meta = {"rows": trained.rows, "history": trained.history, "measured": trained.measured, "run_key": job.run_key}
    arrays = {f"signal:{n}": a for n, a in trained.signals.items()}
    arrays |= {"rounds": trained.rounds, "held_out": trained.held_out, "test_correct": trained.test_correct}
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    write_atomically(cache_path(job), npz_bytes(arrays, compress=False))


def load(job: Job, wanted: set[str], extra_rows: set[int]) -> Trained | None:
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
    if meta["run_key"] != job.run_key or not wanted <= signals.keys() or not extra_rows <= set(meta["rows"]):
        return None
    return Trained(
        meta["rows"], arrays["rounds"], signals, arrays["held_out"], arrays["test_correct"], meta["history"],
        meta["measured"],
    )  # fmt: skip
