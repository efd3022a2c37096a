"""Ask an attack for the scores of every candidate of every target of a run."""

from __future__ import annotations

import time
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedbench.core.contract.attack import (
    EXCLUDED,
    MEMBER,
    Attack,
    Audit,
    Colluder,
    Observations,
)
from fedbench.core.contract.errors import SkipCell, UserError
from fedbench.core.contract.task import unserved
from fedbench.core.numerics.rng import key_for, numpy_rng
from fedbench.core.population.audit import AuditSet, Target
from fedbench.core.process.channel import Message, pass_on_interrupt
from fedbench.core.run.job import Job
from fedbench.core.run.needs import colluders_first, shared_view
from fedbench.core.run.observations import (
    frozen,
    observations_of,
    observations_of_colluder,
    part_of,
    read_only,
)
from fedbench.core.run.scene import Scene
from fedbench.core.run.train import Run, kinds_of
from fedbench.core.words import describe_error

Scores = tuple[np.ndarray, np.ndarray | None]
"""([n] scores, [R, n] those of every round for a single-round attack)"""


NOTE = "knows the membership of half of the candidates"


class BadScores(UserError):
    """An attack returned something other than one finite number a candidate."""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Answers of an attack, target by target in the scene's order."""

    scores: list[np.ndarray]
    """[n] of each target"""
    by_round: list[np.ndarray | None]
    """[R, n] of each target, of a single-round attack"""
    threshold: float | None
    """the score above which it says "member" """
    notes: list[str]
    cpu_s: float

    def packed(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return them as (JSON values, arrays) of a message."""
        arrays = {f"scores{i}": a for i, a in enumerate(self.scores)}
        arrays |= {f"rounds{i}": a for i, a in enumerate(self.by_round) if a is not None}
        return {"threshold": self.threshold, "notes": self.notes, "cpu_s": self.cpu_s}, arrays

    @classmethod
    def unpacked(cls, message: Message, targets: int) -> Answers:
        """Return the answers in a message about so many targets."""
        scores = [message.arrays[f"scores{i}"] for i in range(targets)]
        by_round = [message.arrays.get(f"rounds{i}") for i in range(targets)]
        return cls(scores=scores, by_round=by_round, **message.value)


def ask(run: Run, attack: Attack) -> Answers:
    """Return the attack's answers for all targets.

    Raises:
        SkipCell: where it does not apply.
        BadScores: for answers that are no real numbers.
        UserError: where a signal that it needs failed.
    """
    trained = run.trained
    if reason := unserved(run.scene.data.task, attack.tasks, "the attack"):
        raise SkipCell(reason)
    if reasons := sorted(trained.unserved[n] for n in attack.needs if n in trained.unserved):
        raise SkipCell(reasons[0])
    if broken := sorted(trained.failed[name] for name in attack.needs if name in trained.failed):
        raise UserError(*broken)
    # a score may not depend on what else the suite's attacks have measured
    signals = {name: a for name, a in trained.signals.items() if name in attack.needs}
    run = replace(run, trained=replace(trained, signals=signals))
    began = time.process_time()
    answers = {}
    notes = []
    for colluders, audits in by_colluders(run.job, attack, run.scene.audits).items():
        if colluders:
            notes.append(_collude(run, attack, colluders))
        for audit in audits:
            score = _scores_by_halves if attack.knows_half else _scores_of
            answers[audit.target] = score(run, attack, audit)
    if attack.knows_half:
        notes.append(NOTE)
    in_order = [answers[audit.target] for audit in run.scene.audits]
    return Answers(
        scores=[scores for scores, _ in in_order],
        by_round=[by_round for _, by_round in in_order],
        notes=notes,
        threshold=_threshold(attack),
        cpu_s=time.process_time() - began,
    )


# --- scores of one target -------------------------------------------------------------------------


def _scores_of(run: Run, attack: Attack, audit: AuditSet) -> Scores:
    question = _audit(run, audit.ids, audit.target.code)
    return _answer(attack, observations_of(run, attack, audit), question)


def _scores_by_halves(run: Run, attack: Attack, audit: AuditSet) -> Scores:
    """Return the scores of each half of the candidates by a copy of the attack that was fitted to
    the other half, as ranks.
    """
    if attack.colluders or attack.threshold is not None:
        raise UserError(
            "an attack that knows half of the candidates has neither colluders nor a threshold: "
            "its scores are ranks"
        )
    if not run.scene.aligned:
        raise SkipCell(
            "half of the candidates are known, and align_nonmembers: false redraws them in every "
            "round"
        )
    kind = kinds_of(audit, run.trained)
    names = run.scene.names[audit.ids]
    second = in_second_half(kind, names, run.job.seed, audit.target)
    observed = observations_of(run, attack, audit)
    scores = np.empty(len(kind))
    by_round = None
    for half in (~second, second):
        taught = np.flatnonzero(~half & (kind != EXCLUDED))
        taught = taught[np.argsort(names[taught])]
        judged = np.flatnonzero(half)
        counted = kind[half] != EXCLUDED
        member = kind[taught] == MEMBER
        values, rounds = _scores_of_half(
            run,
            attack,
            audit,
            observed,
            taught,
            member,
            judged,
        )
        scores[judged] = ranks(values, counted)
        if rounds is not None:
            if by_round is None:
                by_round = np.full((len(observed.rounds), len(kind)), np.nan)
            by_round[:, judged] = ranks(rounds, counted)
    return scores, by_round


def _scores_of_half(
    run: Run,
    attack: Attack,
    audit: AuditSet,
    observed: Observations,
    taught: np.ndarray,
    member: np.ndarray,
    judged: np.ndarray,
) -> Scores:
    """Return the scores of the candidates at positions ``judged`` by a copy of the attack that was
    fitted to those at positions ``taught``, of which it knows the membership: ``member``, a bool
    each.
    """
    copy = fresh(attack)
    code = audit.target.code
    taught_ids = audit.ids[taught]
    lesson = _lesson(run, code, part_of(observed, taught), taught_ids, member)
    _fit(copy, [lesson], _audit(run, taught_ids, code))
    question = _audit(run, audit.ids[judged], code)
    scores, by_round = _answer(copy, part_of(observed, judged), question)
    words = f"half of the candidates of {audit.target.words()}"
    require_shapes(scores, by_round, len(judged), len(observed.rounds), words)
    return scores, by_round


def require_shapes(
    scores: np.ndarray,
    by_round: np.ndarray | None,
    n: int,
    n_rounds: int,
    words: str,
) -> None:
    """Raise :class:`BadScores` unless scores are [n] and those of every round [n_rounds, n].

    Args:
        words: the candidates, in words.
    """
    expected = {"score": (scores, [n])}
    if by_round is not None:
        expected["score_rounds"] = (by_round, [n_rounds, n])
    for method, (answer, shape) in expected.items():
        if list(answer.shape) != shape:
            raise BadScores(
                f"{method} returned shape {list(answer.shape)} for {words}; expected {shape}"
            )


def _answer(attack: Attack, observed: Observations, question: Audit) -> Scores:
    observed = frozen(observed)
    scores = _real(attack.score(observed, question), "score")
    by_round = attack.score_rounds(observed, question)
    return scores, None if by_round is None else _real(by_round, "score_rounds")


def _real(answer: Any, method: str) -> np.ndarray:
    """Return an answer in float64: tail probabilities near 1 would tie in float32."""
    a = np.asanyarray(answer)
    if isinstance(a, np.ma.MaskedArray):
        raise BadScores(f"{method} returned a masked array; expected a score for every candidate")
    if a.dtype.kind not in "biuf":
        content = a.dtype if a.shape else type(answer).__name__
        raise BadScores(f"{method} returned {content}, expected real numbers")
    return np.asarray(a, dtype=np.float64)


def _threshold(attack: Attack) -> float | None:
    value = attack.threshold
    if value is None:
        return None
    if not (isinstance(value, int | float | np.number) and np.isfinite(value)):
        raise BadScores(f"its threshold is {value!r:.60}, expected a finite number or None")
    return float(value)


def _audit(run: Run, ids: np.ndarray, target: int) -> Audit:
    return Audit(
        key=key_for(run.job.seed, "attack", client=target),
        device=torch.device(run.job.device),
        ids=read_only(run.scene.names[ids]),
        y=read_only(run.scene.y_of(ids)),
        n_classes=run.scene.data.n_classes,
        target_client=target,
    )


# --- colluders ------------------------------------------------------------------------------------


def by_colluders(
    job: Job, attack: Attack, audits: list[AuditSet]
) -> dict[tuple[int, ...], list[AuditSet]]:
    """Return the targets by the clients that collude against them: the first ones in the order of
    :func:`colluders_first`, without the target, and without a client that owns members among the
    candidates, as it would be taught the answers. Raises ``SkipCell`` where they are too few.
    """
    preference = colluders_first(job)
    groups: dict[tuple[int, ...], list[AuditSet]] = {}
    for audit in audits:
        client = audit.target.client
        barred = {client, *audit.owner[audit.kind == MEMBER].tolist()}
        allowed = [k for k in preference if k not in barred]
        chosen = tuple(allowed[: attack.colluders])
        if len(chosen) < attack.colluders:
            clients = "clients there that own no candidates"
            if client is not None:
                clients = "other clients there"
            raise SkipCell(f"{attack.colluders} colluders wanted, {len(chosen)} {clients}")
        groups.setdefault(chosen, []).append(audit)
    return groups


def _collude(run: Run, attack: Attack, colluders: tuple[int, ...]) -> str:
    """Fit the attack to what the colluders share. Returns a note that names them."""
    scene = run.scene
    order = scene.presented
    view = shared_view(attack.view)
    ids = scene.pool[order]
    lessons = []
    for j in colluders:
        member = np.isin(ids, scene.shards[j]) & ~np.isin(ids, run.trained.held_out)
        taught = _taught_with(j, member, ids, scene)
        observed = observations_of_colluder(run, view, j, order, member, taught)
        lessons.append(_lesson(run, j, observed, ids[taught], member[taught]))
    _fit(attack, lessons, _audit(run, ids, -1))
    names = [f"{c.client}{' (defended)' * c.defended}" for c in lessons]
    return f"colluding with client {', '.join(names)}"


def _taught_with(
    j: int,
    member: np.ndarray,
    ids: np.ndarray,
    scene: Scene,
) -> np.ndarray:
    """Return positions of the samples that a colluder teaches with: its own members against the
    rest of the pool or, where clients have a test part, against its own. The rest has other labels
    than its members under label skew, and a lesson on membership would be one on labels; on the
    global model the other clients' members are members, too.
    """
    if scene.split.has_test and scene.aligned:
        return np.flatnonzero(member | np.isin(ids, scene.split.test[j]))
    return np.arange(len(ids))


def _lesson(
    run: Run,
    client: int,
    observed: Observations,
    ids: np.ndarray,
    member: np.ndarray,
) -> Colluder:
    return Colluder(
        client=client,
        observations=frozen(observed),
        ids=read_only(run.scene.names[ids]),
        y=read_only(run.scene.y_of(ids)),
        member=read_only(member),
        defended=client in run.job.members,
    )


def _fit(attack: Attack, lessons: list[Colluder], question: Audit) -> None:
    answer = attack.fit(lessons, question)  # type: ignore[func-returns-value]
    if answer is not None:  # a generator has not even begun
        raise BadScores(
            f"fit returned {type(answer).__name__}, expected None: what it learns stays on the "
            "attack"
        )


# --- halves of the candidates ---------------------------------------------------------------------


def in_second_half(
    kind: np.ndarray,
    names: np.ndarray,
    seed: int,
    target: Target,
) -> np.ndarray:
    """Return [n] bool: which half each candidate is in, the same for every attack.

    Args:
        kind: [n] MEMBER, OFL, IFL or EXCLUDED; each is cut in two, keyed by seed and target.
        names: [n] the candidates' names: the cut does not depend on their order.

    Raises:
        SkipCell: where a half has not two members and two non-members.
    """
    rng = numpy_rng(seed, "halves", client=target.code)
    second = np.zeros(len(kind), bool)
    for value in np.unique(kind):
        positions = np.flatnonzero(kind == value)
        positions = positions[np.argsort(names[positions])]
        second[rng.permutation(positions)[: len(positions) // 2]] = True
    counted = kind != EXCLUDED
    for half in (second & counted, ~second & counted):
        members = int((kind[half] == MEMBER).sum())
        nonmembers = int(half.sum()) - members
        if min(members, nonmembers) < 2:
            raise SkipCell(
                f"half of the candidates of {target.words()} has {members} members and "
                f"{nonmembers} non-members; an attack that knows half of them needs two of each"
            )
    return second


def fresh(attack: Attack) -> Attack:
    """Return a copy that has learnt nothing: what it keeps of one half never reaches the candidates
    of that half.
    """
    try:
        return deepcopy(attack)
    except Exception as error:
        pass_on_interrupt(error)
        raise UserError(
            "it knows half of the candidates, and so is copied before each fit, but cannot be "
            f"({describe_error(error)}); keep plain values on self before fit"
        ) from error


def ranks(scores: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """Return [..., n] each score's mid-rank among those that count, over their number plus one;
    what is not finite stays so. A candidate that does not count gets a rank and changes none.
    """
    result = np.array(scores, dtype=np.float64)
    for row in result.reshape(-1, result.shape[-1]):
        finite = np.isfinite(row)
        reference = np.sort(row[finite & counted])
        below = np.searchsorted(reference, row[finite])
        upto = np.searchsorted(reference, row[finite], side="right")
        row[finite] = (below + upto + 1) / 2 / (len(reference) + 1)
    return result
