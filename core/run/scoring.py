"""Ask an attack for the scores of every candidate of every target of a run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
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
    ShadowModels,
    View,
)
from fedbench.core.contract.errors import SkipCell, UserError
from fedbench.core.contract.task import unserved
from fedbench.core.numerics.rng import key_for, numpy_rng
from fedbench.core.population.audit import AuditSet, Target
from fedbench.core.process.channel import Message
from fedbench.core.run.job import Job
from fedbench.core.run.known_half import NOTE, fresh, in_second_half, part_of, ranks
from fedbench.core.run.needs import colluders_first, compared, shared_view
from fedbench.core.run.scene import Scene
from fedbench.core.run.train import Run, kinds_of
from fedbench.core.signals.measure import observe, seen_from

Scores = tuple[np.ndarray, np.ndarray | None]
"""([n] scores, [R, n] those of every round for a single-round attack)"""


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
    answers: dict[Target, Scores] = {}
    notes: list[str] = []
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
    return _answer(attack, _observations(run, attack, audit), question)


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
    observed = _observations(run, attack, audit)
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
    n = len(judged)
    n_rounds = len(observed.rounds)
    taught_ids = audit.ids[taught]
    lesson = _lesson(run, code, part_of(observed, taught), taught_ids, member)
    _fit(copy, [lesson], _audit(run, taught_ids, code))
    question = _audit(run, audit.ids[judged], code)
    scores, by_round = _answer(copy, part_of(observed, judged), question)
    if scores.shape != (n,):
        raise BadScores(
            f"score returned shape {list(scores.shape)} for half of the candidates of "
            f"{audit.target.words()}; expected [{n}]"
        )
    if by_round is not None and by_round.shape != (n_rounds, n):
        raise BadScores(
            f"score_rounds returned shape {list(by_round.shape)} for half of the candidates; "
            f"expected [{n_rounds}, {n}]"
        )
    return scores, by_round


def _answer(attack: Attack, observed: Observations, question: Audit) -> Scores:
    observed = _frozen(observed)
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


# --- what an attack sees --------------------------------------------------------------------------


def _observations(run: Run, attack: Attack, audit: AuditSet) -> Observations:
    """Return the observations of one target's candidates through the attack's view."""
    job = run.job
    scene = run.scene
    trained = run.trained
    client = audit.target.client
    view = attack.view
    if attack.needs_shadow_models and not scene.aligned:
        raise SkipCell(
            "shadow models answer for fixed candidates, and align_nonmembers: false redraws them "
            "in every round"
        )
    clients = compared(job, client, view)
    pick = _positions(run, audit, _drawn_rows(job, view, clients))
    served = trained.assignment[:, scene.client_of(audit)]
    observed = _seen(run, view, client, pick, served, clients)
    if attack.needs_shadow_models:
        return replace(observed, shadow_models=_shadow_models(run, pick, served[-1]))
    if not len(observed.clients):
        raise SkipCell(f"the view '{view}' is empty in this run (coalition: {job.coalition})")
    if attack.needs and not observed.signals:
        raise SkipCell(
            f"the view '{view}' holds none of the signals that it needs "
            f"({', '.join(sorted(attack.needs))})"
        )
    return observed


def _seen(
    run: Run,
    view: View,
    client: int | None,
    pick: np.ndarray,
    served: np.ndarray,
    clients: list[int],
) -> Observations:
    """Return the observations of the candidates at positions ``pick`` of the pool."""
    trained = run.trained
    rows = trained.rows
    if view == "coalition":
        rows = seen_from(client, rows, run.job.coalitions)
    observed = observe(view, client, rows, trained.rounds, trained.signals, pick, served, clients)
    if view == "coalition":
        groups = run.job.coalitions
        group = next((g for g, members in enumerate(groups) if client in members), 0)
        observed = replace(observed, shares=trained.shares[group])
    return observed


def _positions(run: Run, audit: AuditSet, rows: Sequence[int]) -> np.ndarray:
    """Return [n] positions of the candidates in the pool; [R, M, n] where the suite asks for the
    released code's redrawing.
    """
    scene = run.scene
    pick = np.searchsorted(scene.pool, audit.ids)
    if scene.aligned:
        return pick
    owners = scene.redrawn_from(audit)[scene.pool]
    n_rounds = len(run.trained.rounds)
    return redrawn(
        pick,
        audit.owner,
        owners,
        n_rounds,
        rows,
        run.job.seed,
        audit.target.code,
    )


def _shadow_models(
    run: Run,
    pick: np.ndarray,
    model_of: np.ndarray,
) -> ShadowModels | None:
    """Return the answers of the shadow models and the target models for the candidates at positions
    ``pick`` [n] of the pool; None where the setting has no shadow models.
    """
    shadows = run.shadows
    logits = run.trained.logits
    scene = run.scene
    if shadows is None:
        return None
    assert logits is not None
    pool = len(scene.pool)
    return ShadowModels(
        logits=shadows.logits[:, pick],
        shadow_logits=shadows.logits[:, pool:],
        shadow_y=scene.y_of(scene.shadow),
        shadow_member=shadows.member,
        target_logits=logits[model_of, pick],
        model_of=model_of,
        target_shadow_logits=logits[:, pool:],
    )


def _audit(run: Run, ids: np.ndarray, target: int) -> Audit:
    return Audit(
        key=key_for(run.job.seed, "attack", client=target),
        device=torch.device(run.job.device),
        ids=_read_only(run.scene.names[ids]),
        y=_read_only(run.scene.y_of(ids)),
        n_classes=run.scene.data.n_classes,
        target_client=target,
    )


def _read_only(a: np.ndarray) -> np.ndarray:
    """Return a view that an attack cannot write to: views of one array go to several targets."""
    view = a.view()
    view.flags.writeable = False
    return view


def _frozen(observed: Observations) -> Observations:
    """Return observations that an attack cannot write to."""
    models = observed.shadow_models
    if models is not None:
        arrays = {field.name: getattr(models, field.name) for field in fields(models)}
        models = ShadowModels(**{name: _read_only(a) for name, a in arrays.items()})
    return replace(
        observed,
        signals={name: _read_only(a) for name, a in observed.signals.items()},
        shadow_models=models,
        rounds=_read_only(observed.rounds),
        shares=None if observed.shares is None else _read_only(observed.shares),
        clients=_read_only(observed.clients),
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
    trained = run.trained
    order = scene.presented
    view = shared_view(attack.view)
    ids = scene.pool[order]
    lessons: list[Colluder] = []
    for j in colluders:
        member = np.isin(ids, scene.shards[j]) & ~np.isin(ids, trained.held_out)
        clients = compared(run.job, j, view)
        taught = _taught_with(j, member, ids, scene)
        pick = order
        if not scene.aligned:
            pick = _redrawn_pool(run, member, j, _drawn_rows(run.job, view, clients))
        served = trained.assignment[:, np.full(len(taught), j)]
        observed = _seen(run, view, j, pick[..., taught], served, clients)
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
        observations=_frozen(observed),
        ids=_read_only(run.scene.names[ids]),
        y=_read_only(run.scene.y_of(ids)),
        member=_read_only(member),
        defended=client in run.job.members,
    )


def _fit(attack: Attack, lessons: list[Colluder], question: Audit) -> None:
    answer = attack.fit(lessons, question)  # type: ignore[func-returns-value]
    if answer is not None:  # a generator has not even begun
        raise BadScores(
            f"fit returned {type(answer).__name__}, expected None: what it learns stays on the "
            "attack"
        )


# --- FedMIA's released code redraws the non-members in every round and for every client -----------


def _drawn_rows(job: Job, view: View, clients: list[int]) -> Sequence[int]:
    """Return the keys of the draws of the rows that a view shows: of the server's, the clients'
    ids.
    """
    return clients if view == "server" else range(job.clients)


def _redrawn_pool(
    run: Run,
    member: np.ndarray,
    j: int,
    rows: Sequence[int],
) -> np.ndarray:
    """Return [R, M, N] the pool as the released code would show it to a colluder: its own samples
    in place, the rest redrawn.
    """
    order = run.scene.presented
    owner = np.where(member, j, -2)
    owners_of_pool = np.empty_like(owner)
    owners_of_pool[order] = owner
    return redrawn(
        order,
        owner,
        owners_of_pool,
        len(run.trained.rounds),
        rows,
        run.job.seed,
        j,
    )


def redrawn(
    pick: np.ndarray,
    owner: np.ndarray,
    owners_of_pool: np.ndarray,
    rounds: int,
    rows: Sequence[int],
    seed: int,
    target: int,
) -> np.ndarray:
    """Return [R, M, n] pool positions: those of members as in ``pick`` [n], the rest drawn anew per
    round and row. A redrawn candidate has the owner of the one it replaces, as the released code
    keeps the mix.

    Args:
        owner: [n] the training client of each candidate, -1 outside.
        owners_of_pool: [N] the training client of each sample of the pool.
        rounds: R.
        rows: [M] the key of each row's draws.
    """
    positions = np.broadcast_to(pick, (rounds, len(rows), len(pick))).copy()
    for r in range(rounds):
        for m, key in enumerate(rows):
            rng = numpy_rng(seed, f"misaligned:{target}", r, key)
            for k in np.unique(owner[owner != target]):
                replaced = np.flatnonzero(owner == k)
                positions[r, m, replaced] = rng.choice(
                    np.flatnonzero(owners_of_pool == k), len(replaced), replace=False
                )
    return positions
