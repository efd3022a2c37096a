"""A whole run: trained apart, where the components' code runs; judged here, from plain data.

What is in the caches is not computed again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.core.contract.components import Data
from fedbench.core.contract.errors import UserError
from fedbench.core.population.audit import split_digest
from fedbench.core.process.channel import Channel, Message, at_work
from fedbench.core.run.job import Job
from fedbench.core.run.judge import ask
from fedbench.core.run.needs import measurable, models_of, needed_rows, needed_signals
from fedbench.core.run.process import settle
from fedbench.core.run.scene import Scene, UsedSamples, build, make_scene, set_scene
from fedbench.core.run.shadow_models import ShadowLogits, load_shadow_models, train_shadow_models
from fedbench.core.run.train import Trained, train
from fedbench.core.signals.measure import PRE_DEFENSE
from fedbench.core.store.files import npz_bytes, read_npz, write_if_room
from fedbench.core.store.integrity import key_of
from fedbench.core.store.run_file import digest_of_arrays

Packed = tuple[dict[str, Any], dict[str, np.ndarray]]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run, ready to be judged. ``shadows``: the attacker's own models, where an attack
    wants some; ``n_models``: how many global models there are.
    """

    scene: Scene
    trained: Trained
    shadows: ShadowLogits | None
    n_models: int


def wants_shadow_models(job: Job) -> bool:
    """Whether some attack of the run asks for shadow models, and the setting has them."""
    return job.setting.audit.shadow is not None and any(
        cell.look.needs_shadow_models for cell in job.cells
    )


def cached(job: Job) -> tuple[Packed | None, ShadowLogits | None]:
    """(the training, the shadow models) as far as they are in the caches. An active attack takes
    part in its training, so that one is never cached.
    """
    shadows = load_shadow_models(job) if wants_shadow_models(job) else None
    return None if job.attacker else load_training(job), shadows


def train_run(job: Job, out: Channel, trained: bool, shadows: bool) -> None:
    """What is missing of a run, sent through ``out``: "round" after each, "trained" with all of it,
    then, where an active attack took part, "answers" of that very attack. ``trained``, ``shadows``:
    what is not missing.
    """
    attacker = None if job.attacker is None else job.attacker.make()[0]
    settle(job, job.run_key)  # the attack's constructor ran
    parts = build(job)
    with at_work(f"dataset {job.dataset}"):
        scene = set_scene(job, parts)
    meta, arrays = pack_labels(scene)
    meta["n_models"] = models_of(parts.defense, job.clients)
    done = None
    if not trained:
        looks = [attacker] if attacker else [cell.look for cell in job.cells]
        done = train(job, parts, scene, looks, lambda t: out.send("advanced", t))
        told, kept = pack(done)
        meta, arrays = meta | told, arrays | kept
    made = None
    if wants_shadow_models(job) and not shadows:
        made = train_shadow_models(job, parts, scene)
        arrays |= {"shadow:logits": made.logits, "shadow:member": made.member}
    out.send("trained", meta, arrays)
    if job.attacker is not None and attacker is not None and done is not None:
        settle(job, job.cells[0].key)
        with at_work(f"attack {job.attacker}"):
            answers = ask(job, attacker, scene, done, made or load_shadow_models(job))
        out.send("answers", *answers.packed())


def shadows_of(message: Message) -> ShadowLogits | None:
    """The shadow models that came with a training."""
    arrays = message.arrays
    return (
        ShadowLogits(arrays["shadow:logits"], arrays["shadow:member"])
        if "shadow:logits" in arrays
        else None
    )


def made_of(job: Job, packed: Packed, shadows: ShadowLogits | None) -> Run:
    """The run from its plain data. The scene is made by the harness alone, where no component's
    code has run.

    Raises ``UserError`` when it is not the one that was planned, ``KeyError`` for data that lack
    something.
    """
    meta, arrays = packed
    scene = make_scene(
        unpack_labels(meta, arrays),
        job.setting,
        job.targets,
        job.seed,
        adversary=job.adversary,
        poisoned=job.attacker is not None,
        root=meta["root"],
    )
    if split_digest(scene.split, scene.audits) != job.digests["split"]:
        raise UserError(
            "the split of the data is not the one that was planned: the data set's labels have "
            "changed since"
        )
    return Run(
        scene=scene, trained=unpack(meta, arrays), shadows=shadows, n_models=meta["n_models"]
    )


# --- a training as JSON and arrays ----------------------------------------------------------------


_META = (
    "rows",
    "history",
    "measured",
    "facts",
    "complaints",
    "failed",
    "notes",
    "signal_notes",
    "rejected",
)
_LABELS = ("train_y", "test_y", "holdout_y", "train_canary", "holdout_canary")
_SPLITS = ("train", "test", "holdout")


