"""What an attack's scores amount to: metrics, in a process that has run none of its code."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from fedbench.core.contract.analysis import Judged, Judgement
from fedbench.core.contract.attack import EXCLUDED, MEMBER, Group
from fedbench.core.metrics.intervals import SharedDraws
from fedbench.core.metrics.registry import Score, score_groups
from fedbench.core.metrics.rounds import Maximum, decision_report, maximum, round_report
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.population.audit import AuditSet, shuffle_rng
from fedbench.core.run.job import Cell, Job
from fedbench.core.run.judge import Answers, BadScores
from fedbench.core.run.scene import Scene
from fedbench.core.run.train import Trained, kinds_of
from fedbench.core.store.scores import DecisionScores, MaximumScores, RoundScores, TargetScores


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The scores of one cell and what they amount to. ``judgement``: what an analysis gets to see
    of them.
    """

    targets: list[TargetScores]
    pooled: dict[Group, Score]
    arrays: dict[str, np.ndarray]
    notes: list[str]
    cpu_s: float
    judgement: Judgement


def verdict(
    job: Job,
    cell: Cell,
    scene: Scene,
    trained: Trained,
    answers: Answers,
    kept: SharedDraws | None = None,
) -> Verdict:
    """All targets of one cell; ``kept``: draws for the run's other cells.

    Raises :class:`BadScores` for what is not one finite number a candidate.
    """
    arrays: dict[str, np.ndarray] = {}
    targets, everyone = [], []
    judged = []
    for i, audit in enumerate(scene.audits):
        s, said = _checked(audit, answers, i)
        code, kind, canary = audit.target.code, kinds_of(audit, trained), scene.canary_of(audit.ids)
        groups = _groups(job, code, s, kind, canary, audit.in_mix(), kept)
        rounds = _rounds(job, said, kind, code, trained.rounds)
        by_round = s[None] if said is None else said
        decision = _decision(job, answers.threshold, by_round, kind, code, trained.rounds)
        largest = maximum(by_round, kind, shuffle_rng(job.seed, code), draws=kept)
        targets.append(
            TargetScores(
                target=code,
                groups=groups,
                rounds=rounds,
                decision=decision,
                maximum=_maximum(largest),
            )
        )
        everyone.append((s, kind, canary, audit.in_mix()))
        model_of = trained.assignment[-1][scene.client_of(audit)]
        group = audit.target.index if audit.target.kind == "group" else None
        judged.append(
            Judged(
                target=code,
                group=group,
                scores=s,
                kind=kind,
                owner=audit.owner,
                model_of=model_of,
                y=scene.y_of(audit.ids),
            )
        )
        prefix = f"t{code}_"
        arrays |= {
            f"{prefix}scores": s,
            f"{prefix}kind": kind.astype(np.int8),
            f"{prefix}ids": audit.ids,
        }
        arrays |= {
            f"{prefix}canary": canary,
            f"{prefix}owner": audit.owner.astype(np.int32),
            f"{prefix}in_mix": audit.in_mix(),
        }
        arrays |= _null(largest, prefix)
    s, kind, canary, in_mix = (np.concatenate(parts) for parts in zip(*everyone, strict=True))
    pooled = _groups(job, -1, s, kind, canary, in_mix, kept)
    judgement = Judgement(
        attack=cell.attack.label, threshold=answers.threshold, targets=tuple(judged)
    )
    of_signals = [
        trained.signal_notes[n] for n in sorted(cell.look.needs) if n in trained.signal_notes
    ]
    notes = list(
        dict.fromkeys([*_rejections(trained), *trained.notes, *of_signals, *answers.notes])
    )
    return Verdict(
        targets=targets,
        pooled=pooled,
        arrays=arrays,
        notes=notes,
        cpu_s=answers.cpu_s,
        judgement=judgement,
    )


def _checked(audit: AuditSet, answers: Answers, i: int) -> tuple[np.ndarray, np.ndarray | None]:
    """([n] scores of the i-th target, [R, n] those of every round)."""
    scores, place = answers.scores[i], audit.target.words()
    if scores.shape != (len(audit.ids),):
        raise BadScores(
            f"score returned shape {list(scores.shape)} for {place}; expected [{len(audit.ids)}]"
        )
    if not np.isfinite(scores).all():
        raise BadScores(
            f"{int((~np.isfinite(scores)).sum())} of {len(scores)} scores of {place} are not finite"
        )
    return scores, answers.by_round[i]


def _maximum(found: Maximum | None) -> MaximumScores | None:
    return (
        None
        if found is None
        else MaximumScores(auc=found.auc, advantage=found.advantage, rounds=found.looks)
    )


def _null(found: Maximum | None, prefix: str) -> dict[str, np.ndarray]:
    if found is None:
        return {}
    values = {"null_auc": found.null_auc, "null_advantage": found.null_advantage}
    return {f"{prefix}{name}": a.astype(np.float32) for name, a in values.items()}


def _rejections(trained: Trained) -> list[str]:
    """Which malicious clients' rows the server dropped, for the record."""
    rounds: dict[int, list[int]] = {}
    for t, k in trained.rejected:
        rounds.setdefault(k, []).append(t)
    return [
        f"the server rejected {len(ts)} row{'s' * (len(ts) > 1)} of client {k} that were not "
        f"finite (first in round {ts[0]})"
        for k, ts in sorted(rounds.items())
    ]


def _groups(
    job: Job,
    target: int,
    scores: np.ndarray,
    kind: np.ndarray,
    canary: np.ndarray,
    in_mix: np.ndarray,
    kept: SharedDraws | None,
) -> dict[Group, Score]:
    keep = kind != EXCLUDED
    rng = numpy_rng(job.seed, "bootstrap", client=target)
    return score_groups(scores[keep], kind[keep], canary[keep], rng, in_mix[keep], kept)


def _rounds(
    job: Job, scores: np.ndarray | None, kind: np.ndarray, target: int, rounds: np.ndarray
) -> RoundScores | None:
    """Last round, calibrated round and the labelled oracle of a single-round attack; None for a
    trajectory attack.
    """
    if scores is None:
        return None
    keep = kind != EXCLUDED
    if scores.shape != (len(rounds), len(kind)):
        raise BadScores(
            f"score_rounds returned shape {list(scores.shape)}; expected [{len(rounds)}, "
            f"{len(kind)}]"
        )
    report = round_report(
        scores[:, keep], kind[keep] == MEMBER, numpy_rng(job.seed, "best round", client=target)
    )
    facts = dataclasses.asdict(report)
    return RoundScores(best_round=int(rounds[facts.pop("best_index")]), **facts)


def _decision(
    job: Job,
    threshold: float | None,
    scores: np.ndarray,
    kind: np.ndarray,
    target: int,
    rounds: np.ndarray,
) -> DecisionScores | None:
    """Accuracy, precision and recall of an attack that says "member" by a threshold of its own."""
    keep = kind != EXCLUDED
    if threshold is None or len(set(kind[keep] == MEMBER)) < 2:
        return None
    rng = numpy_rng(job.seed, "decision", client=target)
    facts = dataclasses.asdict(
        decision_report(scores[:, keep], kind[keep] == MEMBER, threshold, rng)
    )
    best = facts.pop("best_index")
    return DecisionScores(
        best_round=int(rounds[best] if len(scores) == len(rounds) else rounds[-1]), **facts
    )
