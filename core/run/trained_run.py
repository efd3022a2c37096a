"""Trainings in a process of their own: what they send back as plain data, and what is cached."""

from __future__ import annotations

import json
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedbench.core.contract.errors import UserError
from fedbench.core.numerics.gpu import memory_of_run
from fedbench.core.population.audit import split_digest
from fedbench.core.population.labels import data_of_labels, labels_of
from fedbench.core.process.channel import Channel, Message, at_work
from fedbench.core.run.job import Job
from fedbench.core.run.measurements import UsedSamples
from fedbench.core.run.needs import measured_signals, needed_rows
from fedbench.core.run.process import settle
from fedbench.core.run.scene import Scene, build, scene_of, set_scene
from fedbench.core.run.scoring import ask
from fedbench.core.run.shadow_models import ShadowLogits, load_shadow_models, train_shadow_models
from fedbench.core.run.train import Run, Trained, train
from fedbench.core.signals.measure import PRE_DEFENSE
from fedbench.core.store.files import read_npz, write_if_room
from fedbench.core.store.integrity import key_of
from fedbench.core.store.run_file import digest_of_arrays

Packed = tuple[dict[str, Any], dict[str, np.ndarray]]
"""(JSON values, arrays)"""


def wants_shadow_models(job: Job) -> bool:
    """Return whether an attack of the run asks for shadow models, and the setting has them, with
    the fixed candidates that they answer for.
    """
    wanted = any(cell.request.needs_shadow_models for cell in job.cells)
    audit = job.setting.audit
    return wanted and audit.shadow is not None and audit.align_nonmembers


def cached(job: Job) -> tuple[Packed | None, ShadowLogits | None]:
    """Return (the training, the shadow models) as far as they are in the caches. An active attack
    takes part in its training, so that one is never cached.
    """
    shadows = load_shadow_models(job) if wants_shadow_models(job) else None
    return None if job.attacker else load_training(job), shadows


def train_run(
    job: Job,
    out: Channel,
    trained: bool,
    shadows: bool,
) -> None:
    """Compute what is missing of a run and send it: "advanced" after each round, "trained" with all
    of it, then, where an active attack took part, "answers" of that very attack.

    Args:
        trained: whether the training is there already.
        shadows: whether the shadow models are.
    """
    attacker = None if job.attacker is None else job.attacker.make()[0]
    settle(job, job.run_key)  # the attack's constructor ran
    parts = build(job)
    with at_work(f"dataset {job.dataset}"):
        scene = set_scene(job, parts)
    meta, arrays = pack_labels(scene)
    training = None
    if not trained:
        requests = [attacker] if attacker else [cell.request for cell in job.cells]
        training = train(job, parts, scene, requests, partial(_send_round, out))
        if memory := memory_of_run(torch.device(job.device)):
            out.send("gpu memory", memory)
        values, signals = pack(training)
        meta = meta | values
        arrays = arrays | signals
    shadow_models = None
    if wants_shadow_models(job) and not shadows:
        shadow_models = train_shadow_models(job, parts, scene)
        arrays["shadow:logits"] = shadow_models.logits
        arrays["shadow:member"] = shadow_models.member
    out.send("trained", meta, arrays)
    if attacker is not None and training is not None:
        settle(job, job.cells[0].key)
        shadow_models = shadow_models or load_shadow_models(job)
        run = Run(job=job, scene=scene, trained=training, shadows=shadow_models)
        with at_work(f"attack {job.attacker}"):
            answers = ask(run, attacker)
        out.send("answers", *answers.packed())


def _send_round(out: Channel, t: int, row: dict[str, Any] | None) -> None:
    if row is not None:
        out.send("measured", [row["accuracy"], row["train_loss"]])
    out.send("advanced", t)


def made_of(job: Job, packed: Packed, shadows: ShadowLogits | None) -> Run:
    """Return the run from its plain data. The harness makes the scene itself, in a process where no
    component's code has run.

    Raises:
        UserError: if the split is not the one that was planned.
        KeyError: for data that lack something.
    """
    meta, arrays = packed
    labels = {n.removeprefix("data:"): a for n, a in arrays.items() if n.startswith("data:")}
    data = data_of_labels(meta["n_classes"], meta["task"], labels)
    scene = scene_of(job, data, meta["root"])
    if split_digest(scene.split, scene.audits) != job.digests["split"]:
        raise UserError(
            "the split of the data is not the one that was planned: the data set's labels have "
            "changed since"
        )
    return Run(job=job, scene=scene, trained=unpack(meta, arrays), shadows=shadows)


# --- a training as JSON and arrays ----------------------------------------------------------------

_ARRAYS = tuple(field.name for field in fields(Trained) if field.type == "np.ndarray")
_USAGE = tuple(field.name for field in fields(UsedSamples))
_VALUES = tuple(
    field.name
    for field in fields(Trained)
    if field.name not in (*_ARRAYS, "signals", "usage", "logits")
)


def pack(trained: Trained) -> Packed:
    """Return a training as plain data."""
    arrays = {f"signal:{name}": a for name, a in trained.signals.items()}
    arrays |= {name: getattr(trained, name) for name in _ARRAYS}
    arrays |= {name: getattr(trained.usage, name) for name in _USAGE}
    if trained.logits is not None:
        arrays["logits"] = trained.logits
    return {name: getattr(trained, name) for name in _VALUES}, arrays


