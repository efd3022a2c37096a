"""Checks of all kinds of component."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch

from fedbench.core import Diverged, MemberContext, Params, SkipCell, UserError
from fedbench.core.federation import guard
from fedbench.core.federation.trainer import Trainer
from fedbench.core.process.ask import ask
from fedbench.core.process.library_state import kept
from fedbench.core.registry.hooks_of import misfits, unknown_methods
from fedbench.core.words import explain
from fedbench.testing.observe import (
    difference,
    digests_of,
    global_state,
    hooked,
    recording,
    state_of,
)
from fedbench.testing.subject import Failed, Skipped, Subject, Warned
from fedbench.testing.trials import (
    located,
    passes,
    reference,
    train_and_judge,
    train_with,
    trial,
)
from fedbench.testing.worlds import declared_mistake

# --- declarations ---------------------------------------------------------------------------------


def announced(subject: Subject) -> None:
    """The announcement has a summary that says more than the name."""
    if subject.announced is None:
        raise Warned(
            f"{subject.cls.__name__} is announced by no entry point: a suite cannot name it"
        )
    summary = subject.announced.component.summary
    if summary.strip().lower().replace("-", " ") == subject.name.replace("-", " "):
        raise Failed(
            f"the announced summary is {summary!r}, its name again; expected one line that says "
            "what it does"
        )


def documented(subject: Subject) -> None:
    """The class has a docstring of its own."""
    if not inspect.cleandoc(subject.cls.__doc__ or "").strip():
        raise subject.failed(
            f"the class {subject.cls.__name__} has no docstring; expected one line that says what "
            "it does, and its source"
        )


def parameters_documented(subject: Subject) -> None:
    """Every parameter has a description."""
    params = subject.cls.Params
    if bare := [n for n, f in params.model_fields.items() if not (f.description or "").strip()]:
        raise subject.failed(
            f"parameters of {subject.cls.__name__}.Params without a description: "
            f"{', '.join(bare)}; expected "
            'Field(..., description="what it is, with its unit")',
            params,
        )


def parameters_bounded(subject: Subject) -> None:
    """Every numeric parameter has a range (ge, gt, le, lt) or is a Literal."""
    params = subject.cls.Params
    fields = params.model_json_schema().get("properties", {}).items()
    if loose := [name for name, field in fields if _unbounded(field)]:
        raise subject.failed(
            f"numeric parameters of {subject.cls.__name__}.Params that take any number: "
            f"{', '.join(loose)}; expected a range, "
            "ge=, gt=, le= or lt= of Field, or a Literal",
            params,
        )


_BOUNDS = {
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "enum",
    "const",
    "gt",
    "ge",
    "lt",
    "le",
}


def _unbounded(schema: Any) -> bool:
    """Return whether some number in a JSON schema has no range."""
    if isinstance(schema, list):
        return any(map(_unbounded, schema))
    if not isinstance(schema, dict) or _BOUNDS & schema.keys():
        return False
    return schema.get("type") in ("integer", "number") or any(map(_unbounded, schema.values()))


def defaults_construct(subject: Subject) -> None:
    """An instance can be made from the defaults, and its params are those."""
    try:
        component = subject.make()
    except TypeError as error:
        raise subject.failed(
            f"{explain(error)}; expected a constructor that takes the fields of Params by name: "
            "leave it alone, or call "
            "super().__init__(**values) in __init__(self, **values)"
        ) from error
    if not isinstance(getattr(component, "params", None), Params):
        raise subject.failed(
            f"{subject.cls.__name__}() has no params of its own kind; expected what "
            "Configured.__init__ sets: leave the "
            "constructor alone, or call super().__init__(**values) in it"
        )


def known_methods(subject: Subject) -> None:
    """Every public method is a hook of the contract (of a defense: a phase): the engine calls no
    other.
    """
    messages = unknown_methods(subject.cls)
    for message in messages:
        if "did you mean" in message:
            raise subject.failed(message)
    if messages:
        raise Warned(messages[0])


def signatures(subject: Subject) -> None:
    """Every hook takes the engine's arguments."""
    if wrong := misfits(subject.cls):
        name, takes, expected = wrong[0]
        raise subject.failed(
            f"{name} takes {takes}; expected {name}{expected}, as the engine calls it",
            getattr(subject.cls, name),
        )


def declares_known_signals(subject: Subject) -> None:
    """`needs`, `view` and the other declared attributes are valid and go together, and every signal
    in `needs` is installed.
    """
    if mistake := declared_mistake(subject.make()):
        raise subject.failed(f"its {mistake}")


# --- the small run --------------------------------------------------------------------------------


def runs(subject: Subject) -> None:
    """A small run completes with valid answers."""
    passes(subject)


