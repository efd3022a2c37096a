"""Checks of defenses."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np

from fedbench.core import MemberContext
from fedbench.core.federation.loop import Training
from fedbench.testing.checks.component import result_or_reason
from fedbench.testing.observe import Call, holds, hooked, overridden, places_of
from fedbench.testing.subject import Skipped, Subject
from fedbench.testing.trials import train_defense
from fedbench.testing.worlds import NormedNet


def members_kept_apart(subject: Subject) -> None:
    """No member's data, memory or context is kept where another member's phase can read it."""
    defense = subject.make()
    leaks: list[str] = []

    def around(name: str, call: Call, args: tuple[Any, ...]) -> Any:
        answer = call(*args)
        ctx = args[-1] if args else None
        if isinstance(ctx, MemberContext):
            private = [ctx, ctx.memory, ctx.data, ctx.data.x, ctx.data.y]
            leaks.extend(
                f"{name} keeps client {ctx.client}'s data, memory or context in {place}"
                for place, value in places_of(defense)
                if holds(value, private)
            )
        return answer

    train_defense(hooked(defense, around))
    if leaks:
        raise subject.failed(
            f"{leaks[0]}; expected that it is kept in ctx.memory, which only this member sees"
        )


def order_of_clients(subject: Subject) -> None:
    """A member's upload of the first round does not depend on which client trained before it."""
    if "coordinate" in overridden(subject.make()):
        raise Skipped("its members' updates are changed together")
    cohort = Training._cohort
    first = train_defense(subject.make(), federation={"rounds": 1})
    with patch.object(Training, "_cohort", lambda self, t: cohort(self, t)[::-1]):
        second = train_defense(subject.make(), federation={"rounds": 1})
    before = first.signals["loss"]
    after = second.signals["loss"]
    for i, client in enumerate(first.rows):
        if not np.array_equal(before[:, i], after[:, second.rows.index(client)]):
            raise subject.failed(
                f"the upload of client {client} in round 1 changes where the clients train in "
                "another order; expected the same bits: draw from ctx, keep what a member learns "
                "in ctx.memory, not on self"
            )


FEDERATIONS: dict[str, dict[str, Any]] = {
    "1 of 5 clients as member": {"members": (0,)},
    "all clients as members": {"members": (0, 1, 2, 3, 4)},
    "a federation of one client": {"members": (0,), "federation": {"clients": 1}},
    "a federation of two clients": {"members": (0,), "federation": {"clients": 2}},
    "clients of two samples": {"samples": 10},
    "clients of very different sizes": {"partition": {"name": "dirichlet-sizes", "beta": 0.3}},
    "batches of one sample": {"federation": {"batch_size": 1, "local_batches": 4}},
    "batches larger than a client's data": {"federation": {"batch_size": 640}},
    "two of five clients in a round": {"federation": {"participation": 0.4, "rounds": 3}},
    "one round": {"federation": {"rounds": 1}},
    "clients without privacy thresholds": {"thresholds": None},
    "two expected adversaries": {"adversary": {"clients": 1, "assumed": 2}},
    "a model with batch normalisation": {"model": NormedNet},
}


def refuses_with_a_reason(subject: Subject) -> None:
    """Unusual federations: it serves them or raises UserError (`check`) or SkipCell with a reason,
    no other exception.
    """
    for case, changes in FEDERATIONS.items():
        result_or_reason(subject, case, partial(train_defense, subject.make(), **changes))
