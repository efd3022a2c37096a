"""Ask an attack for the scores of every candidate of every target of a run."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
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
    ShadowModels,
    View,
)
from fedbench.core.contract.errors import SkipCell, UserError
from fedbench.core.numerics.rng import key_for, numpy_rng
from fedbench.core.population.audit import AuditSet, Target
from fedbench.core.process.channel import Message, pass_on_interrupt
from fedbench.core.run.job import Job
from fedbench.core.run.needs import colluders_first, compared, shared_view
from fedbench.core.run.scene import Scene
from fedbench.core.run.shadow_models import ShadowLogits, of_audit
from fedbench.core.run.train import Trained, kinds_of
from fedbench.core.signals.measure import observe, seen_from
from fedbench.core.words import describe_error


class BadScores(UserError):
    """An attack returned something other than one finite number a candidate."""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What an attack said, target by target in the scene's order: ``scores`` [n]; ``by_round`` [R,
    n] of a single-round attack, else None. ``threshold``: the score above which it says "member".
    ``cpu_s``: what it took.
    """

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
        return cls(
            scores=scores,
            by_round=[message.arrays.get(f"rounds{i}") for i in range(targets)],
            **message.value,
        )


def ask(
    job: Job, attack: Attack, scene: Scene, trained: Trained, shadows: ShadowLogits | None = None
) -> Answers:
    """The attack's answers for all targets. Raises ``SkipCell`` where it does not apply,
    :class:`BadScores` for what are no real numbers, ``UserError`` where a signal that it needs
    failed.
    """
    if broken := sorted(trained.failed[name] for name in attack.needs if name in trained.failed):
        raise UserError(*broken)
    # whatever else the suite's other attacks have measured: a score may not depend on them
    trained = dataclasses.replace(
        trained, signals={n: a for n, a in trained.signals.items() if n in attack.needs}
    )
    began = time.process_time()
    pool = scene.pool
    scores: dict[Target, np.ndarray] = {}
    by_round: dict[Target, np.ndarray | None] = {}
    notes = []
    for colluders, audits in _by_colluders(job, attack, scene.audits).items():
        if colluders:
            notes.append(_collude(job, attack, colluders, scene, trained, pool))
        for audit in audits:
            said = _supervised if attack.knows_half else _scores_of
            scores[audit.target], by_round[audit.target] = said(
                job, attack, audit, scene, trained, shadows
            )
    if attack.knows_half:
        notes.append(NOTE)
    targets = [audit.target for audit in scene.audits]
    return Answers(
        scores=[scores[t] for t in targets],
        by_round=[by_round[t] for t in targets],
        notes=notes,
        threshold=_threshold(attack),
        cpu_s=time.process_time() - began,
    )


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
        raise BadScores(
            f"{who} returned {a.dtype if a.shape else type(given).__name__}, expected real numbers"
        )
    return np.asarray(a, dtype=np.float64)


def _read_only(a: np.ndarray) -> np.ndarray:
    """Whatever an attack is given it can look at, not change: views of one array go to several
    targets.
    """
    view = a.view()
    view.flags.writeable = False
    return view


def _shown(seen: Observations) -> Observations:
    """As an attack gets to see them."""
    signals = {name: _read_only(a) for name, a in seen.signals.items()}
    models = None if seen.shadow_models is None else _closed(seen.shadow_models)
    rounds, clients = _read_only(seen.rounds), _read_only(seen.clients)
    return dataclasses.replace(
        seen, signals=signals, shadow_models=models, rounds=rounds, clients=clients
    )


def _closed(models: ShadowModels) -> ShadowModels:
    return ShadowModels(
        **{f.name: _read_only(getattr(models, f.name)) for f in dataclasses.fields(models)}
    )


def _scores_of(
    job: Job,
    attack: Attack,
    audit: AuditSet,
    scene: Scene,
    trained: Trained,
    shadows: ShadowLogits | None,
) -> tuple[np.ndarray, np.ndarray | None]:
    """([n] scores, [R, n] those of every round for a single-round attack)."""
    observations = _observations(job, attack, audit, scene, trained, shadows)
    return _said(attack, _shown(observations), _audit(job, audit.ids, scene, audit.target.code))


def _said(attack: Attack, seen: Observations, asked: Audit) -> tuple[np.ndarray, np.ndarray | None]:
    scores = _real(attack.score(seen, asked), "score")
    by_round = attack.score_rounds(seen, asked)
    return scores, None if by_round is None else _real(by_round, "score_rounds")


