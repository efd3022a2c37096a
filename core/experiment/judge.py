"""Let one attack answer for one training: a score for every candidate of every target."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedbench.core.apart.channel import Message
from fedbench.core.contract.attack import Attack, Audit, Colluder, Observations, ShadowModels
from fedbench.core.contract.candidates import MEMBER
from fedbench.core.contract.errors import SkipCell, UserError
from fedbench.core.experiment.job import Job
from fedbench.core.experiment.redraw import redrawn
from fedbench.core.experiment.scene import Scene
from fedbench.core.experiment.shadow_models import ShadowLogits, of_audit
from fedbench.core.experiment.train import Trained
from fedbench.core.numerics.rng import key_for
from fedbench.core.population.audit import AuditSet
from fedbench.core.population.target import Target
from fedbench.core.signals.measure import observe


class BadScores(UserError):
    """An attack returned something other than one finite number a candidate."""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What an attack said, target by target in the scene's order: ``scores`` [n]; ``by_round`` [R, n] of a single-round
    attack, else None. ``threshold``: the score above which it says "member". ``cpu_s``: what it took."""

    scores: list[np.ndarray]
    by_round: list[np.ndarray | None]
    threshold: float | None
    notes: list[str]
    cpu_s: float

    def packed(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """As a message carries them."""
        arrays = {f"scores{i}": a for i, a in enumerate(self.scores)}
        arrays |= {f"rounds{i}": a for i, a in enumerate(self.by_round) if a is not None}
        return {"threshold": self.threshold, "notes": self.notes, "cpu_s": self.cpu_s}, arrays

    @classmethod
    def unpacked(cls, message: Message, targets: int) -> Answers:
        """From a message about so many targets."""
        scores = [message.arrays[f"scores{i}"] for i in range(targets)]
        return cls(scores=scores, by_round=[message.arrays.get(f"rounds{i}") for i in range(targets)], **message.value)


def ask(
    job: Job, attack: Attack, scene: Scene, trained: Trained, shadows: ShadowLogits | None = None
) -> Answers:
    """The attack's answers for all targets. Raises ``SkipCell`` where it does not apply, :class:`BadScores` for what are no
    real numbers, ``UserError`` where a signal that it needs failed."""
    if broken := sorted(trained.failed[name] for name in attack.needs if name in trained.failed):
        raise UserError(*broken)
    # whatever else the suite's other attacks have measured: a score may not depend on them
    trained = dataclasses.replace(trained, signals={n: a for n, a in trained.signals.items() if n in attack.needs})
    began = time.process_time()
    pool = scene.pool
    scores: dict[Target, np.ndarray] = {}
    by_round: dict[Target, np.ndarray | None] = {}
    notes = []
    for colluders, audits in _by_colluders(job, attack, scene.audits).items():
        if colluders:
            notes.append(_collude(job, attack, colluders, scene, trained, pool))
        for audit in audits:
            scores[audit.target], by_round[audit.target] = _scores_of(job, attack, audit, scene, trained, shadows)
    targets = [audit.target for audit in scene.audits]
    return Answers(
        scores=[scores[t] for t in targets], by_round=[by_round[t] for t in targets], notes=notes,
        threshold=_threshold(attack), cpu_s=time.process_time() - began,
    )  # fmt: skip


def _threshold(attack: Attack) -> float | None:
    given = attack.threshold
    if given is None:
        return None
    if not (isinstance(given, int | float | np.number) and np.isfinite(given)):
        raise BadScores(f"its threshold is {given!r:.60}, expected a finite number or None")
    return float(given)


def _real(given: Any, who: str) -> np.ndarray:
    """As float64: tail probabilities near 1 would tie in float32, and TF01 lives there."""
    a = np.asanyarray(given)
    if isinstance(a, np.ma.MaskedArray):
        raise BadScores(f"{who} returned a masked array; expected a score for every candidate")
    if a.dtype.kind not in "biuf":
        raise BadScores(f"{who} returned {a.dtype if a.shape else type(given).__name__}, expected real numbers")
    return np.asarray(a, dtype=np.float64)


def _read_only(a: np.ndarray) -> np.ndarray:
    """Whatever an attack is given it can look at, not change: views of one array go to several targets."""
    view = a.view()
    view.flags.writeable = False
    return view


def _shown(seen: Observations) -> Observations:
    """As an attack gets to see them."""
    signals = {name: _read_only(a) for name, a in seen.signals.items()}
    models = None if seen.shadow_models is None else _closed(seen.shadow_models)
    rounds, clients = _read_only(seen.rounds), _read_only(seen.clients)
    return dataclasses.replace(seen, signals=signals, shadow_models=models, rounds=rounds, clients=clients)


def _closed(models: ShadowModels) -> ShadowModels:
    return ShadowModels(**{f.name: _read_only(getattr(models, f.name)) for f in dataclasses.fields(models)})


def _scores_of(
    job: Job, attack: Attack, audit: AuditSet, scene: Scene, trained: Trained, shadows: ShadowLogits | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """([n] scores, [R, n] those of every round for a single-round attack)."""
    if attack.needs_shadow_models and not scene.aligned:
        raise SkipCell("shadow models answer for fixed candidates, and align_nonmembers: false redraws them in every round")
    pick = _positions(job, scene, trained, scene.pool, audit)
    served = trained.assignment[:, scene.client_of(audit)]
    observations = observe(attack.view, audit.target.client, trained.rows, trained.rounds, trained.signals, pick, served)
    if attack.needs_shadow_models and shadows is not None:
        models = of_audit(shadows, scene, trained, audit, pick, served[-1])
        observations = dataclasses.replace(observations, shadow_models=models)
    if not len(observations.clients) and not attack.needs_shadow_models:
        raise SkipCell(f"the view '{attack.view}' is empty in this run (coalition: {job.coalition})")
    if attack.needs and not observations.signals and not attack.needs_shadow_models:
        raise SkipCell(f"the view '{attack.view}' holds none of the signals that it needs ({', '.join(sorted(attack.needs))})")
    asked, seen = _audit(job, audit.ids, scene, audit.target.code), _shown(observations)
    scores = _real(attack.score(seen, asked), "score")
    by_round = attack.score_rounds(seen, asked)
    return scores, None if by_round is None else _real(by_round, "score_rounds")


def _positions(job: Job, scene: Scene, trained: Trained, pool: np.ndarray, audit: AuditSet) -> np.ndarray:
    """[n] positions of the candidates in the pool; [R, M, n] where the suite asks for the released code's redrawing."""
    pick = np.searchsorted(pool, audit.ids)
    if scene.aligned:
        return pick
    shape = (len(trained.rounds), job.clients)
    return redrawn(pick, audit.owner, scene.redrawn_from(audit)[pool], shape, job.seed, audit.target.code)


def _audit(job: Job, ids: np.ndarray, scene: Scene, target: int) -> Audit:
    key = key_for(job.seed, "attack", client=target)
    return Audit(
        key=key, device=torch.device(job.device), ids=_read_only(scene.names[ids]), y=_read_only(scene.y_of(ids)),
        n_classes=scene.data.n_classes, target_client=target,
    )  # fmt: skip


def _by_colluders(job: Job, attack: Attack, audits: list[AuditSet]) -> dict[tuple[int, ...], list[AuditSet]]:
    """Targets by who colludes against them: clients that do not defend first, the highest ids first, never the target,
    nor any client whose samples are the members asked about: it would be taught the answers."""
    clients = range(job.clients - 1, -1, -1)
    preference = sorted(clients, key=lambda k: (k in job.members, -k))
    groups: dict[tuple[int, ...], list[AuditSet]] = {}
    for audit in audits:
        asked = set(audit.owner[audit.kind == MEMBER].tolist())
        chosen = tuple([k for k in preference if k != audit.target.client and k not in asked][: attack.colluders])
        if len(chosen) < attack.colluders:
            one = audit.target.client is not None
            others = "other clients there" if one else "clients there whose samples are not asked about"
            raise SkipCell(f"{attack.colluders} colluders wanted, {len(chosen)} {others}")
        groups.setdefault(chosen, []).append(audit)
    return groups


def _collude(
    job: Job, attack: Attack, colluders: tuple[int, ...], scene: Scene, trained: Trained, pool: np.ndarray
) -> str:
    colluding, order = [], scene.presented
    shown = pool[order]
    for j in colluders:
        own = np.isin(shown, scene.shards[j]) & ~np.isin(shown, trained.held_out)
        where = order if scene.aligned else _redrawn_pool(job, trained, order, own, j)
        seen = observe("server", j, trained.rows, trained.rounds, trained.signals, where)
        colluding.append(Colluder(
            client=j, observations=_shown(seen), ids=_read_only(scene.names[shown]), y=_read_only(scene.y_of(shown)),
            member=_read_only(own), defended=j in job.members,
        ))  # fmt: skip
    answer = attack.fit(colluding, _audit(job, shown, scene, -1))  # type: ignore[func-returns-value]
    if answer is not None:  # a generator has not even begun
        raise BadScores(f"fit returned {type(answer).__name__}, expected None: what it learns stays on the attack")
    return f"colluding with client {', '.join(f'{c.client}' + (' (defended)' if c.defended else '') for c in colluding)}"


def _redrawn_pool(job: Job, trained: Trained, order: np.ndarray, own: np.ndarray, j: int) -> np.ndarray:
    """[R, M, N] the pool as the released code would show it to a colluder: its own samples in place, the rest redrawn."""
    owner = np.where(own, j, -2)
    owners_of_pool = np.empty_like(owner)
    owners_of_pool[order] = owner
    return redrawn(order, owner, owners_of_pool, (len(trained.rounds), job.clients), job.seed, j)
