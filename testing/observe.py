"""Observe a component at work: calls of its hooks, digests of values, the process's global state."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch

from fedbench.core.federation.watch import SETTINGS
from fedbench.core.registry.hooks_of import hooks_of

Call = Callable[..., Any]
Around = Callable[[str, Call, tuple[Any, ...]], Any]
_DEPTH = 12  # containers within containers

# --- hooks ----------------------------------------------------------------------------------------


def overridden(made: Any) -> list[str]:
    """The hooks that a component implements itself."""
    hooks = hooks_of(type(made)).items()
    return [name for name, base in hooks if getattr(type(made), name) is not getattr(base, name)]


def hooked(made: Any, around: Around) -> Any:
    """``made`` with every hook replaced by ``around(name, hook, arguments)``."""

    def called(name: str, call: Call, *args: Any, **named: Any) -> Any:
        return around(name, partial(call, **named) if named else call, args)

    for name in overridden(made):
        object.__setattr__(made, name, partial(called, name, getattr(made, name)))
    return made


def state_of(made: Any) -> dict[str, Any]:
    """The attributes of an instance, without replaced hooks."""
    return {name: value for name, value in vars(made).items() if not isinstance(value, partial)}


def places_of(made: Any) -> Iterator[tuple[str, Any]]:
    """(where, value) of all that an instance can keep: on itself, on the classes of its package, in
    their modules' globals.
    """
    yield from ((f"self.{name}", value) for name, value in state_of(made).items())
    package = type(made).__module__.partition(".")[0]
    for cls in type(made).__mro__:
        if cls.__module__.partition(".")[0] == package:
            keepers = {cls.__qualname__: cls, cls.__module__: sys.modules[cls.__module__]}
            for keeper, kept in keepers.items():
                for name, value in vars(kept).items():
                    if not name.startswith("__"):
                        yield f"{keeper}.{name}", value


# --- values ---------------------------------------------------------------------------------------


def walk(value: Any, above: tuple[int, ...] = ()) -> Iterator[Any]:
    """A value and everything it contains, depth first."""
    yield value
    if len(above) < _DEPTH and id(value) not in above:
        for part in _parts(value):
            yield from walk(part, (*above, id(value)))


def _parts(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor | np.ndarray | str | bytes | type | ModuleType):
        return []
    if isinstance(value, Mapping):
        return [part for pair in value.items() for part in pair]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, np.random.Generator):
        return [value.bit_generator.state]
    if dataclasses.is_dataclass(value):
        return [getattr(value, f.name) for f in dataclasses.fields(value)]
    return [vars(value)] if hasattr(value, "__dict__") and not callable(value) else []


def holds(value: Any, wanted: Sequence[Any]) -> bool:
    """Whether a value is one of the ``wanted`` objects, or contains one."""
    waiting, seen = [value], dict[int, Any]()
    while waiting:
        part = waiting.pop()
        if any(part is one for one in wanted):
            return True
        if id(part) not in seen:
            seen[id(part)] = part  # kept, so that no other object gets its id
            waiting += _parts(part)
    return False


def digest_of(value: Any) -> str:
    """SHA-256 of a value's content: tensors, arrays, numbers, text, modules, generators, and
    containers of them.
    """
    h = hashlib.sha256()
    for part in walk(value):
        h.update(type(part).__name__.encode())
        if isinstance(part, torch.Tensor):
            part = part.detach().cpu().numpy()
        if isinstance(part, np.ndarray):
            h.update(f"{part.dtype}{part.shape}".encode() + part.tobytes())
        elif isinstance(part, str | bytes | int | float | complex | type | None):
            h.update(repr(part).encode("utf-8", "backslashreplace"))
    return h.hexdigest()


def digests_of(answers: dict[str, Any]) -> dict[str, str]:
    """Name -> digest."""
    return {name: digest_of(value) for name, value in answers.items()}


def difference(before: dict[str, str], after: dict[str, str]) -> str:
    """The first name with another digest, or nothing."""
    return next((name for name in {**before, **after} if before.get(name) != after.get(name)), "")


# --- global state ---------------------------------------------------------------------------------


def global_state(kind: str) -> dict[str, str]:
    """Digests of the global generators and settings of the process. A model may draw from torch's
    generator in ``build``.
    """
    state = {
        "Python's random": random.getstate(),
        "numpy.random": np.random.get_state(),
        "numpy's error settings": np.geterr(),
        "the working directory": os.getcwd(),
        "the environment": dict(os.environ),
    } | {f"torch's {name}": get() for name, get in SETTINGS.items()}
    if kind != "model":
        state["torch's default generator"] = torch.random.default_generator.get_state()
    return {name: digest_of(value) for name, value in state.items()}


def seed_globals(seed: int) -> None:
    """Seed the global generators."""
    random.seed(seed)
    np.random.seed(seed)
    torch.random.default_generator.manual_seed(seed)