def _supervised(
    job: Job,
    attack: Attack,
    audit: AuditSet,
    scene: Scene,
    trained: Trained,
    shadows: ShadowLogits | None,
) -> tuple[np.ndarray, np.ndarray | None]:
    """The same of an attack that knows half: each half of the candidates by a copy that was fitted
    to the other half.
    """
    if attack.colluders or attack.threshold is not None:
        raise UserError(
            "an attack that knows half of the candidates has neither colluders nor a threshold: "
            "its scores are ranks"
        )
    if not scene.aligned:
        raise SkipCell(
            "half of the candidates are known, and align_nonmembers: false redraws them in every "
            "round"
        )
    kind, n = kinds_of(audit, trained), len(audit.ids)
    second = in_second_half(kind, scene.names[audit.ids], job.seed, audit.target)
    seen = _observations(job, attack, audit, scene, trained, shadows)
    scores, by_round = np.empty(n), None
    for judged in (~second, second):
        known = np.flatnonzero(~judged & (kind != EXCLUDED))
        known = known[np.argsort(scene.names[audit.ids[known]])]
        where, own = np.flatnonzero(judged), fresh(attack)
        lesson = _lesson(
            audit.target.code,
            part_of(seen, known),
            audit.ids[known],
            kind[known] == MEMBER,
            scene,
            job,
        )
        _fit(own, [lesson], _audit(job, audit.ids[known], scene, audit.target.code))
        asked = _audit(job, audit.ids[where], scene, audit.target.code)
        said, rounds = _said(own, _shown(part_of(seen, where)), asked)
        if said.shape != (len(where),):
            place = f"half of the candidates of {audit.target.words()}"
            raise BadScores(
                f"score returned shape {list(said.shape)} for {place}; expected [{len(where)}]"
            )
        scores[where] = ranks(said, kind[where] != EXCLUDED)
        by_round = _both(by_round, rounds, where, kind, len(seen.rounds))
    return scores, by_round


def _both(
    so_far: np.ndarray | None,
    rounds: np.ndarray | None,
    where: np.ndarray,
    kind: np.ndarray,
    n_rounds: int,
) -> np.ndarray | None:
    """[R, n] ranks of every round, of one half after the other."""
    if rounds is None:
        return so_far
    if rounds.shape != (n_rounds, len(where)):
        found = f"score_rounds returned shape {list(rounds.shape)} for half of the candidates"
        raise BadScores(f"{found}; expected [{n_rounds}, {len(where)}]")
    whole = np.full((n_rounds, len(kind)), np.nan) if so_far is None else so_far
    whole[:, where] = ranks(rounds, kind[where] != EXCLUDED)
    return whole


def _observations(
    job: Job,
    attack: Attack,
    audit: AuditSet,
    scene: Scene,
    trained: Trained,
    shadows: ShadowLogits | None,
) -> Observations:
    """What the attack sees of one target's candidates."""
    if attack.needs_shadow_models and not scene.aligned:
        raise SkipCell(
            "shadow models answer for fixed candidates, and align_nonmembers: false redraws them "
            "in every round"
        )
    who, rows = audit.target.client, trained.rows
    shown = compared(job, who, attack.view)
    pick = _positions(job, scene, trained, audit, _drawing(job, attack.view, shown))
    served = trained.assignment[:, scene.client_of(audit)]
    rows = seen_from(who, rows, job.coalitions) if attack.view == "coalition" else rows
    observations = observe(
        attack.view, who, rows, trained.rounds, trained.signals, pick, served, shown
    )
    if attack.needs_shadow_models and shadows is not None:
        models = of_audit(shadows, scene, trained, audit, pick, served[-1])
        observations = dataclasses.replace(observations, shadow_models=models)
    if not len(observations.clients) and not attack.needs_shadow_models:
        raise SkipCell(
            f"the view '{attack.view}' is empty in this run (coalition: {job.coalition})"
        )
    if attack.needs and not observations.signals and not attack.needs_shadow_models:
        raise SkipCell(
            f"the view '{attack.view}' holds none of the signals that it needs "
            f"({', '.join(sorted(attack.needs))})"
        )
    return observations


