"""Metrics of an attack's scores, computed in a process that has run none of its code."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedbench.core.contract.analysis import Judged, Judgement
from fedbench.core.contract.attack import EXCLUDED, MEMBER, Group
from fedbench.core.metrics.intervals import SharedDraws
from fedbench.core.metrics.registry import Score, score_groups
from fedbench.core.metrics.rounds import (
    DecisionScores,
    Maximum,
    RoundScores,
    decision_report,
    maximum,
    round_report,
)
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.population.audit import AuditSet, shuffle_rng
from fedbench.core.run.job import Cell
from fedbench.core.run.scoring import Answers, BadScores, Scores, require_shapes
from fedbench.core.run.train import Run, Trained, kinds_of
from fedbench.core.store.scores import MaximumScores, TargetScores

_ALL = -1  # stands for the code of all targets together


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The scores of one cell, and their metrics."""

    targets: list[TargetScores]
    pooled: dict[Group, Score]
    arrays: dict[str, np.ndarray]
    notes: list[str]
    cpu_s: float
    judgement: Judgement
    """what an analysis gets to see of them"""


@dataclass(frozen=True, kw_only=True)
class _Candidates:
    """Scores of candidates, all or those of one target, [n] each."""

    scores: np.ndarray
    kind: np.ndarray
    canary: np.ndarray
    in_mix: np.ndarray

    def groups(
        self,
        seed: int,
        code: int,
        draws: SharedDraws | None,
    ) -> dict[Group, Score]:
        """Return the metrics of each group of candidates."""
        rng = numpy_rng(seed, "bootstrap", client=code)
        return score_groups(self.scores, self.kind, self.canary, rng, self.in_mix, draws)


def verdict(
    run: Run,
    cell: Cell,
    answers: Answers,
    draws: SharedDraws | None = None,
) -> Verdict:
    """Compute the metrics of all targets of one cell. Raises :class:`BadScores` for what is not one
    finite number a candidate.

    Args:
        draws: draws that the run's cells share.
    """
    results = [_of_target(run, i, answers, draws) for i in range(len(run.scene.audits))]
    parts = [vars(result.candidates) for result in results]
    pooled = _Candidates(**{n: np.concatenate([part[n] for part in parts]) for n in parts[0]})
    arrays: dict[str, np.ndarray] = {}
    for result in results:
        arrays |= result.arrays
    judgement = Judgement(
        attack=cell.attack.label,
        threshold=answers.threshold,
        targets=tuple(result.judged for result in results),
    )
    return Verdict(
        targets=[result.scores for result in results],
        pooled=pooled.groups(run.job.seed, _ALL, draws),
        arrays=arrays,
        notes=_notes(run.trained, cell, answers),
        cpu_s=answers.cpu_s,
        judgement=judgement,
    )


def _notes(trained: Trained, cell: Cell, answers: Answers) -> list[str]:
    """Return notes on the rows that the server dropped, on the training, the signals that the
    attack reads, and its answers, none twice.
    """
    of_signals = trained.signal_notes
    notes = [*_rejections(trained), *trained.notes]
    notes += [of_signals[name] for name in sorted(cell.request.needs) if name in of_signals]
    return list(dict.fromkeys([*notes, *answers.notes]))


# --- one target -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _TargetVerdict:
    candidates: _Candidates
    scores: TargetScores
    judged: Judged
    arrays: dict[str, np.ndarray]


