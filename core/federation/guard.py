"""Call a plugin's phase; a failure, a wrong answer or a write to what is not its own names plugin, phase, client and round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

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
from fedbench.core.contract.phases import phase
from fedbench.core.federation.answers import CHECKS, found, vector
from fedbench.core.federation.handed import Watch
from fedbench.core.process.channel import pass_on_interrupt
from fedbench.core.words.explain import one_line, told

_LONGEST_REMARK, _MOST_REMARKS = 400, 20  # characters of a remark, remarks of a defense


class PhaseError(RuntimeError):
    """A plugin failed in a phase; the message is what the record says."""


class PhaseRefusal(UserError):
    """A plugin refused in a phase what the user asked for; each message names who, in which phase, and where."""


class AsksEach:
    """A defense of the engine's own that puts every phase to its parts, each through ``act``: it need not be guarded again."""


def call(plugin: Any, phase: str, *args: Any, where: str) -> Any:
    """``plugin.phase(*args)``; other people's exceptions become a :class:`PhaseError` naming ``where``, their ``UserError`` a
    :class:`PhaseRefusal`. What a part of a composite raised, or a phase of a batch inside the training, is named already."""
    try:
        return getattr(plugin, phase)(*args)
    except (PhaseRefusal, SkipCell, Diverged, PhaseError):
        raise
    except BaseException as error:  # sys.exit is no Exception
        pass_on_interrupt(error)
        who = f"{type(plugin).__name__}.{phase} ({where})"
        if isinstance(error, UserError) and (isinstance(plugin, AsksEach) or phase == "check"):
            raise  # the engine's own says by itself whom it means; `check` is no phase, and says the same at planning
        if not isinstance(error, UserError) or not str(error).strip():
            raise PhaseError(f"{who}: {told(error)}") from error
        raise PhaseRefusal(*(f"{who}: {message}" for message in error.messages)) from error


def require_served(defense: Defense, federation: Federation) -> None:
    """Ask a defense's ``check``. Raises ``UserError`` where it refuses, and where it answers anything: it refuses by raising."""
    answer: object = defense.check(federation)  # type: ignore[func-returns-value]
    require_nothing(defense, answer)


def require_nothing(defense: Defense, answer: object) -> None:
    """Raise ``UserError`` where ``check`` has answered."""
    if answer is not None:
        found = f"{type(defense).__name__}.check returned {type(answer).__name__}"
        raise UserError(f"{found}; expected None, or UserError raised with the reason")


def remarks_of(defense: Defense, federation: Federation) -> list[str]:
    """What a defense says of a federation before it is trained, each remark on one line of bounded length, none twice. Raises
    ``UserError`` where its ``remarks`` answers anything but texts."""
    answer: object = defense.remarks(federation)
    texts = list(answer) if isinstance(answer, list | tuple) else [None]
    if not all(isinstance(text, str) for text in texts):
        raise UserError(f"{type(defense).__name__}.remarks returned {found(answer)}; expected a list of texts")
    return list(dict.fromkeys(one_line(text, _LONGEST_REMARK) for text in map(str, texts)))[:_MOST_REMARKS]


def call_for_rows(plugin: Any, phase: str, like: torch.Tensor, *args: Any, where: str) -> torch.Tensor:
    """The same for an adversary's rows, of the shape of ``like``; what it was handed and may not change is watched."""
    watch = Watch(args[-1])
    out: torch.Tensor = call(plugin, phase, *args, where=where)
    _require_untouched(watch, type(plugin).__name__, phase, where)
    if misfit := vector(out, like.shape, like):
        raise PhaseError(f"{type(plugin).__name__}.{phase} ({where}) returned {misfit.found}; expected {misfit.expected}")
    return out.detach()


def act(defense: Defense, name: str, *args: Any, where: str) -> Any:
    """A defense's answer in a phase, checked for what the table of phases says it returns; the context is the last argument.

    Raises :class:`PhaseError` that names the plugin, what was found and what was expected, also where a tensor of the engine's
    was written to; ``LookupError`` for a name that is no phase.
    """
    row = phase(name)
    if isinstance(defense, AsksEach):
        return call(defense, row.name, *args, where=where)
    watch = Watch(args[-1], {_READ[name]: args[0]} if name in _READ else {}, closely=row.stage != "batch")
    answer = call(defense, row.name, *args, where=where)
    _require_untouched(watch, type(defense).__name__, row.name, where)
    if misfit := CHECKS[row.returns](answer, *args):
        raise PhaseError(f"{type(defense).__name__}.{row.name} ({where}) returned {misfit.found}; expected {misfit.expected}")
    return answer.detach() if row.returns in _ROWS and answer is not None else answer


_READ = {"assign": "models", "answer": "logits"}  # phases whose first argument is the engine's own, and what messages call it
_ROWS = ("vector or nothing", "same shape", "step")  # copied into the engine's own: what computed them is nothing to it


def _require_untouched(watch: Watch, who: str, phase: str, where: str) -> None:
    if changed := watch.changed():
        around = " or a phase of a batch inside it" if phase == "local_train" else ""
        remedy = "it is handed out to be read: work on a copy, as .clone() makes one"
        raise PhaseError(f"{who}.{phase}{around} ({where}) changed {', '.join(changed)}; {remedy}")
    if changed := watch.settings_changed():
        remedy = "everybody's training goes on in the same process: put back what was there, as a `with` block does"
        raise PhaseError(f"{who}.{phase} ({where}) changed torch's {', '.join(changed)}; {remedy}")


def backward(loss: torch.Tensor, defense: Defense, where: str) -> None:
    """The gradient of a defense's own loss; what goes wrong in it is the loss's fault."""
    try:
        loss.backward()  # type: ignore[no-untyped-call]
    except Exception as error:
        part = next(iter(acting(defense, "loss")), defense)
        raise PhaseError(f"{type(part).__name__}.loss ({where}): its gradient: {told(error)}") from error


def forward(module: nn.Module, x: torch.Tensor, where: str) -> torch.Tensor:
    """[B, C] logits; a model that fails is not the fault of the phase around the training."""
    return blaming_the_model(module, x, where=where)


def blaming_the_model(work: Callable[..., Any], *args: torch.Tensor, where: str) -> Any:
    """``work(*args)``, which only the model can make fail."""
    try:
        return work(*args)
    except Exception as error:
        raise PhaseError(f"the model ({where}): {told(error)}") from error


def where_of(ctx: MemberContext | CoalitionContext | ServerContext | AnswerContext | ReportContext) -> str:
    """The place of a phase, for messages."""
    if isinstance(ctx, ReportContext):
        return "after the last round"
    if isinstance(ctx, AnswerContext):
        return f"global model {ctx.model_index}, after round {ctx.round}"
    when = f"round {ctx.round}" if ctx.round else "before round 1"
    if isinstance(ctx, MemberContext):
        return f"client {ctx.client}, {when}"
    return f"server, {when}" if isinstance(ctx, ServerContext) else when
