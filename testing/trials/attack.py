"""An attack asked about a finished training, or, an active one, inside a training of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fedbench.core.contract.attack import ActiveAttack, Attack
from fedbench.core.contract.model import Model
from fedbench.core.experiment.judge import Answers, ask
from fedbench.core.experiment.train import train
from fedbench.testing.jobs import given_use
from fedbench.testing.trials.world import Members, World, job_of, setting_of, world

_KNOWS_ALL = {"clients": 1, "knowledge": "rule", "mask_set": 12}


def asked(made: Attack, members_from: Members = "training", together: bool = False, seed: int = 0) -> tuple[Answers, World]:
    """What it answers of all targets, and the world that it answers about. ``together``: about all clients at once.

    What a passive one looks at is trained once; an active one trains with it.
    """
    if not isinstance(made, ActiveAttack):
        seen = world(members_from, together, seed=seed, needs=made.needs)
        return ask(seen.job, made, seen.scene, seen.trained, seen.shadows), seen
    seen = trained_with(made, members_from, seed)
    return ask(seen.job, made, seen.scene, seen.trained, None), seen


def trained_with(
    made: ActiveAttack, members_from: Members = "training", seed: int = 0, adversary: dict[str, Any] | None = None,
    device: str = "cpu", model: type[Model] | None = None,
) -> World:  # fmt: skip
    """A training of four clients, the last of which the attack controls and knows everything."""
    audit = {"every": 2, "targets": "honest", "members": 40, "nonmembers": 40, "members_from": members_from}
    federation = {"clients": 4, "rounds": 3, "local_epochs": 1, "batch_size": 20, "optimizer": {"lr": 0.2}}
    setting = setting_of(audit=audit, adversary={**_KNOWS_ALL, **(adversary or {})}, federation=federation)
    use = given_use(type(made), {}, "attack")
    own: dict[str, Any] = {} if model is None else {"model": given_use(model, {}, "own-model")}
    job, parts, scene = job_of(setting, attack=use, made=made, members=(), seed=seed, **own)
    job = replace(job, device=device)
    return World(job=job, parts=parts, scene=scene, trained=train(job, parts, scene, [made], lambda t: None), shadows=None)


def run(made: Attack) -> dict[str, Any]:
    """Its scores of every target, and what an active one made of the federation."""
    answers, seen = asked(made)
    said: dict[str, Any] = {
        f"the scores of {audit.target.words()}": scores for audit, scores in zip(seen.scene.audits, answers.scores, strict=True)
    }
    said |= {f"score_rounds of target {i}": rounds for i, rounds in enumerate(answers.by_round) if rounds is not None}
    if isinstance(made, ActiveAttack):
        said["the signals of the training that it took part in"] = seen.trained.signals
        said["the classes that the final model predicts"] = seen.trained.predicted
    return said


def reversed_targets(seen: World) -> World:
    """The world whose targets are asked about in the reverse order."""
    return replace(seen, scene=replace(seen.scene, audits=seen.scene.audits[::-1]))


def answers_of(made: Attack, seen: World) -> Answers:
    """What it answers about a world."""
    return ask(seen.job, made, seen.scene, seen.trained, seen.shadows)


def in_another_order(seen: World, order: list[np.ndarray]) -> World:
    """The same candidates of every target in another order."""
    audits = []
    for audit, perm in zip(seen.scene.audits, order, strict=True):
        extra = audit.extra[perm] if len(audit.extra) else audit.extra
        audits.append(replace(audit, ids=audit.ids[perm], kind=audit.kind[perm], owner=audit.owner[perm], extra=extra))
    return replace(seen, scene=replace(seen.scene, audits=audits))


def some_rounds(seen: World, rounds: list[int]) -> World:
    """As if only these of the audited rounds had been audited."""
    t = seen.trained
    signals = {n: a[rounds] for n, a in t.signals.items()}
    cut = replace(t, rounds=t.rounds[rounds], assignment=t.assignment[rounds], signals=signals)
    return replace(seen, trained=cut)


def with_signals(seen: World, change: Callable[[np.ndarray], np.ndarray]) -> World:
    """Every signal changed."""
    changed = {name: change(a.copy()) for name, a in seen.trained.signals.items()}
    return replace(seen, trained=replace(seen.trained, signals=changed))
