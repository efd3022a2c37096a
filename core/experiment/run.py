"""A whole run: trained apart, where the components' code runs; judged here, from plain data.

What is in the caches is not computed again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbench.core.apart.channel import Channel, Message, at_work
from fedbench.core.contract.errors import UserError
from fedbench.core.experiment import cache
from fedbench.core.experiment.job import Job
from fedbench.core.experiment.judge import ask
from fedbench.core.experiment.pack import pack, pack_labels, unpack, unpack_labels
from fedbench.core.experiment.parts import build
from fedbench.core.experiment.process import settle
from fedbench.core.experiment.scene import Scene, make_scene, set_scene
from fedbench.core.experiment.shadow_models import ShadowLogits, load_shadow_models, train_shadow_models
from fedbench.core.experiment.train import Trained, train
from fedbench.core.experiment.wanted import models_of
from fedbench.core.population.audit import split_digest

Packed = tuple[dict[str, Any], dict[str, np.ndarray]]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run, ready to be judged. ``shadows``: the attacker's own models, where an attack wants some; ``n_models``:
    how many global models there are."""

    scene: Scene
    trained: Trained
    shadows: ShadowLogits | None
    n_models: int


def wants_shadow_models(job: Job) -> bool:
    """Whether some attack of the run asks for shadow models, and the setting has them."""
    return job.setting.audit.shadow is not None and any(cell.look.needs_shadow_models for cell in job.cells)


def cached(job: Job) -> tuple[Packed | None, ShadowLogits | None]:
    """(the training, the shadow models) as far as they are in the caches. An active attack takes part in its training, so
    that one is never cached."""
    shadows = load_shadow_models(job) if wants_shadow_models(job) else None
    return None if job.attacker else cache.load(job), shadows


def train_apart(job: Job, out: Channel, trained: bool, shadows: bool) -> None:
    """What is missing of a run, sent through ``out``: "round" after each, "trained" with all of it, then, where an active
    attack took part, "answers" of that very attack. ``trained``, ``shadows``: what is not missing."""
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
        done = train(job, parts, scene, looks, lambda t: out.send("round", t))
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
    return ShadowLogits(arrays["shadow:logits"], arrays["shadow:member"]) if "shadow:logits" in arrays else None


def made_of(job: Job, packed: Packed, shadows: ShadowLogits | None) -> Run:
    """The run from its plain data. The scene is made by the harness alone, where no component's code has run.

    Raises ``UserError`` when it is not the one that was planned, ``KeyError`` for data that lack something.
    """
    meta, arrays = packed
    scene = make_scene(
        unpack_labels(meta, arrays), job.setting, job.targets, job.seed, adversary=job.adversary,
        poisoned=job.attacker is not None, root=meta["root"],
    )  # fmt: skip
    if split_digest(scene.split, scene.audits) != job.digests["split"]:
        raise UserError("the split of the data is not the one that was planned: the data set's labels have changed since")
    return Run(scene=scene, trained=unpack(meta, arrays), shadows=shadows, n_models=meta["n_models"])