def _positions(
    job: Job, scene: Scene, trained: Trained, audit: AuditSet, drawing: Sequence[int]
) -> np.ndarray:
    """[n] positions of the candidates in the pool; [R, M, n] where the suite asks for the released
    code's redrawing.
    """
    pick = np.searchsorted(scene.pool, audit.ids)
    if scene.aligned:
        return pick
    owners = scene.redrawn_from(audit)[scene.pool]
    return redrawn(
        pick, audit.owner, owners, len(trained.rounds), drawing, job.seed, audit.target.code
    )


def _drawing(job: Job, view: View, shown: list[int]) -> Sequence[int]:
    """Keys of the draws of the rows that a view shows, where non-members are redrawn: of the
    server's, the clients' ids.
    """
    return shown if view == "server" else range(job.clients)


def _audit(job: Job, ids: np.ndarray, scene: Scene, target: int) -> Audit:
    key = key_for(job.seed, "attack", client=target)
    return Audit(
        key=key,
        device=torch.device(job.device),
        ids=_read_only(scene.names[ids]),
        y=_read_only(scene.y_of(ids)),
        n_classes=scene.data.n_classes,
        target_client=target,
    )


def _by_colluders(
    job: Job, attack: Attack, audits: list[AuditSet]
) -> dict[tuple[int, ...], list[AuditSet]]:
    """Targets by who colludes against them: the first clients that would (:func:`colluders_first`),
    never the target, nor a client that owns members among the candidates: it would be taught the
    answers.
    """
    preference = colluders_first(job)
    groups: dict[tuple[int, ...], list[AuditSet]] = {}
    for audit in audits:
        asked = set(audit.owner[audit.kind == MEMBER].tolist())
        chosen = tuple(
            [k for k in preference if k != audit.target.client and k not in asked][
                : attack.colluders
            ]
        )
        if len(chosen) < attack.colluders:
            one = audit.target.client is not None
            others = "other clients there" if one else "clients there that own no candidates"
            raise SkipCell(f"{attack.colluders} colluders wanted, {len(chosen)} {others}")
        groups.setdefault(chosen, []).append(audit)
    return groups


def _collude(
    job: Job,
    attack: Attack,
    colluders: tuple[int, ...],
    scene: Scene,
    trained: Trained,
    pool: np.ndarray,
) -> str:
    colluding, order, view = [], scene.presented, shared_view(attack.view)
    shown = pool[order]
    for j in colluders:
        own, clients = (
            np.isin(shown, scene.shards[j]) & ~np.isin(shown, trained.held_out),
            compared(job, j, view),
        )
        where = (
            order
            if scene.aligned
            else _redrawn_pool(job, trained, order, own, j, _drawing(job, view, clients))
        )
        known = _known_to(j, own, shown, scene)
        served, where = trained.assignment[:, np.full(len(known), j)], where[..., known]
        seen = observe(
            view, j, trained.rows, trained.rounds, trained.signals, where, served, clients
        )
        colluding.append(_lesson(j, seen, shown[known], own[known], scene, job))
    _fit(attack, colluding, _audit(job, shown, scene, -1))
    return (
        "colluding with client "
        f"{', '.join(f'{c.client}' + (' (defended)' if c.defended else '') for c in colluding)}"
    )


def _known_to(j: int, own: np.ndarray, shown: np.ndarray, scene: Scene) -> np.ndarray:
    """Positions of the samples that a colluder teaches with: its own members against the rest of
    the pool or, where clients have a test part, against its own. The rest has other labels than its
    members under label skew, and a lesson on membership would be one on labels; on the global model
    the others' members are members, too.
    """
    if scene.split.has_test and scene.aligned:
        return np.flatnonzero(own | np.isin(shown, scene.split.test[j]))
    return np.arange(len(shown))


def _lesson(
    code: int, seen: Observations, ids: np.ndarray, member: np.ndarray, scene: Scene, job: Job
) -> Colluder:
    return Colluder(
        client=code,
        observations=_shown(seen),
        ids=_read_only(scene.names[ids]),
        y=_read_only(scene.y_of(ids)),
        member=_read_only(member),
        defended=code in job.members,
    )


def _fit(attack: Attack, lessons: list[Colluder], audit: Audit) -> None:
    answer = attack.fit(lessons, audit)  # type: ignore[func-returns-value]
    if answer is not None:  # a generator has not even begun
        raise BadScores(
            f"fit returned {type(answer).__name__}, expected None: what it learns stays on the "
            "attack"
        )


