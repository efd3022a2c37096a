"""A whole run: scene, training, shadow models; what is in the caches is not computed again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from fedbench.core.contract.attack import Attack
from fedbench.core.experiment import cache
from fedbench.core.experiment.job import Job
from fedbench.core.experiment.parts import Parts, build
from fedbench.core.experiment.scene import Scene, set_scene
from fedbench.core.experiment.shadow_models import ShadowLogits, shadow_models
from fedbench.core.experiment.train import GRADIENT_SIGNALS, PRE_DEFENSE, Trained, needed_rows, needed_signals, train


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run, ready to be judged. ``shadows``: the attacker's own models, where an attack wants some."""

    parts: Parts
    scene: Scene
    trained: Trained
    shadows: ShadowLogits | None


def run(job: Job, attacks: list[Attack], on_round: Callable[[int], None]) -> Run:
    """Train what is not cached. An active attack takes part in its training, so that one is never cached."""
    parts = build(job)
    scene = set_scene(job, parts)
    known = GRADIENT_SIGNALS | job.signals.keys() | {f"{n}{PRE_DEFENSE}" for n in job.signals}
    wanted = needed_signals(attacks, parts.analyses.values()) & known  # an attack that needs more is skipped when it asks
    shadows = job.setting.audit.shadow is not None and any(a.needs_shadow_models for a in attacks)
    trained = None if job.attacker else cache.load(job, wanted, needed_rows(job, parts, attacks), shadows)
    if trained is None:
        trained = train(job, parts, scene, attacks, on_round)
        if not job.attacker:
            with contextlib.suppress(OSError):  # without room for its cache, a run is trained again for a new attack
                cache.save(job, trained)
    return Run(parts=parts, scene=scene, trained=trained, shadows=shadow_models(job, parts, scene) if shadows else None)
