"""What a defense must hold in every federation that it does not refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fedbench.core.contract.contexts import MemberContext
from fedbench.core.contract.defense import Defense
from fedbench.core.contract.errors import Diverged, SkipCell, UserError
from fedbench.core.federation.loop import Training
from fedbench.testing.checks.repeatable import steady
from fedbench.testing.checks.runs import located
from fedbench.testing.results import Failed, Skipped
from fedbench.testing.subject import Subject
from fedbench.testing.trials.defense import Federated, begun, run
from fedbench.testing.trials.trial import reference
from fedbench.testing.watch.hooks import hooked, overridden, state_of
from fedbench.testing.watch.prints import storages

_UPDATES = ("protect", "coordinate", "aggregate")


def _serves(subject: Subject, what: str, how: Federated, made: Defense | None = None) -> bool:
    """Whether it serves a federation, or refuses it with a reason. Raises :class:`Failed` for anything else."""
    try:
        run(subject.make() if made is None else made, how)
    except (UserError, SkipCell, Diverged) as why:
        if not str(why).strip():
            raise subject.failed(f"it refuses {what} without a reason; expected one in words") from why
        return False
    except Exception as error:
        raise Failed(
            f"{what}: {located(error, subject)}; expected that it serves it, or that `check` raises UserError with the reason"
        ) from error
    return True


def update_shape_and_dtype(subject: Subject) -> None:
    """`protect`, `coordinate` and `aggregate` answer in the shape and dtype of what they are given, float32 and float64."""
    reference(subject)
    for double in (False, True):
        wrong: dict[str, None] = {}

        def around(name: str, call: Callable[..., Any], args: tuple[Any, ...], wrong: dict[str, None] = wrong) -> Any:
            answer = call(*args)
            if name in _UPDATES and isinstance(answer, torch.Tensor):
                shape = list(args[0].shape[1:] if name == "aggregate" else args[0].shape)
                if list(answer.shape) != shape or answer.dtype != args[0].dtype:
                    found, given = (f"{t.dtype} {list(t.shape)}".removeprefix("torch.") for t in (answer, args[0]))
                    wrong[f"{name} answers {given} with {found}"] = None
            return answer

        what = f"parameters of float{64 if double else 32}"
        try:
            _serves(subject, what, Federated(double=double), hooked(subject.make(), "defense", around))
        except Failed:
            if not wrong:
                raise
        if wrong:
            raise subject.failed(
                f"{', '.join(wrong)}; expected the shape and dtype that it was given: convert back with .to(update)"
            )


def one_and_many_members(subject: Subject) -> None:
    """One member, some and all clients: it serves them, or says why not."""
    reference(subject)
    for members in ((0,), (1, 3), (0, 1, 2, 3, 4)):
        _serves(subject, f"{len(members)} of 5 clients as members", Federated(members=members))


REFUSALS: dict[str, Federated] = {
    "a federation of one client": Federated(sizes=(8,), members=(0,)),
    "a federation of two clients": Federated(sizes=(8, 8), members=(0,)),
    "clients of one and two samples": Federated(sizes=(1, 2, 8, 8, 8)),
    "clients of very different sizes": Federated(sizes=(3, 40, 8, 8, 8)),
    "batches of one sample": Federated(batch_size=1),
    "batches larger than a client's data": Federated(batch_size=64),
    "two of five clients in a round": Federated(participation=0.4, rounds=3),
    "one round": Federated(rounds=1),
    "two classes": Federated(classes=2),
    "clients without privacy thresholds": Federated(thresholds=False),
    "two adversaries to expect": Federated(expected_malicious=2),
    "more adversaries to expect than any rule stands": Federated(expected_malicious=5),
}  # fmt: skip


def refuses_with_a_reason(subject: Subject) -> None:
    """Federations at the edge: it serves them or raises UserError (`check`) or SkipCell with a reason, never a bare exception."""
    reference(subject)
    for what, how in REFUSALS.items():
        _serves(subject, what, how)


def batch_statistics(subject: Subject) -> None:
    """A model with batch normalisation is served, or refused with a reason."""
    reference(subject)
    _serves(subject, "a model with BatchNorm", Federated(normed=True))


class _Backwards(Training):
    """The cohort the other way round."""

    def _cohort(self, t: int) -> tuple[int, ...]:
        return tuple(reversed(super()._cohort(t)))


def order_of_clients(subject: Subject) -> None:
    """A member's upload of the first round does not depend on which client trained before it."""
    reference(subject)
    steady(subject)
    made = subject.make()
    if "coordinate" in overridden(made, "defense"):
        raise Skipped("its members' updates are changed together")
    uploads = []
    for training in (Training, _Backwards):
        first = next(begun(subject.make(), Federated(rounds=1), training).rounds()).uploads
        uploads.append({k: row.clone() for k, row in zip(first.participants, first.updates, strict=True)})
    different = [k for k in uploads[0] if not torch.equal(uploads[0][k], uploads[1][k])]
    if different:
        raise subject.failed(
            f"the upload of client {different[0]} in round 1 is another one where the clients train in another order; expected "
            "the same bits: draw from ctx, keep what a member learns in ctx.memory, not on self"
        )


def members_kept_apart(subject: Subject) -> None:
    """No member's data, memory or context is kept where another member's phase can read it."""
    reference(subject)
    made = subject.make()
    found: dict[str, None] = {}

    def around(name: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        answer = call(*args)
        ctx = args[-1] if args else None
        if isinstance(ctx, MemberContext):
            private = storages([ctx.data.x, ctx.data.y, ctx.data.soft])
            for attribute, value in state_of(made, "defense").items():
                if _holds(value, ctx) or storages(value) & private:
                    found[f"{name} keeps client {ctx.client}'s data, memory or context on self.{attribute}"] = None
        return answer

    run(hooked(made, "defense", around))
    if found:
        raise subject.failed(
            f"{next(iter(found))}; expected that it stays with its member: ctx.memory is each member's own, and another member's "
            "phase must not read it"
        )


def _holds(value: Any, ctx: MemberContext, depth: int = 0) -> bool:
    """Whether the context itself, its memory or its data are somewhere in a value."""
    if any(value is own for own in (ctx, ctx.memory, ctx.data)):
        return True
    if isinstance(value, MemberContext) and value.client == ctx.client:
        return True
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else ()
    return depth < 5 and any(_holds(part, ctx, depth + 1) for part in parts)
