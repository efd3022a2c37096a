"""Let one attack judge one training: scores for every target, then metrics."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from fedbench.core.contract.attack import Attack, Audit, Shadow
from fedbench.core.contract.errors import SkipCell
from fedbench.core.data.audit import EXCLUDED, AuditSet
from fedbench.core.execution.job import Cell, Job
from fedbench.core.execution.train import Scene, Trained, kinds_of
from fedbench.core.metrics.groups import score_groups
from fedbench.core.rng import key_for, numpy_rng
from fedbench.core.signals.measure import observe
from fedbench.core.store.record import Score, TargetScores


@dataclass(frozen=True)
class Verdict:
    """The scores of one cell and what they amount to."""

    targets: list[TargetScores]
    pooled: dict[str, Score]
    arrays: dict[str, np.ndarray]
    notes: list[str]
    cpu_s: float


class BadScores(RuntimeError):
    """An attack returned something other than one finite number a candidate."""


def judge(job: Job, cell: Cell, attack: Attack, scene: Scene, trained: Trained) -> Verdict:
    """All targets of one cell. Raises ``SkipCell`` where the attack does not apply, :class:`BadScores` for bad output."""
    began = time.process_time()
    pool = scene.pool
    scores, notes = {}, []
    for colluders, audits in _by_colluders(job, attack, scene.audits).items():
        if colluders:
            notes.append(_collude(job, attack, colluders, scene, trained, pool))
        for audit in audits:
            scores[audit.target] = _scores_of(job, attack, audit, scene, trained, pool)
    cpu = time.process_time() - began
    arrays: dict[str, np.ndarray] = {}
    targets, everyone = [], []
    for audit in scene.audits:
        s, kind, canary = scores[audit.target], kinds_of(audit, trained), scene.canary_of(audit.ids)
        targets.append(TargetScores(target=audit.target, groups=_groups(job, cell, audit.target, s, kind, canary)))
        everyone.append((s, kind, canary))
        prefix = f"t{audit.target}_"
        arrays |= {f"{prefix}scores": s, f"{prefix}kind": kind.astype(np.int8), f"{prefix}ids": audit.ids}
        arrays |= {f"{prefix}canary": canary, f"{prefix}owner": audit.owner.astype(np.int32)}
    pooled = _groups(job, cell, -1, *(np.concatenate(parts) for parts in zip(*everyone, strict=True)))
    return Verdict(targets, pooled, arrays, notes, cpu)


def _groups(job: Job, cell: Cell, target: int, scores: np.ndarray, kind: np.ndarray, canary: np.ndarray) -> dict:
    keep = kind != EXCLUDED
    rng = numpy_rng(job.seed, "bootstrap", client=target)
    return score_groups(scores[keep], kind[keep], canary[keep], rng)


def _scores_of(
    job: Job, attack: Attack, audit: AuditSet, scene: Scene, trained: Trained, pool: np.ndarray
) -> np.ndarray:
    observations = observe(
        attack.view, audit.target, trained.rows, trained.rounds, trained.signals, np.searchsorted(pool, audit.ids)
    )
    if not observations.signals:
        raise SkipCell(f"the view '{attack.view}' is empty in this run (coalition: {job.coalition})")
    out = attack.score(observations, _audit(job, audit.ids, scene, audit.target))
    scores = np.asarray(out, dtype=np.float32)
    if scores.shape != (len(audit.ids),):
        raise BadScores(f"score returned shape {list(scores.shape)} for target {audit.target}; expected [{len(audit.ids)}]")
    if not np.isfinite(scores).all():
        raise BadScores(f"{int((~np.isfinite(scores)).sum())} of {len(scores)} scores of target {audit.target} are not finite")
    return scores


def _audit(job: Job, ids: np.ndarray, scene: Scene, target: int) -> Audit:
    key = key_for(job.seed, "attack", client=target)
    return Audit(key, torch.device(job.device), scene.names[ids], scene.y_of(ids), scene.data.n_classes, target)


def _by_colluders(job: Job, attack: Attack, audits: list[AuditSet]) -> dict[tuple[int, ...], list[AuditSet]]:
    """Targets by who colludes against them: clients that do not defend first, the highest ids first, never the target."""
    clients = range(job.federation["clients"] - 1, -1, -1)
    preference = sorted(clients, key=lambda k: (k in job.members, -k))
    groups: dict[tuple[int, ...], list[AuditSet]] = {}
    for audit in audits:
        chosen = tuple([k for k in preference if k != audit.target][: attack.colluders])
        if len(chosen) < attack.colluders:
            raise SkipCell(f"{attack.colluders} colluders wanted, {len(chosen)} other clients there")
        groups.setdefault(chosen, []).append(audit)
    return groups


def _collude(
    job: Job, attack: Attack, colluders: tuple[int, ...], scene: Scene, trained: Trained, pool: np.ndarray
) -> str:
    shadows, order = [], scene.presented
    shown = pool[order]
    for j in colluders:
        own = np.isin(shown, scene.shards[j]) & ~np.isin(shown, trained.held_out)
        seen = observe("server", j, trained.rows, trained.rounds, trained.signals, order)
        shadows.append(Shadow(j, seen, scene.names[shown], scene.y_of(shown), own, j in job.members))
    attack.fit(shadows, _audit(job, shown, scene, -1))
    return f"colluding with client {', '.join(f'{s.client}' + (' (defended)' if s.defended else '') for s in shadows)}"
