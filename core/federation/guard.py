"""Call a plugin's phase and check what it returns. Errors name plugin, phase, client and round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fedbench.core.contract.contexts import (
    AnswerContext,
    CoalitionContext,
    Federation,
    MemberContext,
    ReportContext,
    ServerContext,
)
from fedbench.core.contract.defense import Defense, acting
from fedbench.core.contract.errors import Diverged, SkipCell, UserError
from fedbench.core.contract.phases import phase as phase_of
from fedbench.core.federation.answers import CHECKS, Misfit, describe, vector
from fedbench.core.federation.watch import Watch
from fedbench.core.process.channel import pass_on_interrupt
from fedbench.core.words import debugging, describe_error, one_line

_LONGEST_REMARK, _MOST_REMARKS = 400, 20  # characters of a remark, remarks of a defense
# phases with a first argument that is the engine's own -> its name in messages
_READ_ONLY = {"assign": "models", "answer": "logits"}
# copied into the engine's tensors, without their graph
_COPIED = ("vector or nothing", "same shape", "step")


class PhaseError(RuntimeError):
    """A plugin failed in a phase; the message is the reason in the record."""


class PhaseRefusal(UserError):
    """A plugin raised ``UserError`` in a phase; each message names plugin, phase and place."""


class Delegating:
    """Base of the engine's own defenses that delegate every phase to their parts through
    ``call_phase``.
    """

    parts: tuple[Defense, ...]

    def check(self, federation: Federation) -> None:
        """Call the ``check`` of each part."""
        for part in self.parts:
            require_served(part, federation)


# --- calls ----------------------------------------------------------------------------------------


def call(
    plugin: Any,
    phase: str,
    *args: Any,
    where: str,
) -> Any:
    """Return ``plugin.phase(*args)``.

    Raises:
        PhaseRefusal: for a ``UserError`` of the plugin, with ``where``.
        PhaseError: for another exception, with ``where``. Errors of nested phases pass unchanged.
    """
    try:
        return getattr(plugin, phase)(*args)
    except (PhaseRefusal, SkipCell, Diverged, PhaseError):
        raise
    except BaseException as error:  # sys.exit is no Exception
        pass_on_interrupt(error)
        place = f"{type(plugin).__name__}.{phase} ({where})"
        if isinstance(error, UserError) and (isinstance(plugin, Delegating) or phase == "check"):
            raise  # the message names its subject already
        if isinstance(error, UserError) and str(error).strip():
            raise PhaseRefusal(*(f"{place}: {text}" for text in error.messages)) from error
        raise PhaseError(f"{place}: {describe_error(error)}") from error


def call_phase(
    defense: Defense,
    name: str,
    *args: Any,
    where: str,
) -> Any:
    """Call a phase of a defense, with its context as the last argument, and return its answer.

    Raises:
        PhaseError: if the answer does not fit the table of phases, or if the phase changed what
            all clients share. Other writes are found with ``--debug``, in ``run --verify`` and in
            ``fedbench check``.
        LookupError: for an unknown phase.
    """
    row = phase_of(name)
    if isinstance(defense, Delegating):
        return call(defense, name, *args, where=where)
    handed = {_READ_ONLY[name]: args[0]} if name in _READ_ONLY else {}
    answer = _watched(defense, name, args, handed, where)
    _require_fit(CHECKS[row.returns](answer, *args), defense, name, where)
    return answer.detach() if row.returns in _COPIED and answer is not None else answer


def call_for_rows(
    plugin: Any,
    phase: str,
    like: torch.Tensor,
    *args: Any,
    where: str,
) -> torch.Tensor:
    """Call a phase of an adversary that returns rows of the shape of ``like``. Raises as
    :func:`call_phase`.
    """
    rows: torch.Tensor = _watched(plugin, phase, args, {}, where)
    _require_fit(vector(rows, like.shape, like), plugin, phase, where)
    return rows.detach()


def _watched(
    plugin: Any,
    phase: str,
    args: tuple[Any, ...],
    handed: dict[str, torch.Tensor],
    where: str,
) -> Any:
    watch = Watch(args[-1], handed, closely=debugging())
    answer = call(plugin, phase, *args, where=where)
    if change := watch.change():
        raise PhaseError(f"{type(plugin).__name__}.{phase} ({where}) {change}")
    return answer


def _require_fit(
    misfit: Misfit | None,
    plugin: Any,
    phase: str,
    where: str,
) -> None:
    if misfit is not None:
        place = f"{type(plugin).__name__}.{phase} ({where})"
        raise PhaseError(f"{place} returned {misfit.actual}; expected {misfit.expected}")


def backward(loss: torch.Tensor, defense: Defense, where: str) -> None:
    """Backpropagate a defense's own loss; an exception names the phase ``loss``."""
    try:
        loss.backward()  # type: ignore[no-untyped-call]
    except Exception as error:
        part = next(iter(acting(defense, "loss")), defense)
        place = f"{type(part).__name__}.loss ({where})"
        raise PhaseError(f"{place}: its gradient: {describe_error(error)}") from error


def run_model(work: Callable[..., Any], *args: torch.Tensor, where: str) -> Any:
    """Return ``work(*args)``; an exception names the model."""
    try:
        return work(*args)
    except Exception as error:
        raise PhaseError(f"the model ({where}): {describe_error(error)}") from error


def where_of(
    ctx: MemberContext | CoalitionContext | ServerContext | AnswerContext | ReportContext,
) -> str:
    """Return the place of a phase, for messages."""
    if isinstance(ctx, ReportContext):
        return "after the last round"
    if isinstance(ctx, AnswerContext):
        return f"global model {ctx.model_index}, after round {ctx.round}"
    when = f"round {ctx.round}" if ctx.round else "before round 1"
    if isinstance(ctx, MemberContext):
        return f"client {ctx.client}, {when}"
    return f"server, {when}" if isinstance(ctx, ServerContext) else when


# --- before round 1 -------------------------------------------------------------------------------


def require_served(defense: Defense, federation: Federation) -> None:
    """Call a defense's ``check``. Raises its ``UserError``, and one if it returns a value."""
    answer: object = defense.check(federation)  # type: ignore[func-returns-value]
    require_nothing(defense, answer)


def require_nothing(defense: Defense, answer: object) -> None:
    """Raise ``UserError`` if ``check`` returned a value."""
    if answer is not None:
        raise UserError(
            f"{type(defense).__name__}.check returned {type(answer).__name__}; expected None, or "
            "UserError raised with the reason"
        )


def remarks_of(defense: Defense, federation: Federation) -> list[str]:
    """Return a defense's remarks on a federation, each on one line of bounded length, without
    duplicates. Raises ``UserError`` if ``remarks`` returns anything but texts.
    """
    answer: object = defense.remarks(federation)
    if not isinstance(answer, list | tuple) or not all(isinstance(text, str) for text in answer):
        raise UserError(
            f"{type(defense).__name__}.remarks returned {describe(answer)}; expected a list of "
            "texts"
        )
    lines = dict.fromkeys(one_line(text, _LONGEST_REMARK) for text in answer)
    return list(lines)[:_MOST_REMARKS]
