"""Call a plugin's phase, watch what it was handed, and check what it returns. Errors name plugin,
phase, client and round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
from fedbench.core.words import describe_error, one_line

# tensors that a plugin may write to: the parameters it trains, and copies made for the adversary
OWN = {(MemberContext, "params"), (Knowledge, "start"), (Knowledge, "own"), (Knowledge, "honest")}
# the attributes of modules and tensors in which torch keeps hooks
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_post_accumulate_grad_hooks",
)
_SAMPLE = 1024  # elements of a fingerprint, spread over the tensor


# global settings of torch: a plugin that changes one would change the other clients' training
SETTINGS: dict[str, Callable[[], Any]] = {
    "default dtype": torch.get_default_dtype,
    "grad mode": torch.is_grad_enabled,
    "number of threads": torch.get_num_threads,
    "deterministic mode": torch.get_deterministic_debug_mode,
    "autocast": lambda: torch.is_autocast_enabled("cpu"),
}


class Checks:
    """CPU and wall seconds that the checks of this module took in this process: no cost of a
    defense. None are counted on a GPU, where a check waits for the training's own kernels.
    """

    cpu_s = wall_s = 0.0


@contextmanager
def _check() -> Iterator[None]:
    cpu, wall = time.process_time(), time.perf_counter()
    try:
        yield
    finally:
        if not torch.cuda.is_initialized():
            Checks.cpu_s += time.process_time() - cpu
            Checks.wall_s += time.perf_counter() - wall


class Watch:
    """Detects writes to the tensors of ``context`` and of ``also`` (name -> tensor). ``closely``:
    also writes past torch's counters, and for the member's module, which all clients train in.
    """

    @_check()
    def __init__(
        self,
        context: Any,
        also: Mapping[str, torch.Tensor] = MappingProxyType({}),
        closely: bool = True,
    ) -> None:
        self._tensors = [*_handed(context), *also.items()]
        self._versions = [t._version for _, t in self._tensors]
        self._fingerprints = [_first_fingerprint(t) for _, t in self._tensors] if closely else []
        self._module = (
            context.model if closely and isinstance(context, MemberContext | Knowledge) else None
        )
        self._structure = _structure(self._module) if closely else []
        self._settings = [get() for get in SETTINGS.values()]

    def changed(self) -> list[str]:
        """Names of the changed tensors."""
        found = [
            n
            for (n, t), version in zip(self._tensors, self._versions, strict=True)
            if t._version != version
        ]
        if self._fingerprints:
            now = [(n, _fingerprint(t)) for n, t in self._tensors]
            found += [
                n
                for (n, is_), was in zip(now, self._fingerprints, strict=True)
                if n not in found and is_ != was
            ]
        if self._module is not None and _structure(self._module) != self._structure:
            found.append(
                "its model: modules, tensors, hooks, requires_grad or settings (load parameters "
                "into it instead)"
            )
        return found

    def settings_changed(self) -> list[str]:
        """Names of the changed global settings of torch."""
        return [
            name
            for (name, get), was in zip(SETTINGS.items(), self._settings, strict=True)
            if get() != was
        ]


def _handed(context: Any) -> list[tuple[str, torch.Tensor]]:
    """Every tensor in the fields of a context and of its data, except those that the plugin may
    write to.
    """
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
    """(field, name in messages) of a context class, without the fields that the plugin may write
    to.
    """
    lead = "knowledge" if issubclass(kind, Knowledge) else "ctx"
    return [
        (field.name, f"{lead}.{field.name}")
        for field in fields(kind)
        if (kind, field.name) not in OWN
    ]


_memo: WeakIdKeyDictionary = WeakIdKeyDictionary()  # tensor -> its fingerprint


def _first_fingerprint(t: torch.Tensor) -> tuple[Any, ...]:
    """The fingerprint from the first time that the tensor was handed out. The engine never writes
    to these tensors, so a later write from another client's phase is found, too.
    """
    if t not in _memo:
        _memo[t] = _fingerprint(t)
    known: tuple[Any, ...] = _memo[t]
    return known


def _fingerprint(t: torch.Tensor) -> tuple[Any, ...]:
    """Fingerprint: address, shape, sum, and the bytes of a sample of the elements."""
    flat = t.detach().reshape(-1)
    sample = flat[:: max(1, len(flat) // _SAMPLE)].cpu().numpy().tobytes()
    return t.data_ptr(), t.shape, t.dtype, repr(flat.sum().item()), sample


def _structure(module: nn.Module | None) -> list[Any]:
    """The module's parts, tensors, ``requires_grad``, numbers of hooks, and settings of torch's own
    layers (momentum, dropout rate); a plugin's own layers may keep counters.
    """
    if module is None:
        return []
    tensors = [
        (t.data_ptr(), t.requires_grad, _hooks(t))
        for t in (*module.parameters(), *module.buffers())
    ]
    modules = list(module.modules())
    hooks = [_hooks(m) for m in modules]
    settings = [_settings_of(m) for m in modules if type(m).__module__.startswith("torch.nn.")]
    return [tensors, modules, hooks, settings]


def _hooks(of: Any) -> list[int]:
    """Number of hooks of each kind; a replaced ``forward`` counts as one."""
    kept = [getattr(of, name, None) for name in _HOOKS]
    return [len(there or ()) for there in kept] + [callable(vars(of).get("forward"))]


def _settings_of(layer: nn.Module) -> list[tuple[str, Any]]:
    plain = int, float, str, type(None)
    return [
        (name, value)
        for name, value in vars(layer).items()
        if name != "training" and isinstance(value, plain)
    ]


# --- calls ----------------------------------------------------------------------------------------


_LONGEST_REMARK, _MOST_REMARKS = 400, 20  # characters of a remark, remarks of a defense


class PhaseError(RuntimeError):
    """A plugin failed in a phase; the message is the reason in the record."""


class PhaseRefusal(UserError):
    """A plugin raised ``UserError`` in a phase; each message names plugin, phase and place."""


class Delegating:
    """Base of the engine's own defenses that delegate every phase to their parts through
    ``call_phase``.
    """


def call(plugin: Any, phase: str, *args: Any, where: str) -> Any:
    """``plugin.phase(*args)``. Its exceptions become a :class:`PhaseError` with ``where``, its
    ``UserError`` a :class:`PhaseRefusal`; errors of nested phases pass unchanged.
    """
    try:
        return getattr(plugin, phase)(*args)
    except (PhaseRefusal, SkipCell, Diverged, PhaseError):
        raise
    except BaseException as error:  # sys.exit is no Exception
        pass_on_interrupt(error)
        who = f"{type(plugin).__name__}.{phase} ({where})"
        if isinstance(error, UserError) and (isinstance(plugin, Delegating) or phase == "check"):
            raise  # the message names its subject already
        if not isinstance(error, UserError) or not str(error).strip():
            raise PhaseError(f"{who}: {describe_error(error)}") from error
        raise PhaseRefusal(*(f"{who}: {message}" for message in error.messages)) from error


def require_served(defense: Defense, federation: Federation) -> None:
    """Call a defense's ``check``. Raises its ``UserError``, and one if it returns a value."""
    answer: object = defense.check(federation)  # type: ignore[func-returns-value]
    require_nothing(defense, answer)


