"""Let one attack judge one training: scores for every target, then metrics."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

import numpy as np
import torch

from fedbench.core.contract.attack import Attack, Audit, Colluder
from fedbench.core.contract.errors import SkipCell
from fedbench.core.experiment.group_report import violations_of
from fedbench.core.experiment.job import Cell, Job
from fedbench.core.experiment.redraw import redrawn
from fedbench.core.experiment.scene import Scene
from fedbench.core.experiment.shadow_models import Shadows, of_audit
from fedbench.core.experiment.train import Trained, kinds_of
from fedbench.core.metrics.bestround import round_report
from fedbench.core.metrics.decision import decision_report
from fedbench.core.metrics.groups import score_groups
from fedbench.core.numerics.rng import key_for, numpy_rng
from fedbench.core.population.audit import EXCLUDED, MEMBER, AuditSet
from fedbench.core.signals.measure import observe
from fedbench.core.store.record import DecisionScores, RoundScores, Score, TargetScores, Violations


@dataclass(frozen=True)
class Verdict:
    """The scores of one cell and what they amount to."""

    targets: list[TargetScores]
    pooled: dict[str, Score]
    arrays: dict[str, np.ndarray]
    notes: list[str]
    cpu_s: float
    violations: Violations | None = None


class BadScores(RuntimeError):
    """An attack returned something other than one finite number a candidate."""


def judge(
    job: Job, cell: Cell, attack: Attack, scene: Scene, trained: Trained, shadows: Shadows | None = None
) -> Verdict:
    """All targets of one cell. Raises ``SkipCell`` where the attack does not apply, :class:`BadScores` for bad output."""
    began = time.process_time()
    pool = scene.pool
    scores: dict[int, np.ndarray] = {}
    by_round: dict[int, np.ndarray | None] = {}
    notes = _rejections(trained)
    for colluders, audits in _by_colluders(job, attack, scene.audits).items():
        if colluders:
            notes.append(_collude(job, attack, colluders, scene, trained, pool))
        for audit in audits:
            scores[audit.target], by_round[audit.target] = _scores_of(job, attack, audit, scene, trained, shadows)
    cpu = time.process_time() - began
    arrays: dict[str, np.ndarray] = {}
    targets, everyone = [], []
    for audit in scene.audits:
        s, kind, canary = scores[audit.target], kinds_of(audit, trained), scene.canary_of(audit.ids)
        groups = _groups(job, cell, audit.target, s, kind, canary)
        rounds = _rounds(job, by_round[audit.target], kind, audit.target, trained.rounds)
        said = by_round[audit.target]
        decision = _decision(job, attack, s[None] if said is None else said, kind, audit.target, trained.rounds)
        targets.append(TargetScores(target=audit.target, groups=groups, rounds=rounds, decision=decision))
        everyone.append((s, kind, canary))
        prefix = f"t{audit.target}_"
        arrays |= {f"{prefix}scores": s, f"{prefix}kind": kind.astype(np.int8), f"{prefix}ids": audit.ids}
        arrays |= {f"{prefix}canary": canary, f"{prefix}owner": audit.owner.astype(np.int32)}
    pooled = _groups(job, cell, -1, *(np.concatenate(parts) for parts in zip(*everyone, strict=True)))
    return Verdict(targets, pooled, arrays, notes, cpu, _violations(job, attack, scene, trained, scores))


def _violations(
    job: Job, attack: Attack, scene: Scene, trained: Trained, scores: dict[int, np.ndarray]
) -> Violations | None:
    if attack.threshold is None:
        return None
    said = [
        (scores[a.target] > attack.threshold, kinds_of(a, trained), trained.assignment[-1][scene.client_of(a)])
        for a in scene.audits
    ]  # fmt: skip
    return violations_of(scene, trained, said, job.insider["malicious"] if job.adversary and job.insider else 0)


def _rejections(trained: Trained) -> list[str]:
    """Which malicious clients' rows the server dropped, for the record."""
    rounds: dict[int, list[int]] = {}
    for t, k in trained.rejected:
        rounds.setdefault(k, []).append(t)
    return [
        f"the server rejected {len(ts)} row{'s' * (len(ts) > 1)} of client {k} that were not finite (first in round {ts[0]})"
        for k, ts in sorted(rounds.items())
    ]


def _groups(job: Job, cell: Cell, target: int, scores: np.ndarray, kind: np.ndarray, canary: np.ndarray) -> dict:
    keep = kind != EXCLUDED
    rng = numpy_rng(job.seed, "bootstrap", client=target)
    return score_groups(scores[keep], kind[keep], canary[keep], rng)


def _rounds(
    job: Job, scores: np.ndarray | None, kind: np.ndarray, target: int, rounds: np.ndarray
) -> RoundScores | None:
    """Last round, calibrated round and the labelled oracle of a single-round attack; None for a trajectory attack."""
    if scores is None:
        return None
    keep = kind != EXCLUDED
    if scores.shape != (len(rounds), len(kind)):
        raise BadScores(f"score_rounds returned shape {list(scores.shape)}; expected [{len(rounds)}, {len(kind)}]")
    report = round_report(scores[:, keep], kind[keep] == MEMBER, numpy_rng(job.seed, "best round", client=target))
    facts = dataclasses.asdict(report)
    return RoundScores(best_round=int(rounds[facts.pop("best_index")]), **facts)


