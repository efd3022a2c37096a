"""Let one attack judge one training: scores for every target, then metrics."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

import numpy as np
import torch

from fedbench.core.contract.analysis import Judged, Judgement
from fedbench.core.contract.attack import Attack, Audit, Colluder
from fedbench.core.contract.candidates import EXCLUDED, MEMBER, Group
from fedbench.core.contract.errors import SkipCell
from fedbench.core.experiment.job import Cell, Job
from fedbench.core.experiment.redraw import redrawn
from fedbench.core.experiment.scene import Scene
from fedbench.core.experiment.shadow_models import ShadowLogits, of_audit
from fedbench.core.experiment.train import Trained, kinds_of
from fedbench.core.metrics.bestround import round_report
from fedbench.core.metrics.decision import decision_report
from fedbench.core.metrics.groups import Score, score_groups
from fedbench.core.numerics.rng import key_for, numpy_rng
from fedbench.core.population.audit import AuditSet
from fedbench.core.population.target import Target
from fedbench.core.signals.measure import observe
from fedbench.core.store.record import DecisionScores, RoundScores, TargetScores


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The scores of one cell and what they amount to. ``judgement``: what an analysis gets to see of them."""

    targets: list[TargetScores]
    pooled: dict[Group, Score]
    arrays: dict[str, np.ndarray]
    notes: list[str]
    cpu_s: float
    judgement: Judgement


class BadScores(RuntimeError):
    """An attack returned something other than one finite number a candidate."""


def judge(
    job: Job, cell: Cell, attack: Attack, scene: Scene, trained: Trained, shadows: ShadowLogits | None = None
) -> Verdict:
    """All targets of one cell. Raises ``SkipCell`` where the attack does not apply, :class:`BadScores` for bad output."""
    began = time.process_time()
    pool = scene.pool
    scores: dict[Target, np.ndarray] = {}
    by_round: dict[Target, np.ndarray | None] = {}
    notes = _rejections(trained)
    for colluders, audits in _by_colluders(job, attack, scene.audits).items():
        if colluders:
            notes.append(_collude(job, attack, colluders, scene, trained, pool))
        for audit in audits:
            scores[audit.target], by_round[audit.target] = _scores_of(job, attack, audit, scene, trained, shadows)
    cpu = time.process_time() - began
    arrays: dict[str, np.ndarray] = {}
    targets, everyone = [], []
    judged = []
    for audit in scene.audits:
        code, s, kind, canary = audit.target.code, scores[audit.target], kinds_of(audit, trained), scene.canary_of(audit.ids)
        groups = _groups(job, code, s, kind, canary, audit.in_mix())
        said = by_round[audit.target]
        rounds = _rounds(job, said, kind, code, trained.rounds)
        decision = _decision(job, attack, s[None] if said is None else said, kind, code, trained.rounds)
        targets.append(TargetScores(target=code, groups=groups, rounds=rounds, decision=decision))
        everyone.append((s, kind, canary, audit.in_mix()))
        model_of = trained.assignment[-1][scene.client_of(audit)]
        group = audit.target.index if audit.target.kind == "group" else None
        judged.append(Judged(target=code, group=group, scores=s, kind=kind, owner=audit.owner, model_of=model_of))
        prefix = f"t{code}_"
        arrays |= {f"{prefix}scores": s, f"{prefix}kind": kind.astype(np.int8), f"{prefix}ids": audit.ids}
        arrays |= {f"{prefix}canary": canary, f"{prefix}owner": audit.owner.astype(np.int32), f"{prefix}in_mix": audit.in_mix()}
    pooled = _groups(job, -1, *(np.concatenate(parts) for parts in zip(*everyone, strict=True)))
    judgement = Judgement(attack=cell.attack.label, threshold=attack.threshold, targets=tuple(judged))
    return Verdict(targets=targets, pooled=pooled, arrays=arrays, notes=notes, cpu_s=cpu, judgement=judgement)


def _rejections(trained: Trained) -> list[str]:
    """Which malicious clients' rows the server dropped, for the record."""
    rounds: dict[int, list[int]] = {}
    for t, k in trained.rejected:
        rounds.setdefault(k, []).append(t)
    return [
        f"the server rejected {len(ts)} row{'s' * (len(ts) > 1)} of client {k} that were not finite (first in round {ts[0]})"
        for k, ts in sorted(rounds.items())
    ]


def _groups(
    job: Job, target: int, scores: np.ndarray, kind: np.ndarray, canary: np.ndarray, in_mix: np.ndarray
) -> dict[Group, Score]:
    keep = kind != EXCLUDED
    rng = numpy_rng(job.seed, "bootstrap", client=target)
    return score_groups(scores[keep], kind[keep], canary[keep], rng, in_mix[keep])


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
    job: Job, attack: Attack, audit: AuditSet, scene: Scene, trained: Trained, shadows: ShadowLogits | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """([n] scores, [R, n] those of every round for a single-round attack)."""
    if attack.needs_shadow_models and not scene.aligned:
        raise SkipCell("shadow models answer for fixed candidates, and align_nonmembers: false redraws them in every round")
    pick = _positions(job, scene, trained, scene.pool, audit)
    served = trained.assignment[:, scene.client_of(audit)]
    observations = observe(attack.view, audit.target.client, trained.rows, trained.rounds, trained.signals, pick, served)
    if attack.needs_shadow_models and shadows is not None:
        seen = of_audit(shadows, scene, trained, audit, pick, served[-1])
        observations = dataclasses.replace(observations, shadow_models=seen)
    if not observations.signals and not attack.needs_shadow_models:
        raise SkipCell(f"the view '{attack.view}' is empty in this run (coalition: {job.coalition})")
    asked = _audit(job, audit.ids, scene, audit.target.code)
    # float64: tail probabilities near 1 would tie in float32, and TF01 lives there
    scores = np.asarray(attack.score(observations, asked), dtype=np.float64)
    if scores.shape != (len(audit.ids),):
        raise BadScores(f"score returned shape {list(scores.shape)} for {audit.target.words()}; expected [{len(audit.ids)}]")
    if not np.isfinite(scores).all():
        raise BadScores(f"{int((~np.isfinite(scores)).sum())} of {len(scores)} scores of {audit.target.words()} are not finite")
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
    shape = (len(trained.rounds), job.clients)
    return redrawn(pick, audit.owner, owners[pool], shape, job.seed, audit.target.code)


def _audit(job: Job, ids: np.ndarray, scene: Scene, target: int) -> Audit:
    key = key_for(job.seed, "attack", client=target)
    return Audit(
        key=key, device=torch.device(job.device), ids=scene.names[ids], y=scene.y_of(ids), n_classes=scene.data.n_classes,
        target_client=target,
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
            client=j, observations=seen, ids=scene.names[shown], y=scene.y_of(shown), member=own, defended=j in job.members
        ))  # fmt: skip
    attack.fit(colluding, _audit(job, shown, scene, -1))
    return f"colluding with client {', '.join(f'{c.client}' + (' (defended)' if c.defended else '') for c in colluding)}"


def _redrawn_pool(job: Job, trained: Trained, order: np.ndarray, own: np.ndarray, j: int) -> np.ndarray:
    """[R, M, N] the pool as the released code would show it to a colluder: its own samples in place, the rest redrawn."""
    owner = np.where(own, j, -2)
    owners_of_pool = np.empty_like(owner)
    owners_of_pool[order] = owner
    return redrawn(order, owner, owners_of_pool, (len(trained.rounds), job.clients), job.seed, j)