def require_nothing(defense: Defense, answer: object) -> None:
    """Raise ``UserError`` if ``check`` returned a value."""
    if answer is not None:
        found = f"{type(defense).__name__}.check returned {type(answer).__name__}"
        raise UserError(f"{found}; expected None, or UserError raised with the reason")


def remarks_of(defense: Defense, federation: Federation) -> list[str]:
    """A defense's remarks on a federation, each on one line of bounded length, without duplicates.
    Raises ``UserError`` if ``remarks`` returns anything but texts.
    """
    answer: object = defense.remarks(federation)
    texts = list(answer) if isinstance(answer, list | tuple) else [None]
    if not all(isinstance(text, str) for text in texts):
        raise UserError(
            f"{type(defense).__name__}.remarks returned {found(answer)}; expected a list of texts"
        )
    return list(dict.fromkeys(one_line(text, _LONGEST_REMARK) for text in map(str, texts)))[
        :_MOST_REMARKS
    ]


def call_for_rows(
    plugin: Any, phase: str, like: torch.Tensor, *args: Any, where: str
) -> torch.Tensor:
    """Call a phase of an adversary that returns rows of the shape of ``like``, and check that it
    wrote to nothing it may not.
    """
    watch = Watch(args[-1])
    out: torch.Tensor = call(plugin, phase, *args, where=where)
    require_untouched(watch, type(plugin).__name__, phase, where)
    if misfit := vector(out, like.shape, like):
        raise PhaseError(
            f"{type(plugin).__name__}.{phase} ({where}) returned {misfit.found}; expected "
            f"{misfit.expected}"
        )
    return out.detach()