def _decision(
    job: Job, attack: Attack, scores: np.ndarray, kind: np.ndarray, target: int, rounds: np.ndarray
) -> DecisionScores | None:
    """Accuracy, precision and recall of an attack that says "member" by a threshold of its own."""
    keep = kind != EXCLUDED
    if attack.threshold is None or len(set(kind[keep] == MEMBER)) < 2:
        return None
    rng = numpy_rng(job.seed, "decision", client=target)
    facts = dataclasses.asdict(decision_report(scores[:, keep], kind[keep] == MEMBER, attack.threshold, rng))
    best = facts.pop("best_index")
    return DecisionScores(best_round=int(rounds[best] if len(scores) == len(rounds) else rounds[-1]), **facts)


def _scores_of(
    job: Job, attack: Attack, audit: AuditSet, scene: Scene, trained: Trained, shadows: Shadows | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """([n] scores, [R, n] those of every round for a single-round attack)."""
    if attack.needs_shadow_models and not scene.aligned:
        raise SkipCell("shadow models answer for fixed candidates, and align_nonmembers: false redraws them in every round")
    pick = _positions(job, scene, trained, scene.pool, audit)
    served = trained.assignment[:, scene.client_of(audit)]
    observations = observe(attack.view, audit.target, trained.rows, trained.rounds, trained.signals, pick, served)
    if attack.needs_shadow_models and shadows is not None:
        seen = of_audit(shadows, scene, trained, audit, pick, served[-1])
        observations = dataclasses.replace(observations, shadow_models=seen)
    if not observations.signals and not attack.needs_shadow_models:
        raise SkipCell(f"the view '{attack.view}' is empty in this run (coalition: {job.coalition})")
    asked = _audit(job, audit.ids, scene, audit.target)
    # float64: tail probabilities near 1 would tie in float32, and TF01 lives there
    scores = np.asarray(attack.score(observations, asked), dtype=np.float64)
    if scores.shape != (len(audit.ids),):
        raise BadScores(f"score returned shape {list(scores.shape)} for target {audit.target}; expected [{len(audit.ids)}]")
    if not np.isfinite(scores).all():
        raise BadScores(f"{int((~np.isfinite(scores)).sum())} of {len(scores)} scores of target {audit.target} are not finite")
    by_round = attack.score_rounds(observations, asked)
    return scores, None if by_round is None else np.asarray(by_round, dtype=np.float64)


def _positions(job: Job, scene: Scene, trained: Trained, pool: np.ndarray, audit: AuditSet) -> np.ndarray:
    """[n] positions of the candidates in the pool; [R, M, n] where the suite asks for the released code's redrawing."""
    pick = np.searchsorted(pool, audit.ids)
    if scene.aligned:
        return pick
    owners = np.full(len(scene.names), -1)
    for k, shard in enumerate(scene.shards):
        owners[shard] = k
    shape = (len(trained.rounds), job.federation["clients"])
    return redrawn(pick, audit.owner, owners[pool], shape, job.seed, audit.target)


def _audit(job: Job, ids: np.ndarray, scene: Scene, target: int) -> Audit:
    key = key_for(job.seed, "attack", client=target)
    return Audit(key, torch.device(job.device), scene.names[ids], scene.y_of(ids), scene.data.n_classes, target)


def _by_colluders(job: Job, attack: Attack, audits: list[AuditSet]) -> dict[tuple[int, ...], list[AuditSet]]:
    """Targets by who colludes against them: clients that do not defend first, the highest ids first, never the target,
    nor any client whose samples are the members asked about: it would be taught the answers."""
    clients = range(job.federation["clients"] - 1, -1, -1)
    preference = sorted(clients, key=lambda k: (k in job.members, -k))
    groups: dict[tuple[int, ...], list[AuditSet]] = {}
    for audit in audits:
        asked = set(audit.owner[audit.kind == MEMBER].tolist())
        chosen = tuple([k for k in preference if k != audit.target and k not in asked][: attack.colluders])
        if len(chosen) < attack.colluders:
            others = "other clients there" if audit.target >= 0 else "clients there whose samples are not asked about"
            raise SkipCell(f"{attack.colluders} colluders wanted, {len(chosen)} {others}")
        groups.setdefault(chosen, []).append(audit)
    return groups


def _collude(
    job: Job, attack: Attack, colluders: tuple[int, ...], scene: Scene, trained: Trained, pool: np.ndarray
) -> str:
    shadows, order = [], scene.presented
    shown = pool[order]
    for j in colluders:
        own = np.isin(shown, scene.shards[j]) & ~np.isin(shown, trained.held_out)
        where = order if scene.aligned else _redrawn_pool(job, trained, order, own, j)
        seen = observe("server", j, trained.rows, trained.rounds, trained.signals, where)
        shadows.append(Colluder(j, seen, scene.names[shown], scene.y_of(shown), own, j in job.members))
    attack.fit(shadows, _audit(job, shown, scene, -1))
    return f"colluding with client {', '.join(f'{s.client}' + (' (defended)' if s.defended else '') for s in shadows)}"


def _redrawn_pool(job: Job, trained: Trained, order: np.ndarray, own: np.ndarray, j: int) -> np.ndarray:
    """[R, M, N] the pool as the released code would show it to a colluder: its own samples in place, the rest redrawn."""
    owner = np.where(own, j, -2)
    owners_of_pool = np.empty_like(owner)
    owners_of_pool[order] = owner
    return redrawn(order, owner, owners_of_pool, (len(trained.rounds), job.federation["clients"]), job.seed, j)
