"""Checks of attacks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fedbench.core import EXCLUDED, MEMBER
from fedbench.core.metrics import auc
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.population.audit import AuditSet
from fedbench.testing.checks.component import result_or_reason
from fedbench.testing.observe import difference
from fedbench.testing.subject import Subject
from fedbench.testing.trials import answers_of, ask_all, passes, train_with, training_for
from fedbench.testing.worlds import NormedNet, World


def order_of_candidates(subject: Subject) -> None:
    """A candidate's score does not depend on its position."""
    answers, finished = ask_all(subject.make())
    audits = finished.scene.audits
    orders = [
        numpy_rng(0, "order", client=i).permutation(len(audit.ids))
        for i, audit in enumerate(audits)
    ]
    permuted = [_permuted(*pair) for pair in zip(audits, orders, strict=True)]
    scene = replace(finished.scene, audits=permuted)
    again = answers_of(subject.make(), replace(finished, scene=scene))
    for before, after, order in zip(answers.scores, again.scores, orders, strict=True):
        room = 1e-5 * max(1.0, float(np.ptp(before)))
        if not np.allclose(before[order], after, rtol=1e-3, atol=room):
            raise subject.failed(
                "the same candidates in another order get other scores (up to "
                f"{np.abs(before[order] - after).max():.3g} apart); expected the same: score each "
                "by its own observations, not by its position"
            )


def _permuted(audit: AuditSet, order: np.ndarray) -> AuditSet:
    extra = audit.extra[order] if len(audit.extra) else audit.extra
    ids, kind, owner = audit.ids[order], audit.kind[order], audit.owner[order]
    return replace(audit, ids=ids, kind=kind, owner=owner, extra=extra)


def one_and_many_targets(subject: Subject) -> None:
    """The scores of a target do not depend on the targets before it."""
    forward, _, reverse = passes(subject)
    if name := difference(forward, reverse):
        raise subject.failed(
            f"{name} depends on whether another target came before it; expected the same bits: "
            "keep nothing of a target on self, in a global or in a file"
        )


CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "signals that are 0 everywhere": np.zeros_like,
    "signals that are 1 everywhere": np.ones_like,
    "a round without the clients": lambda a: np.concatenate([a[:1] * np.nan, a[1:]]),
}


def scores_or_refuses(subject: Subject) -> None:
    """Scores are finite with one target, one audited round, constant signals or absent clients, or
    SkipCell or UserError gives a reason.
    """
    finished = training_for(subject.make())
    trained = finished.trained
    last: dict[str, Any] = {
        "signals": {name: a[-1:] for name, a in trained.signals.items()},
        "rounds": trained.rounds[-1:],
        "assignment": trained.assignment[-1:],
        "shares": trained.shares[:, -1:],
    }
    cases = {"one audited round": replace(trained, **last)}
    for case, change in CHANGES.items():
        signals = {name: change(a) for name, a in trained.signals.items()}
        cases[case] = replace(trained, signals=signals)
    for case, changed in cases.items():
        _require_scores(subject, case, replace(finished, trained=changed))
    if "passive attack" in subject.kinds:
        pooled = training_for(subject.make(), targets="honest", members=60)
        _require_scores(subject, "one target for all", pooled)


def _require_scores(subject: Subject, case: str, finished: World) -> None:
    work = partial(answers_of, subject.make(), finished)
    answers = result_or_reason(subject, f"with {case}", work)
    if answers is None:
        return
    for scores, audit in zip(answers.scores, finished.scene.audits, strict=True):
        if scores.shape != (len(audit.ids),) or not np.isfinite(scores).all():
            raise subject.failed(
                f"with {case} it returns {list(scores.shape)} scores, "
                f"{int((~np.isfinite(scores)).sum())} of them not finite; "
                f"expected [{len(audit.ids)}] finite ones, or SkipCell with the reason"
            )


# standard deviations of the null's AUC: fewer than one in a thousand sound attacks falls outside
_DEVIATIONS = 4.5


def finds_nothing_in_nothing(subject: Subject) -> None:
    """Where members and non-members are exchangeable, its AUC is 1/2 within its error."""
    aucs = []
    members = set()
    non_members = set()
    for seed in (0, 1):
        answers, finished = ask_all(subject.make(), seed, members_from="holdout")
        for scores, audit in zip(answers.scores, finished.scene.audits, strict=True):
            keep = audit.kind != EXCLUDED
            ids = audit.ids[keep]
            member = audit.kind[keep] == MEMBER
            aucs.append(auc(scores[keep], member))
            members |= {(seed, i) for i in ids[member].tolist()}
            non_members |= {(seed, i) for i in ids[~member].tolist()}
    m = len(members)
    n = len(non_members)
    mean = float(np.mean(aucs))
    room = _DEVIATIONS * math.sqrt((m + n + 1) / (12 * m * n))
    if abs(mean - 0.5) > room:
        raise subject.failed(
            f"its AUC is {mean:.3f} where the members were not trained on; expected 0.5 +- "
            f"{room:.3f}: it distinguishes them by something other than the effect of training"
        )


def crafts_or_refuses(subject: Subject) -> None:
    """`craft` gives finite rows for one and two clients, with no more knowledge than it asks for,
    and where the model has batch normalisation, or SkipCell or UserError with a reason.
    """
    level = subject.make().knowledge
    cases: dict[str, dict[str, Any]] = {
        "one client": {},
        "two clients": {"adversary": {"clients": 2}},
        f"knowledge '{level}'": {"adversary": {"knowledge": level}},
        "a model with batch normalisation": {"model": NormedNet},
    }
    for case, changes in cases.items():
        work = partial(train_with, subject.make(), **changes)
        finished = result_or_reason(subject, f"with {case}", work)
        if finished and finished.trained.rejected:
            raise subject.failed(
                f"with {case}: craft returned rows that are not finite, which the server drops"
            )