def call_phase(defense: Defense, name: str, *args: Any, where: str) -> Any:
    """Call a phase of a defense and check its return value against the table of phases; the context
    is the last argument.

    Raises :class:`PhaseError` for a wrong return value, also if a tensor of the engine was written
    to; ``LookupError`` for an unknown phase.
    """
    row = phase(name)
    if isinstance(defense, Delegating):
        return call(defense, row.name, *args, where=where)
    watch = Watch(
        args[-1], {_READ[name]: args[0]} if name in _READ else {}, closely=row.stage != "batch"
    )
    answer = call(defense, row.name, *args, where=where)
    require_untouched(watch, type(defense).__name__, row.name, where)
    with _check():
        misfit = CHECKS[row.returns](answer, *args)
    if misfit:
        raise PhaseError(
            f"{type(defense).__name__}.{row.name} ({where}) returned {misfit.found}; expected "
            f"{misfit.expected}"
        )
    return answer.detach() if row.returns in _ROWS and answer is not None else answer


# phases with a first argument that is the engine's own -> its name in messages
_READ = {"assign": "models", "answer": "logits"}
# copied into the engine's tensors, without their graph
_ROWS = ("vector or nothing", "same shape", "step")


@_check()
def require_untouched(watch: Watch, who: str, phase: str, where: str) -> None:
    """Raise :class:`PhaseError` where plugin ``who`` wrote to what is watched, or changed torch's
    settings.
    """
    if changed := watch.changed():
        around = " or a phase of a batch inside it" if phase == "local_train" else ""
        remedy = "it is read-only: work on a copy, e.g. .clone()"
        raise PhaseError(f"{who}.{phase}{around} ({where}) changed {', '.join(changed)}; {remedy}")
    if changed := watch.settings_changed():
        remedy = (
            "all clients train in the same process: restore the setting, e.g. by a `with` block"
        )
        raise PhaseError(f"{who}.{phase} ({where}) changed torch's {', '.join(changed)}; {remedy}")


def backward(loss: torch.Tensor, defense: Defense, where: str) -> None:
    """Backpropagate a defense's own loss; an exception names the phase ``loss``."""
    try:
        loss.backward()  # type: ignore[no-untyped-call]
    except Exception as error:
        part = next(iter(acting(defense, "loss")), defense)
        raise PhaseError(
            f"{type(part).__name__}.loss ({where}): its gradient: {describe_error(error)}"
        ) from error


def run_model(work: Callable[..., Any], *args: torch.Tensor, where: str) -> Any:
    """``work(*args)``; an exception names the model."""
    try:
        return work(*args)
    except Exception as error:
        raise PhaseError(f"the model ({where}): {describe_error(error)}") from error


def where_of(
    ctx: MemberContext | CoalitionContext | ServerContext | AnswerContext | ReportContext,
) -> str:
    """The place of a phase, for messages."""
    if isinstance(ctx, ReportContext):
        return "after the last round"
    if isinstance(ctx, AnswerContext):
        return f"global model {ctx.model_index}, after round {ctx.round}"
    when = f"round {ctx.round}" if ctx.round else "before round 1"
    if isinstance(ctx, MemberContext):
        return f"client {ctx.client}, {when}"
    return f"server, {when}" if isinstance(ctx, ServerContext) else when
