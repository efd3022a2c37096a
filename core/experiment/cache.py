"""A finished training is kept, so that attacks can come later."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fedbench.core.experiment.job import Job
from fedbench.core.experiment.train import Trained
from fedbench.core.signals.measure import PRE_DEFENSE
from fedbench.core.store.canonical import key_of
from fedbench.core.store.files import npz_bytes, read_npz, write_if_room


def cache_path(job: Job) -> Path:
    """Where this training's observations are kept."""
    return Path(job.results) / "cache" / f"{job.run_key[:32]}.npz"


def save(job: Job, trained: Trained) -> bool:
    """Keep the observations, so that a new attack needs no new training; whether there was room for them."""
    meta = {name: getattr(trained, name) for name in ("rows", "history", "measured", "facts", "complaints")}
    meta["run_key"], meta["cpu"] = job.run_key, job.provenance.cpu_type
    meta["code"] = {n: _code_of(job, n) for n in trained.signals}
    arrays = {f"signal:{n}": a for n, a in trained.signals.items()}
    arrays |= {"rounds": trained.rounds, "held_out": trained.held_out, "test_correct": trained.test_correct}
    arrays |= {"assignment": trained.assignment, "predicted": trained.predicted}
    if trained.logits is not None:
        arrays["logits"] = trained.logits
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    return write_if_room(cache_path(job), npz_bytes(arrays, compress=False))


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
    if meta.get("cpu") != job.provenance.cpu_type:
        return None  # its bits are those of another type of CPU, and the records to come say this one
    if meta["run_key"] != job.run_key or not wanted <= signals.keys() or not rows <= set(meta["rows"]):
        return None
    if shadow_models and "logits" not in arrays:
        return None
    if any(meta["code"].get(n) != _code_of(job, n) for n in wanted):
        return None
    return Trained(
        rows=meta["rows"], rounds=arrays["rounds"], signals=signals, held_out=arrays["held_out"],
        test_correct=arrays["test_correct"], history=meta["history"], measured=meta["measured"],
        assignment=arrays["assignment"], predicted=arrays["predicted"], logits=arrays.get("logits"), facts=meta["facts"],
        complaints=meta["complaints"],
    )  # fmt: skip