def _of_target(
    run: Run,
    i: int,
    answers: Answers,
    draws: SharedDraws | None,
) -> _TargetVerdict:
    job = run.job
    scene = run.scene
    trained = run.trained
    audit = run.scene.audits[i]
    code = audit.target.code
    kind = kinds_of(audit, trained)
    scores, by_round = _checked(audit, answers, i, len(trained.rounds))
    candidates = _Candidates(
        scores=scores, kind=kind, canary=scene.canary_of(audit.ids), in_mix=audit.in_mix()
    )
    rows = scores[None] if by_round is None else by_round
    largest = maximum(rows, kind, shuffle_rng(job.seed, code), draws=draws)
    return _TargetVerdict(
        candidates=candidates,
        scores=TargetScores(
            target=code,
            groups=candidates.groups(job.seed, code, draws),
            rounds=_rounds(run, by_round, kind, code),
            decision=_decision(run, answers.threshold, rows, kind, code),
            maximum=_maximum(largest),
        ),
        judged=Judged(
            target=code,
            group=audit.target.index if audit.target.kind == "group" else None,
            scores=scores,
            kind=kind,
            owner=audit.owner,
            model_of=trained.assignment[-1][scene.client_of(audit)],
            y=scene.y_of(audit.ids),
            position=np.searchsorted(scene.pool, audit.ids),
        ),
        arrays=_arrays(audit, candidates, largest),
    )


def _arrays(
    audit: AuditSet, candidates: _Candidates, largest: Maximum | None
) -> dict[str, np.ndarray]:
    """Return what is stored of a target."""
    arrays = {
        "scores": candidates.scores,
        "kind": candidates.kind.astype(np.int8),
        "ids": audit.ids,
        "canary": candidates.canary,
        "owner": audit.owner.astype(np.int32),
        "in_mix": candidates.in_mix,
    }
    if largest is not None:
        arrays["null_auc"] = largest.null_auc.astype(np.float32)
        arrays["null_advantage"] = largest.null_advantage.astype(np.float32)
    return {f"t{audit.target.code}_{name}": a for name, a in arrays.items()}


def _checked(
    audit: AuditSet,
    answers: Answers,
    i: int,
    n_rounds: int,
) -> Scores:
    """Return the scores of the i-th target. Raises :class:`BadScores`."""
    scores = answers.scores[i]
    by_round = answers.by_round[i]
    target = audit.target.words()
    n = len(audit.ids)
    require_shapes(scores, by_round, n, n_rounds, target)
    if infinite := int((~np.isfinite(scores)).sum()):
        raise BadScores(f"{infinite} of {n} scores of {target} are not finite")
    return scores, by_round


def _rounds(
    run: Run,
    by_round: np.ndarray | None,
    kind: np.ndarray,
    code: int,
) -> RoundScores | None:
    """Return the last round, the calibrated round and the labelled oracle of a single-round attack;
    None for a trajectory attack.
    """
    if by_round is None:
        return None
    counted = kind != EXCLUDED
    member = kind[counted] == MEMBER
    rng = numpy_rng(run.job.seed, "best round", client=code)
    return round_report(by_round[:, counted], member, run.trained.rounds, rng)


def _decision(
    run: Run,
    threshold: float | None,
    rows: np.ndarray,
    kind: np.ndarray,
    code: int,
) -> DecisionScores | None:
    """Return accuracy, precision and recall of an attack that says "member" by a threshold of its
    own.
    """
    counted = kind != EXCLUDED
    member = kind[counted] == MEMBER
    if threshold is None or member.all() or not member.any():
        return None
    rng = numpy_rng(run.job.seed, "decision", client=code)
    numbers = run.trained.rounds[-len(rows) :]  # an attack on the trajectory has one row
    return decision_report(rows[:, counted], member, numbers, threshold, rng)


def _maximum(largest: Maximum | None) -> MaximumScores | None:
    if largest is None:
        return None
    return MaximumScores(auc=largest.auc, advantage=largest.advantage, rounds=largest.looks)


def _rejections(trained: Trained) -> list[str]:
    """Return a note for each malicious client with rows that the server dropped."""
    rounds: dict[int, list[int]] = {}
    for t, k in trained.rejected:
        rounds.setdefault(k, []).append(t)
    notes = []
    for k, dropped in sorted(rounds.items()):
        rows = "row" if len(dropped) == 1 else "rows"
        notes.append(
            f"the server rejected {len(dropped)} {rows} of client {k} that were not finite (first "
            f"in round {dropped[0]})"
        )
    return notes
