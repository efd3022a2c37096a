"""A finished training is kept, so that attacks can come later."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.core.experiment.job import Job
from fedbench.core.experiment.wanted import measurable, needed_rows, needed_signals
from fedbench.core.signals.measure import PRE_DEFENSE
from fedbench.core.store.canonical import canonical, key_of
from fedbench.core.store.files import npz_bytes, read_npz, write_if_room

Packed = tuple[dict[str, Any], dict[str, np.ndarray]]


def cache_path(job: Job) -> Path:
    """Where this training's observations are kept."""
    return Path(job.results) / "cache" / f"{job.run_key[:32]}.npz"


def save(job: Job, packed: Packed) -> bool:
    """Keep the observations, so that a new attack needs no new training; whether there was room for them."""
    meta, arrays = packed[0], {name: a for name, a in packed[1].items() if not name.startswith("shadow:")}
    meta = meta | {"run_key": job.run_key, "cpu": job.provenance.cpu_type}
    meta["code"] = {n: _code_of(job, n) for n in (a.removeprefix("signal:") for a in arrays if a.startswith("signal:"))}
    meta["digest"] = _digest(meta, arrays)
    stored = arrays | {"meta": np.frombuffer(json.dumps(meta).encode(), np.uint8)}
    return write_if_room(cache_path(job), npz_bytes(stored, compress=False))


def load(job: Job) -> Packed | None:
    """The cached training, if it is there, whole, and measured what the job's attacks and analyses look at."""
    path = cache_path(job)
    if not path.exists():
        return None
    try:
        arrays = read_npz(path)
        meta = json.loads(arrays.pop("meta").tobytes())
        whole = meta.pop("digest") == _digest(meta, arrays)
    except Exception:  # whatever a damaged archive makes of numpy, zipfile and json: it only costs the training again
        return None
    return (meta, arrays) if whole and _serves(job, meta, arrays) else None


def _serves(job: Job, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> bool:
    if meta["run_key"] != job.run_key:
        return False
    if meta["cpu"] != job.provenance.cpu_type:
        return False  # its bits are those of another type of CPU, and the records to come say this one
    looks = [cell.look for cell in job.cells]
    wanted = measurable(job, needed_signals(looks, job.looks.values()))
    if not needed_rows(job, meta["n_models"], looks) <= set(meta["rows"]):
        return False
    if any(look.needs_shadow_models for look in looks) and job.setting.audit.shadow is not None and "logits" not in arrays:
        return False
    return all(f"signal:{n}" in arrays and meta["code"].get(n) == _code_of(job, n) for n in wanted)


def _code_of(job: Job, signal: str) -> str:
    """What measured a signal: the run's key does not say, since a training serves attacks on any signals."""
    use = job.signals.get(signal.removesuffix(PRE_DEFENSE))
    return key_of(use.identity()) if use else "engine"


def _digest(meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    h = hashlib.sha256(canonical(meta).encode())
    for name in sorted(arrays):
        a = np.ascontiguousarray(arrays[name])
        h.update(f"{name}:{a.dtype}:{a.shape};".encode())
        h.update(a.reshape(-1).view(np.uint8).data)
    return h.hexdigest()
