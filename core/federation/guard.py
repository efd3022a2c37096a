"""Call a plugin's phase, watch what it was handed, and check what it returns. Errors name plugin, phase, client and round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from fedbench.core.contract.attack import Knowledge
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
from fedbench.core.contract.samples import MemberData
from fedbench.core.federation.answers import CHECKS, found, vector
from fedbench.core.process.channel import pass_on_interrupt
from fedbench.core.words import one_line, told

# tensors that a plugin may write to: the parameters it trains, and copies made for the adversary
OWN = {(MemberContext, "params"), (Knowledge, "start"), (Knowledge, "own"), (Knowledge, "honest")}
# where torch keeps the hooks of a module, of a tensor
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_post_accumulate_grad_hooks")
_SAMPLE = 1024  # elements looked at one by one, spread over the tensor


# what the other clients' training, in the same process, would meet
SETTINGS: dict[str, Callable[[], Any]] = {
    "default dtype": torch.get_default_dtype, "grad mode": torch.is_grad_enabled, "number of threads": torch.get_num_threads,
    "deterministic mode": torch.get_deterministic_debug_mode, "autocast": lambda: torch.is_autocast_enabled("cpu"),
}  # fmt: skip


class Watch:
    """Over what ``context`` hands out, and what else is handed out under a name (``also``). ``closely``: also for writes past
    torch's counters, and for the member's module, which all clients train in."""

    def __init__(self, context: Any, also: Mapping[str, torch.Tensor] = MappingProxyType({}), closely: bool = True) -> None:
        self._tensors = [*_handed(context), *also.items()]
        self._versions = [t._version for _, t in self._tensors]
        self._prints = [_known(t) for _, t in self._tensors] if closely else []
        self._module = context.model if closely and isinstance(context, MemberContext | Knowledge) else None
        self._structure = _structure(self._module) if closely else []
        self._settings = [get() for get in SETTINGS.values()]

    def changed(self) -> list[str]:
        """Names of what is not as it was."""
        found = [n for (n, t), version in zip(self._tensors, self._versions, strict=True) if t._version != version]
        if self._prints:
            found += [n for (n, t), was in zip(self._tensors, self._prints, strict=True) if n not in found and _print(t) != was]
        if self._module is not None and _structure(self._module) != self._structure:
            found.append("its model: modules, tensors, hooks, requires_grad or settings (load parameters into it instead)")
        return found

    def settings_changed(self) -> list[str]:
        """Names of torch's global settings that are not as they were."""
        return [name for (name, get), was in zip(SETTINGS.items(), self._settings, strict=True) if get() != was]


def _handed(context: Any) -> list[tuple[str, torch.Tensor]]:
    """Every tensor of a context, and of the data in it, but those that are the plugin's own: from its fields, so that a field
    that is added is watched."""
    found: list[tuple[str, torch.Tensor]] = []
    for field, name in _names(type(context)):  # type: ignore[arg-type]
        value = getattr(context, field)
        if isinstance(value, torch.Tensor):
            found.append((name, value))
        elif isinstance(value, MemberData):
            parts = [(f"{name}.{part}", getattr(value, part)) for part in _DATA]
            found += [(part, t) for part, t in parts if isinstance(t, torch.Tensor)]
    return found


_DATA = tuple(field.name for field in fields(MemberData))


@cache
def _names(kind: type) -> list[tuple[str, str]]:
    """(field, what messages call it) of a kind of context, but for the plugin's own: asked for in every step of a batch."""
    lead = "knowledge" if issubclass(kind, Knowledge) else "ctx"
    return [(field.name, f"{lead}.{field.name}") for field in fields(kind) if (kind, field.name) not in OWN]


_memo: WeakIdKeyDictionary = WeakIdKeyDictionary()  # tensor -> its print


def _known(t: torch.Tensor) -> tuple[Any, ...]:
    """The print, made when it is first handed out: a client's data are in every phase of every round. The engine writes to none
    of it, so what was kept and is written to later, in another client's phase, is found when it is handed out again."""
    if t not in _memo:
        _memo[t] = _print(t)
    known: tuple[Any, ...] = _memo[t]
    return known


def _print(t: torch.Tensor) -> tuple[Any, ...]:
    """What a write changes: place, shape, a sum, and the bytes of a sample."""
    flat = t.detach().reshape(-1)
    sample = flat[:: max(1, len(flat) // _SAMPLE)].cpu().numpy().tobytes()
    return t.data_ptr(), t.shape, t.dtype, repr(flat.sum().item()), sample


def _structure(module: nn.Module | None) -> list[Any]:
    """Which modules and tensors a module holds, which of them are trained, how many hooks it has, and what torch's own layers
    are told (momentum, the share that is dropped): a layer of somebody's may count on itself."""
    if module is None:
        return []
    tensors = [(t.data_ptr(), t.requires_grad, _hooks(t)) for t in (*module.parameters(), *module.buffers())]
    modules = list(module.modules())
    hooks = [_hooks(m) for m in modules]
    told = [_told(m) for m in modules if type(m).__module__.startswith("torch.nn.")]
    return [tensors, modules, hooks, told]


def _hooks(of: Any) -> list[int]:
    """How many of each kind; a method put in the place of a module's own is one, too."""
    kept = [getattr(of, name, None) for name in _HOOKS]
    return [len(there or ()) for there in kept] + [callable(vars(of).get("forward"))]


def _told(layer: nn.Module) -> list[tuple[str, Any]]:
    plain = int, float, str, type(None)
    return [(name, value) for name, value in vars(layer).items() if name != "training" and isinstance(value, plain)]


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
