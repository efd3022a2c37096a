"""Checks of all kinds of component."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from fedbench.core import Diverged, MemberContext, Params, SkipCell, UserError
from fedbench.core.federation import guard
from fedbench.core.federation.local import LocalTrainer
from fedbench.core.process.ask import ask
from fedbench.core.process.library_state import kept
from fedbench.core.registry.hooks_of import misfits, unknown_methods
from fedbench.core.words import explain
from fedbench.testing.observe import (
    difference,
    digest_of,
    digests_of,
    global_state,
    hooked,
    state_of,
)
from fedbench.testing.subject import Failed, Skipped, Subject, Warned
from fedbench.testing.trials import (
    job_with,
    located,
    passes,
    reference,
    run_in,
    trained_with,
    trial,
)
from fedbench.testing.worlds import declared_mistake

# --- declarations ---------------------------------------------------------------------------------


def announced(subject: Subject) -> None:
    """Its announcement has a summary that says more than its name."""
    if subject.found is None:
        raise Warned(
            f"{subject.cls.__name__} is announced by no entry point: a suite cannot name it"
        )
    summary = subject.found.component.summary
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
    if loose := [
        name
        for name, field in params.model_json_schema().get("properties", {}).items()
        if _unbounded(field)
    ]:
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
    """Whether some number in a JSON schema has no range."""
    if isinstance(schema, list):
        return any(map(_unbounded, schema))
    if not isinstance(schema, dict) or _BOUNDS & schema.keys():
        return False
    return schema.get("type") in ("integer", "number") or any(map(_unbounded, schema.values()))


def defaults_construct(subject: Subject) -> None:
    """An instance can be made from the defaults, and its params are those."""
    try:
        made = subject.make()
    except TypeError as error:
        raise subject.failed(
            f"{explain(error)}; expected a constructor that takes the fields of Params by name: "
            "leave it alone, or call "
            "super().__init__(**values) in __init__(self, **values)"
        ) from error
    if not isinstance(getattr(made, "params", None), Params):
        raise subject.failed(
            f"{subject.cls.__name__}() has no params of its own kind; expected what "
            "Configured.__init__ sets: leave the "
            "constructor alone, or call super().__init__(**values) in it"
        )


def known_methods(subject: Subject) -> None:
    """Every public method is a hook of the contract (of a defense: a phase): the engine calls no
    other.
    """
    said = unknown_methods(subject.cls)
    if meant := [text for text in said if "did you mean" in text]:
        raise subject.failed(meant[0])
    if said:
        raise Warned(said[0])


def signatures(subject: Subject) -> None:
    """Every hook takes the engine's arguments."""
    if wrong := misfits(subject.cls):
        name, found, expected = wrong[0]
        raise subject.failed(
            f"{name} takes {found}; expected {name}{expected}, as the engine calls it",
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
    """It completes one small run with valid answers."""
    passes(subject)


def result_or_reason(subject: Subject, what: str, work: Callable[[], Any]) -> Any:
    """The result of some work, or None where the component refuses with a reason. Raises
    :class:`Failed` otherwise.
    """
    try:
        return work()
    except (UserError, SkipCell, Diverged) as why:
        if not str(why).strip():
            raise subject.failed(
                f"{what}: it refuses without a reason; expected one in words"
            ) from why
    except Exception as error:
        raise Failed(
            f"{what}: {located(error)}; expected a result, or UserError or SkipCell with the reason"
        ) from error


def runs_end_to_end(subject: Subject, device: str = "cpu") -> None:
    """Data, training, attack and verdict make a record that can be read back."""
    with tempfile.TemporaryDirectory(prefix="fedbench-check-") as folder:
        run_in(Path(folder), replace(job_with(subject), device=device))


def runs_on_cuda(subject: Subject) -> None:
    """It trains and computes on a GPU, where there is one."""
    # in a process of its own: this one could not fork others that use CUDA afterwards
    if not ask(torch.cuda.is_available):
        raise Skipped("this machine has no CUDA device")
    if subject.kind == "attack":
        ask(lambda: trained_with(subject.make(), device="cuda") and "")
    else:
        runs_end_to_end(subject, "cuda")


# --- repeatability and side effects ---------------------------------------------------------------


_KEYED = (
    "draw from keyed generators: ctx.rng or ctx.generator of a defense, audit.rng or "
    "audit.generator of an attack (knowledge.rng "
    "in craft), run.rng(purpose) of an analysis, one made from the seed of a data set's load, "
    "torch's in a model's build"
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
    """It leaves the global generators of Python, numpy and torch and the settings of the process as
    they are.
    """
    changed: dict[str, None] = {}

    def around(name: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        before = global_state(subject.kind)
        answer = call(*args)
        after = global_state(subject.kind)
        changed.update(
            {f"{name} changes {what}": None for what in before if before[what] != after[what]}
        )
        return answer

    # sets torch's generator
    engine_keys = patch.object(LocalTrainer, "key_module", lambda *args, **more: None)
    for _ in range(2):  # what it imports the first time may change the state
        changed.clear()
        with kept(), engine_keys:
            trial(subject, hooked(around("its constructor", subject.make, ()), around))
        if not changed:
            return
    raise subject.failed(f"{', '.join(changed)}; expected the same state afterwards; {_KEYED}")


def no_state_between_runs(subject: Subject) -> None:
    """An instance that has served one run serves the next as one in a fresh process does."""
    made = subject.make()
    trial(subject, made)
    name = difference(reference(subject), digests_of(trial(subject, made)))
    if not name:
        return
    fresh = digests_of(state_of(subject.make()))
    now = digests_of(state_of(made))
    left = (
        ", ".join(f"self.{n}" for n in now if now[n] != fresh.get(n))
        or "a global of its module, or other state outside it"
    )
    place = {"defense": " in `begin`, or keep it in ctx.memory", "attack": " in `score`"}.get(
        subject.kind, ""
    )
    raise subject.failed(
        f"{name} differs where an instance serves a second run; left over from the first: {left}; "
        f"expected a reset{place}"
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
    """Its hooks do not change their arguments."""
    found: dict[str, None] = {}

    def around(name: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        before = _arguments(name, args)
        try:
            return call(*args)
        finally:
            after = _arguments(name, args)
            found.update(
                {f"{name} changes {what}": None for what in before if before[what] != after[what]}
            )

    closely = patch.object(guard, "debugging", lambda: True)
    try:
        with closely:
            trial(subject, hooked(subject.make(), around))
    except guard.PhaseError as error:
        if not found:  # what the engine alone watches: the module's layers and hooks
            found[str(error)] = None
    if found:
        raise subject.failed(
            f"{', '.join(found)}; expected no change: work on a copy, .clone() of a tensor, "
            ".copy() of an array"
        )


def _arguments(hook: str, args: tuple[Any, ...]) -> dict[str, str]:
    """Digests of every part of the arguments that the hook may not change."""
    found = {}
    for i, arg in enumerate(args):
        if i == 0 and hook in _WRITABLE:
            continue
        fields = getattr(type(arg), "__dataclass_fields__", None)
        if fields is None:
            found[f"its argument {i + 1} ({type(arg).__name__})"] = digest_of(arg)
            continue
        live = _LIVE if isinstance(arg, MemberContext) or hasattr(arg, "memory") else ()
        found |= {
            f"{type(arg).__name__}.{n}": digest_of(getattr(arg, n)) for n in fields if n not in live
        }
    return found