def result_or_reason(subject: Subject, case: str, work: Callable[[], Any]) -> Any:
    """Return the result of ``work``, or None where the component refuses with a reason.

    Raises :class:`Failed` otherwise.
    """
    try:
        return work()
    except (UserError, SkipCell, Diverged) as why:
        if not str(why).strip():
            raise subject.failed(
                f"{case}: it refuses without a reason; expected one in words"
            ) from why
    except Exception as error:
        raise Failed(
            f"{case}: {located(error)}; expected a result, or UserError or SkipCell with the reason"
        ) from error


def runs_end_to_end(subject: Subject) -> None:
    """Data, training, attack and verdict work together."""
    train_and_judge(subject)


def runs_on_cuda(subject: Subject) -> None:
    """Training and measuring work on a GPU, where there is one."""
    # in a process of its own: this one could not fork others that use CUDA afterwards
    if not ask(torch.cuda.is_available):
        raise Skipped("this machine has no CUDA device")
    if subject.kind == "attack":
        ask(lambda: train_with(subject.make(), device="cuda") and "")
    else:
        ask(lambda: train_and_judge(subject, "cuda"))


# --- repeatability and side effects ---------------------------------------------------------------


_KEYED = (
    "draw from keyed generators: ctx.rng or ctx.generator of a defense, audit.rng or "
    "audit.generator of an attack (knowledge.rng in craft), run.rng(purpose) of an analysis, one "
    "made from the seed of a data set's load, torch's in a model's build"
)


def deterministic_under_seed(subject: Subject) -> None:
    """Two runs of one seed, each in a fresh process and the second at another time, give the same
    bits.
    """
    if name := difference(*passes(subject)[:2]):
        raise Failed(
            f"{name} is not the same in a second run of the same seed; expected the same bits: no "
            "clock, no process id, no "
            f"file that an earlier run wrote; {_KEYED}"
        )


def global_state_unchanged(subject: Subject) -> None:
    """The global generators of Python, numpy and torch and the settings of the process stay as they
    are.
    """
    changes: dict[str, None] = {}
    around = recording(changes, lambda name, args: global_state(subject.kind))
    # sets torch's generator
    engine_keys = patch.object(Trainer, "key_module", lambda *args, **more: None)
    for _ in range(2):  # what it imports the first time may change the state
        changes.clear()
        with kept(), engine_keys:
            trial(subject, hooked(around("its constructor", subject.make, ()), around))
        if not changes:
            return
    raise subject.failed(f"{', '.join(changes)}; expected the same state afterwards; {_KEYED}")


def no_state_between_runs(subject: Subject) -> None:
    """An instance that has served one run serves the next as one in a fresh process does."""
    component = subject.make()
    trial(subject, component)
    name = difference(reference(subject), digests_of(trial(subject, component)))
    if not name:
        return
    fresh = digests_of(state_of(subject.make()))
    used = digests_of(state_of(component))
    left = ", ".join(f"self.{n}" for n in used if used[n] != fresh.get(n))
    place = {"defense": " in `begin`, or keep it in ctx.memory", "attack": " in `score`"}
    raise subject.failed(
        f"{name} differs where an instance serves a second run; left over from the first: "
        f"{left or 'a global of its module, or other state outside it'}; expected a reset"
        f"{place.get(subject.kind, '')}"
    )


# arguments that a hook may write to: a rule's rows, the coalition's and a member's own update are
# copies
_WRITABLE = ("protect", "coordinate", "aggregate")
# fields of a context that are working copies or functions
_LIVE = (
    "params",
    "model",
    "memory",
    "tools",
    "training",
    "logits",
    "train",
    "step",
    "sample_steps",
    "rule",
)


def inputs_not_mutated(subject: Subject) -> None:
    """Hooks do not change their arguments."""
    changes: dict[str, None] = {}
    try:
        with patch.object(guard, "debugging", lambda: True):
            trial(subject, hooked(subject.make(), recording(changes, _arguments)))
    except guard.PhaseError as error:
        if not changes:  # what the engine alone watches: the module's layers and hooks
            changes[str(error)] = None
    if changes:
        raise subject.failed(
            f"{', '.join(changes)}; expected no change: work on a copy, .clone() of a tensor, "
            ".copy() of an array"
        )


def _arguments(hook: str, args: tuple[Any, ...]) -> dict[str, str]:
    """Return digests of every part of the arguments that the hook may not change."""
    values: dict[str, Any] = {}
    for i, arg in enumerate(args):
        if i == 0 and hook in _WRITABLE:
            continue
        name = type(arg).__name__
        fields = getattr(type(arg), "__dataclass_fields__", None)
        if fields is None:
            values[f"its argument {i + 1} ({name})"] = arg
            continue
        live = _LIVE if isinstance(arg, MemberContext) or hasattr(arg, "memory") else ()
        values |= {f"{name}.{n}": getattr(arg, n) for n in fields if n not in live}
    return digests_of(values)