def _redrawn_pool(
    job: Job, trained: Trained, order: np.ndarray, own: np.ndarray, j: int, drawing: Sequence[int]
) -> np.ndarray:
    """[R, M, N] the pool as the released code would show it to a colluder: its own samples in
    place, the rest redrawn.
    """
    owner = np.where(own, j, -2)
    owners_of_pool = np.empty_like(owner)
    owners_of_pool[order] = owner
    return redrawn(order, owner, owners_of_pool, len(trained.rounds), drawing, job.seed, j)


# --- attacks that know half of the members --------------------------------------------------------


NOTE = "knows the membership of half of the candidates"


def in_second_half(kind: np.ndarray, names: np.ndarray, seed: int, target: Target) -> np.ndarray:
    """[n] bool: which half each candidate is in, the same for every attack.

    ``kind``: [n] MEMBER, OFL, IFL or EXCLUDED; each is cut in two, keyed by seed and target.
    ``names``: [n] what the candidates are called: the cut does not depend on their order. Raises
    ``SkipCell`` where a half has not two members and two others.
    """
    rng = numpy_rng(seed, "halves", client=target.code)
    second = np.zeros(len(kind), bool)
    for one in np.unique(kind):
        mine = np.flatnonzero(kind == one)
        mine = mine[np.argsort(names[mine])]
        second[rng.permutation(mine)[: len(mine) // 2]] = True
    counted = kind != EXCLUDED
    for half in (second & counted, ~second & counted):
        members, others = int((kind[half] == MEMBER).sum()), int((kind[half] != MEMBER).sum())
        if min(members, others) < 2:
            raise SkipCell(
                f"half of the candidates of {target.words()} has {members} members and {others} "
                "non-members; an attack that "
                "knows half of them needs two of each"
            )
    return second


def fresh(attack: Attack) -> Attack:
    """A copy that has learnt nothing: what it keeps of one half never reaches the candidates of
    that half.
    """
    try:
        return deepcopy(attack)
    except Exception as error:
        pass_on_interrupt(error)
        raise UserError(
            "it knows half of the candidates, and so is copied before each fit, but cannot be "
            f"({describe_error(error)}); keep plain values on self before fit"
        ) from error


def part_of(seen: Observations, where: np.ndarray) -> Observations:
    """What is seen of the candidates at positions ``where``, as copies: nothing of the others is
    behind them.
    """
    signals = {
        name: a[:, :, where] if a.shape[2] > 1 else a.copy() for name, a in seen.signals.items()
    }
    models = seen.shadow_models
    if models is not None:
        models = replace(
            models,
            logits=models.logits[:, where],
            target_logits=models.target_logits[where],
            model_of=models.model_of[where],
        )
    return replace(seen, signals=signals, shadow_models=models)


def ranks(scores: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """[..., n]: each score's mid-rank among those that count, over their number plus one; what is
    not finite stays so.

    A candidate that does not count gets a rank among them and changes none.
    """
    out = np.array(scores, dtype=np.float64)
    for row in out.reshape(-1, out.shape[-1]):
        there = np.isfinite(row)
        among = np.sort(row[there & counted])
        below, upto = (
            np.searchsorted(among, row[there]),
            np.searchsorted(among, row[there], side="right"),
        )
        row[there] = (below + upto + 1) / 2 / (len(among) + 1)
    return out


# -- FedMIA's released code redraws the non-members in every round and for every client ----------


def redrawn(
    pick: np.ndarray,
    owner: np.ndarray,
    owners_of_pool: np.ndarray,
    rounds: int,
    drawing: Sequence[int],
    seed: int,
    target: int,
) -> np.ndarray:
    """[R, M, n] pool positions: those of members as in ``pick`` [n], the others drawn anew per
    round and row.

    ``owner``: [n] the training client of each candidate, -1 outside; ``owners_of_pool``: [N] the
    same of the pool; ``rounds``: R; ``drawing``: [M] the key of each row's draws. A redrawn
    candidate has the owner of the one it replaces, as the released code keeps the mix.
    """
    out = np.broadcast_to(pick, (rounds, len(drawing), len(pick))).copy()
    for r in range(rounds):
        for m, key in enumerate(drawing):
            rng = numpy_rng(seed, f"misaligned:{target}", r, key)
            for k in np.unique(owner[owner != target]):
                mine = np.flatnonzero(owner == k)
                out[r, m, mine] = rng.choice(
                    np.flatnonzero(owners_of_pool == k), len(mine), replace=False
                )
    return out