def unpack(meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> Trained:
    """Return the training of :func:`pack`. Raises ``KeyError`` where something is missing."""
    lead = "signal:"
    values: dict[str, Any] = {name: arrays[name] for name in _ARRAYS}
    values |= {name: meta[name] for name in _VALUES}
    return Trained(
        **values,
        signals={n.removeprefix(lead): a for n, a in arrays.items() if n.startswith(lead)},
        usage=UsedSamples(**{name: arrays[name] for name in _USAGE}),
        logits=arrays.get("logits"),
    )


def pack_labels(scene: Scene) -> Packed:
    """Return what judging needs of the data, from which the harness makes the scene again."""
    data = scene.data
    meta = {"n_classes": data.n_classes, "task": data.task.name, "root": len(scene.root)}
    return meta, {f"data:{name}": a for name, a in labels_of(data).items()}


def shadows_of(message: Message) -> ShadowLogits | None:
    """Return the shadow models that came with a training."""
    if "shadow:logits" not in message.arrays:
        return None
    return ShadowLogits(message.arrays["shadow:logits"], message.arrays["shadow:member"])


# --- cached observations of a training ------------------------------------------------------------


def cache_path(job: Job) -> Path:
    """Return the file with this training's observations."""
    return Path(job.results) / "cache" / f"{job.run_key[:32]}.npz"


def save_training(job: Job, packed: Packed) -> None:
    """Keep the observations, if there is room, so that a new attack needs no new training."""
    arrays = {name: a for name, a in packed[1].items() if not name.startswith("shadow:")}
    names = [name.removeprefix("signal:") for name in arrays if name.startswith("signal:")]
    meta = packed[0] | _made_by(job) | {"code": {name: _code_of(job, name) for name in names}}
    if earlier := _read(cache_path(job)):
        meta, arrays = _joined((meta, arrays), earlier)
    meta["digest"] = key_of({"meta": meta, "arrays": digest_of_arrays(arrays)})
    stored = arrays | {"meta": np.frombuffer(json.dumps(meta).encode(), np.uint8)}
    write_if_room(cache_path(job), stored)


def _joined(packed: Packed, earlier: Packed) -> Packed:
    """Return a training with what an ``earlier`` one of the same bits measured of the same rows,
    and it did not or failed to.
    """
    if not _same_training(packed, earlier):
        return packed
    meta, arrays = packed
    earlier_meta, earlier_arrays = earlier
    both = {name: earlier_meta[name] | meta[name] for name in ("code", "signal_notes")}
    both["failed"] = {
        name: why for name, why in meta["failed"].items() if f"signal:{name}" not in earlier_arrays
    }
    return meta | both, earlier_arrays | arrays


def _same_training(packed: Packed, earlier: Packed) -> bool:
    """Tell whether two are of one run, machine type and rows, and the arrays that both have, but
    for signals, have the same bits.
    """
    meta, arrays = packed
    earlier_meta, earlier_arrays = earlier
    if any(earlier_meta[name] != meta[name] for name in ("run_key", "cpu", "device", "rows")):
        return False
    names = {n for n in arrays.keys() & earlier_arrays.keys() if not n.startswith("signal:")}
    digest = digest_of_arrays({name: arrays[name] for name in names})
    return digest == digest_of_arrays({name: earlier_arrays[name] for name in names})


def load_training(job: Job) -> Packed | None:
    """Return the cached training, if it is there, whole, and measured what the job's attacks and
    analyses ask for.
    """
    packed = _read(cache_path(job))
    return packed if packed and _serves(job, *packed) else None


def _read(path: Path) -> Packed | None:
    try:
        arrays = read_npz(path)
        meta = json.loads(arrays.pop("meta").tobytes())
        digest = meta.pop("digest")
        intact = digest == key_of({"meta": meta, "arrays": digest_of_arrays(arrays)})
    # whatever a damaged archive makes of numpy, zipfile and json: it only costs the training again
    except Exception:
        return None
    return (meta, arrays) if intact else None


def _serves(
    job: Job,
    meta: dict[str, Any],
    arrays: dict[str, np.ndarray],
) -> bool:
    if any(meta[name] != value for name, value in _made_by(job).items()):
        return False
    requests = [cell.request for cell in job.cells]
    if not set(needed_rows(job, meta["n_models"], requests)) <= set(meta["rows"]):
        return False
    if wants_shadow_models(job) and "logits" not in arrays:
        return False
    return all(
        f"signal:{name}" in arrays and meta["code"].get(name) == _code_of(job, name)
        for name in measured_signals(job, requests)
    )


def _made_by(job: Job) -> dict[str, str]:
    """Return what decides the bits of a training: its key, and the type of CPU that made it."""
    made_on = job.provenance
    return {"run_key": job.run_key, "cpu": made_on.cpu_type, "device": made_on.device}


def _code_of(job: Job, signal: str) -> str:
    """Return what measured a signal, which the run's key does not say: a training serves attacks on
    any signals.
    """
    use = job.signals.get(signal.removesuffix(PRE_DEFENSE))
    return key_of(use.identity()) if use else "engine"
