"""Shadow models, trained once for a setting and seed, and cached for every attack and defense."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedbench.core.contract.defense import Defense
from fedbench.core.contract.samples import MemberData
from fedbench.core.federation.bench import Bench
from fedbench.core.federation.setup import Setup
from fedbench.core.numerics.rng import key_for, numpy_rng
from fedbench.core.run.job import Job, identity
from fedbench.core.run.scene import Parts, Scene, samples_of
from fedbench.core.run.train import fresh_models
from fedbench.core.store.files import read_npz, write_if_room
from fedbench.core.store.integrity import key_of

_OF_RUN = ("contract", "digests", "device", "provenance", "dataset", "model", "seed")
_OF_FEDERATION = ("batch_size", "optimizer", "precision", "memory_format", "compile", "backend")


@dataclass(frozen=True)
class ShadowLogits:
    """Answers of M shadow models."""

    logits: np.ndarray
    """[M, pool ++ shadow, C]"""
    member: np.ndarray
    """[M, S] which of the shadow samples each was trained on"""


def load_shadow_models(job: Job) -> ShadowLogits | None:
    """Return them from the cache; None where they are not there or damaged, which only costs the
    training again.
    """
    try:
        arrays = read_npz(_path(job))
        return ShadowLogits(arrays["logits"], arrays["member"])
    except Exception:  # whatever a damaged archive makes of numpy and zipfile
        return None


def save_shadow_models(job: Job, shadows: ShadowLogits) -> None:
    """Keep them for the setting's other runs, if there is room."""
    write_if_room(_path(job), vars(shadows))


def _path(job: Job) -> Path:
    return Path(job.results) / "cache" / f"shadow-{key_of(shadow_identity(job))[:32]}.npz"


def shadow_identity(job: Job) -> dict[str, Any]:
    """Return everything that can change the shadow models down to the last digit. They are trained
    alone: neither a defense nor the federation around them counts, beyond the candidates (the
    split's digest).
    """
    run = identity(job)
    setting = run["setting"]
    parts = {name: run[name] for name in _OF_RUN}
    federation = setting["federation"]
    recipe = {name: federation[name] for name in _OF_FEDERATION if name in federation}
    shadow = setting["audit"]["shadow"]
    groups = setting["groups"]
    return {**parts, **recipe, "shadow": shadow, "groups": groups, "cpu": job.provenance.cpu_type}


def train_shadow_models(job: Job, parts: Parts, scene: Scene) -> ShadowLogits:
    """Train M fresh models, each on its own random half of the shadow samples.

    They take the federation's recipe at the rate of round 1 for ``audit.shadow.epochs`` epochs
    (Shokri et al., IEEE S&P 2017, section V-A; of a training set half the shadow samples, all
    candidates are outsiders).
    """
    device = torch.device(job.device)
    spec = job.setting.audit.shadow
    assert spec is not None
    flat, initial = fresh_models(
        job, parts.model, scene.data, device, spec.models, purpose="shadow init"
    )
    candidates, _ = samples_of(scene, np.concatenate([scene.pool, scene.shadow]), device)
    x, y = samples_of(scene, scene.shadow, device)
    setup = Setup(
        config=job.setting.federation,
        seed=job.seed,
        flat=flat,
        clients=[MemberData(x, y)],
        n_classes=scene.data.n_classes,
        defense=Defense(),
        members=(),
        initial=initial,
    )
    fresh = flat.state.clone()
    members = [_half(job, m, len(y)) for m in range(spec.models)]
    logits = []
    for m, member in enumerate(members):
        half = torch.from_numpy(np.flatnonzero(member)).to(device)
        shuffle = _keyed(job, m)
        bench = Bench(setup, replace(fresh, params=initial[m]), 1)
        bench.train(x[half], y[half], spec.epochs, shuffle)
        logits.append(flat.logits(flat.state, candidates).float().cpu().numpy())
    return ShadowLogits(np.stack(logits), np.stack(members))


def _keyed(job: Job, m: int) -> torch.Generator:
    """Key the random numbers of the m-th model; return the generator of its batches."""
    key = key_for(job.seed, "shadow module", client=m) >> 1
    torch.manual_seed(key)
    return torch.Generator().manual_seed(key_for(job.seed, "shadow shuffle", client=m) >> 1)


def _half(job: Job, m: int, n: int) -> np.ndarray:
    """Return [n] which of the shadow samples the m-th model trains on."""
    order = numpy_rng(job.seed, "shadow half", client=m).permutation(n)
    member = np.zeros(n, bool)
    member[order[: n // 2]] = True
    return member