def pack(trained: Trained) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(JSON values, arrays)."""
    arrays = {f"signal:{n}": a for n, a in trained.signals.items()}
    arrays |= {
        "rounds": trained.rounds,
        "held_out": trained.held_out,
        "test_correct": trained.test_correct,
    }
    arrays |= {"assignment": trained.assignment, "predicted": trained.predicted} | vars(
        trained.usage
    )
    if trained.logits is not None:
        arrays["logits"] = trained.logits
    return {name: getattr(trained, name) for name in _META}, arrays


def unpack(meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> Trained:
    """What was packed. Raises ``KeyError`` where something is missing."""
    known = {name: meta[name] for name in _META if name != "rejected"}
    usage = UsedSamples(**{f.name: arrays[f.name] for f in fields(UsedSamples)})
    return Trained(
        rounds=arrays["rounds"],
        held_out=arrays["held_out"],
        test_correct=arrays["test_correct"],
        signals={
            n.removeprefix("signal:"): a for n, a in arrays.items() if n.startswith("signal:")
        },
        assignment=arrays["assignment"],
        predicted=arrays["predicted"],
        logits=arrays.get("logits"),
        rejected=tuple((t, k) for t, k in meta["rejected"]),
        usage=usage,
        **known,
    )


def pack_labels(scene: Scene) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """All that judging needs of the data: labels and one sample, from which the harness makes the
    scene again itself.
    """
    data = scene.data
    arrays = {f"data:{name}": getattr(data, name) for name in _LABELS} | {
        "data:sample": data.train_x[:1]
    }
    return {"n_classes": data.n_classes, "root": len(scene.root)}, arrays


def unpack_labels(meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> Data:
    """Data of these labels in which every sample is the same one and takes no memory."""
    given: dict[str, Any] = {name: arrays[f"data:{name}"] for name in _LABELS}
    sample = arrays["data:sample"]
    for split in _SPLITS:
        given[f"{split}_x"] = np.broadcast_to(sample, (len(given[f"{split}_y"]), *sample.shape[1:]))
    return Data(n_classes=meta["n_classes"], **given)


# --- cached observations of a training ------------------------------------------------------------


def cache_path(job: Job) -> Path:
    """Where this training's observations are kept."""
    return Path(job.results) / "cache" / f"{job.run_key[:32]}.npz"


def save_training(job: Job, packed: Packed) -> bool:
    """Keep the observations, so that a new attack needs no new training; whether there was room for
    them.
    """
    meta, arrays = (
        packed[0],
        {name: a for name, a in packed[1].items() if not name.startswith("shadow:")},
    )
    meta = meta | {
        "run_key": job.run_key,
        "cpu": job.provenance.cpu_type,
        "device": job.provenance.device,
    }
    meta["code"] = {
        n: _code_of(job, n)
        for n in (a.removeprefix("signal:") for a in arrays if a.startswith("signal:"))
    }
    meta["digest"] = key_of({"meta": meta, "arrays": digest_of_arrays(arrays)})
    stored = arrays | {"meta": np.frombuffer(json.dumps(meta).encode(), np.uint8)}
    return write_if_room(cache_path(job), npz_bytes(stored, compress=False))


def load_training(job: Job) -> Packed | None:
    """The cached training, if it is there, whole, and measured what the job's attacks and analyses
    look at.
    """
    path = cache_path(job)
    if not path.exists():
        return None
    try:
        arrays = read_npz(path)
        meta = json.loads(arrays.pop("meta").tobytes())
        whole = meta.pop("digest") == key_of({"meta": meta, "arrays": digest_of_arrays(arrays)})
    # whatever a damaged archive makes of numpy, zipfile and json: it only costs the training again
    except Exception:
        return None
    return (meta, arrays) if whole and _serves(job, meta, arrays) else None


def _serves(job: Job, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> bool:
    if meta["run_key"] != job.run_key:
        return False
    if (meta["cpu"], meta["device"]) != (job.provenance.cpu_type, job.provenance.device):
        # its bits are those of another type of CPU, and the records to come say this one
        return False
    looks = [cell.look for cell in job.cells]
    wanted = measurable(job, needed_signals(looks, job.looks.values()))
    if not set(needed_rows(job, meta["n_models"], looks)) <= set(meta["rows"]):
        return False
    if (
        any(look.needs_shadow_models for look in looks)
        and job.setting.audit.shadow is not None
        and "logits" not in arrays
    ):
        return False
    return all(f"signal:{n}" in arrays and meta["code"].get(n) == _code_of(job, n) for n in wanted)


def _code_of(job: Job, signal: str) -> str:
    """What measured a signal: the run's key does not say, since a training serves attacks on any
    signals.
    """
    use = job.signals.get(signal.removesuffix(PRE_DEFENSE))
    return key_of(use.identity()) if use else "engine"
