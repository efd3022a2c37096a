"""Shadow models: trained once for a setting and seed, shared by every attack and defense,
cached.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from fedbench.core.contract.attack import ShadowModels
from fedbench.core.contract.defense import Defense
from fedbench.core.contract.samples import MemberData
from fedbench.core.federation.bench import Bench
from fedbench.core.federation.setup import Setup
from fedbench.core.numerics.rng import key_for, numpy_rng
from fedbench.core.population.audit import AuditSet
from fedbench.core.run.job import NOT_OF_SHADOW_MODELS, Job, identity
from fedbench.core.run.scene import Parts, Scene, samples_of
from fedbench.core.run.train import Trained, fresh_models
from fedbench.core.store.files import npz_bytes, read_npz, write_if_room
from fedbench.core.store.integrity import key_of


@dataclass(frozen=True)
class ShadowLogits:
    """``logits``: [M, pool ++ shadow, C] of the M shadow models; ``member``: [M, S] what each was
    trained on.
    """

    logits: np.ndarray
    member: np.ndarray


def load_shadow_models(job: Job) -> ShadowLogits | None:
    """From the cache; None where they are not there or damaged, which only costs the training
    again.
    """
    try:
        arrays = read_npz(_path(job))
        return ShadowLogits(arrays["logits"], arrays["member"])
    except Exception:  # whatever a damaged archive makes of numpy and zipfile
        return None


def save_shadow_models(job: Job, made: ShadowLogits) -> bool:
    """Keep them for the setting's other runs; whether there was room for them."""
    return write_if_room(
        _path(job), npz_bytes({"logits": made.logits, "member": made.member}, compress=False)
    )


def _path(job: Job) -> Path:
    return Path(job.results) / "cache" / f"shadow-{_key(job)[:32]}.npz"


def of_audit(
    shadows: ShadowLogits,
    scene: Scene,
    trained: Trained,
    audit: AuditSet,
    pick: np.ndarray,
    model_of: np.ndarray,
) -> ShadowModels:
    """What an attack gets to see of them for one target's candidates at positions ``pick`` [n] of
    the pool.
    """
    assert trained.logits is not None
    pool = len(scene.pool)
    return ShadowModels(
        logits=shadows.logits[:, pick],
        shadow_logits=shadows.logits[:, pool:],
        shadow_y=scene.y_of(scene.shadow),
        shadow_member=shadows.member,
        target_logits=trained.logits[model_of, pick],
        model_of=model_of,
        target_shadow_logits=trained.logits[:, pool:],
    )


def _key(job: Job) -> str:
    """Everything that can change them, down to the last digit."""
    return key_of(
        {"job": identity(job, without=NOT_OF_SHADOW_MODELS), "cpu": job.provenance.cpu_type}
    )


def train_shadow_models(job: Job, parts: Parts, scene: Scene) -> ShadowLogits:
    """M fresh models, each on its own random half of the shadow samples.

    The federation's recipe at the rate of round 1 for ``audit.shadow.epochs`` epochs (Shokri et
    al., IEEE S&P 2017, section V-A; of a training set half the shadow samples, all candidates are
    outsiders).
    """
    device, spec = torch.device(job.device), job.setting.audit.shadow
    assert spec is not None
    flat, initial = fresh_models(
        job, parts.model, scene.data, device, spec.models, purpose="shadow init"
    )
    x, y = samples_of(scene, scene.shadow, device)
    everything, _ = samples_of(scene, np.concatenate([scene.pool, scene.shadow]), device)
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
    fresh, logits, members = flat.state.clone(), [], []
    for m in range(spec.models):
        member = np.zeros(len(y), bool)
        member[numpy_rng(job.seed, "shadow half", client=m).permutation(len(y))[: len(y) // 2]] = (
            True
        )
        own = torch.from_numpy(np.flatnonzero(member)).to(device)
        torch.random.default_generator.manual_seed(
            key_for(job.seed, "shadow module", client=m) >> 1
        )
        shuffle = torch.Generator().manual_seed(key_for(job.seed, "shadow shuffle", client=m) >> 1)
        start = replace(fresh, params=initial[m])
        Bench(setup, start, 1).train(x[own], y[own], spec.epochs, shuffle)
        logits.append(flat.logits(flat.state, everything).float().cpu().numpy())
        members.append(member)
    return ShadowLogits(np.stack(logits), np.stack(members))
