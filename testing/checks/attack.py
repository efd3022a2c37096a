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
from fedbench.testing.checks.component import result_or_reason
from fedbench.testing.observe import difference
from fedbench.testing.subject import Subject
from fedbench.testing.trials import answers_of, asked, passes, trained_with
from fedbench.testing.worlds import NormedNet, World, world


def order_of_candidates(subject: Subject) -> None:
    """A candidate's score does not depend on its position."""
    answers, seen = asked(subject.make())
    orders = [
        numpy_rng(0, "order", client=i).permutation(len(audit.ids))
        for i, audit in enumerate(seen.scene.audits)
    ]
    again = answers_of(subject.make(), _permuted(seen, orders))
    for before, after, order in zip(answers.scores, again.scores, orders, strict=True):
        off = np.abs(before[order] - after)
        if not np.allclose(
            before[order], after, rtol=1e-3, atol=1e-5 * max(1.0, float(np.ptp(before)))
        ):
            raise subject.failed(
                f"the same candidates in another order get other scores (up to {off.max():.3g} "
                "apart); expected the same: score "
                "each by its own observations, not by its position"
            )


def _permuted(seen: World, orders: list[np.ndarray]) -> World:
    audits = []
    for audit, order in zip(seen.scene.audits, orders, strict=True):
        extra = audit.extra[order] if len(audit.extra) else audit.extra
        audits.append(
            replace(
                audit,
                ids=audit.ids[order],
                kind=audit.kind[order],
                owner=audit.owner[order],
                extra=extra,
            )
        )
    return replace(seen, scene=replace(seen.scene, audits=audits))


def one_and_many_targets(subject: Subject) -> None:
    """The scores of a target do not depend on the targets before it."""
    one, _, turned = passes(subject)
    if name := difference(one, turned):
        raise subject.failed(
            f"{name} depends on whether another target came before it; expected the same bits: "
            "keep nothing of a target on self, "
            "in a global or in a file"
        )


def scores_or_refuses(subject: Subject) -> None:
    """One target, one audited round, constant signals, absent clients: finite scores, or SkipCell
    or UserError with a reason.
    """
    _, seen = asked(subject.make())
    trained = seen.trained
    last = {n: a[-1:] for n, a in trained.signals.items()}
    worlds = {
        "one audited round": replace(
            trained, rounds=trained.rounds[-1:], assignment=trained.assignment[-1:], signals=last
        ),
        "signals that are 0 everywhere": _with_signals(trained, np.zeros_like),
        "signals that are 1 everywhere": _with_signals(trained, np.ones_like),
        "a round without the clients": _with_signals(
            trained, lambda a: np.concatenate([a[:1] * np.nan, a[1:]])
        ),
    }
    if "passive attack" in subject.kinds:
        _scores(
            subject, "one target for all", world(subject.make().needs, targets="honest", members=60)
        )
    for what, changed in worlds.items():
        _scores(subject, what, replace(seen, trained=changed))


def _with_signals(trained: Any, change: Callable[[np.ndarray], np.ndarray]) -> Any:
    return replace(trained, signals={name: change(a) for name, a in trained.signals.items()})


def _scores(subject: Subject, what: str, seen: World) -> None:
    answers = result_or_reason(subject, f"with {what}", lambda: answers_of(subject.make(), seen))
    for scores, audit in zip(answers.scores, seen.scene.audits, strict=True) if answers else ():
        if scores.shape != (len(audit.ids),) or not np.isfinite(scores).all():
            raise subject.failed(
                f"with {what} it returns {list(scores.shape)} scores, "
                f"{int((~np.isfinite(scores)).sum())} of them not finite; "
                f"expected [{len(audit.ids)}] finite ones, or SkipCell with the reason"
            )


# standard deviations of the null's AUC: fewer than one in a thousand sound attacks falls outside
_DEVIATIONS = 4.5


def finds_nothing_in_nothing(subject: Subject) -> None:
    """Where members and non-members are exchangeable, its AUC is 1/2 within its error."""
    found, candidates = [], set()
    for seed in (0, 1):
        answers, seen = asked(subject.make(), seed, members_from="holdout")
        for scores, audit in zip(answers.scores, seen.scene.audits, strict=True):
            keep = audit.kind != EXCLUDED
            member = audit.kind[keep] == MEMBER
            found.append(float(auc(scores[keep], member)))
            candidates |= {
                (seed, i, m) for i, m in zip(audit.ids[keep].tolist(), member.tolist(), strict=True)
            }
    m = sum(is_member for *_, is_member in candidates)
    n = len(candidates) - m
    mean, room = float(np.mean(found)), _DEVIATIONS * math.sqrt((m + n + 1) / (12 * m * n))
    if abs(mean - 0.5) > room:
        raise subject.failed(
            f"its AUC is {mean:.3f} where the members were not trained on; expected 0.5 +- "
            f"{room:.3f}: it "
            "distinguishes them by something other than the effect of training"
        )


def crafts_or_refuses(subject: Subject) -> None:
    """`craft` gives finite rows for one and two clients, with no more knowledge than it asks for,
    and where the model has batch normalisation, or SkipCell or UserError with a reason.
    """
    knowledge = subject.make().knowledge
    for what, changes in (
        ("one client", {}),
        ("two clients", {"adversary": {"clients": 2}}),
        (f"knowledge '{knowledge}'", {"adversary": {"knowledge": knowledge}}),
        ("a model with batch normalisation", {"model": NormedNet}),
    ):
        work: Any = partial(trained_with, subject.make(), **changes)
        seen = result_or_reason(subject, f"with {what}", work)
        if seen and seen.trained.rejected:
            raise subject.failed(
                f"with {what}: craft returned rows that are not finite, which the server drops"
            )
