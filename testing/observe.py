"""Observe a component at work: calls of its hooks, digests of values, global state."""

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


def overridden(component: Any) -> list[str]:
    """Return the hooks that a component implements itself."""
    cls = type(component)
    return [n for n, base in hooks_of(cls).items() if getattr(cls, n) is not getattr(base, n)]


def hooked(component: Any, around: Around) -> Any:
    """Replace every hook of ``component`` by ``around(name, hook, arguments)``."""

    def called(name: str, call: Call, *args: Any, **named: Any) -> Any:
        return around(name, partial(call, **named) if named else call, args)

    for name in overridden(component):
        object.__setattr__(component, name, partial(called, name, getattr(component, name)))
    return component


def recording(changes: dict[str, None], look: Callable[[str, tuple[Any, ...]], dict]) -> Around:
    """Return a wrapper of hooks that adds ``HOOK changes NAME`` to ``changes`` where a digest that
    ``look(hook, arguments)`` returns differs after the call.
    """

    def around(name: str, call: Call, args: tuple[Any, ...]) -> Any:
        before = look(name, args)
        try:
            return call(*args)
        finally:
            after = look(name, args)
            changed = (place for place in before if before[place] != after[place])
            changes.update({f"{name} changes {place}": None for place in changed})

    return around


def state_of(component: Any) -> dict[str, Any]:
    """Return the attributes of an instance, without replaced hooks."""
    return {n: value for n, value in vars(component).items() if not isinstance(value, partial)}


def places_of(component: Any) -> Iterator[tuple[str, Any]]:
    """Yield (place, value) of everything that an instance can keep: on itself, on the classes of
    its package, in their modules' globals.
    """
    keepers = {"self": state_of(component)}
    package = type(component).__module__.partition(".")[0]
    for cls in type(component).__mro__:
        if cls.__module__.partition(".")[0] == package:
            keepers[cls.__qualname__] = dict(vars(cls))
            keepers[cls.__module__] = vars(sys.modules[cls.__module__])
    for keeper, values in keepers.items():
        for name, value in values.items():
            if not name.startswith("__"):
                yield f"{keeper}.{name}", value


# --- values ---------------------------------------------------------------------------------------


def walk(value: Any, above: tuple[int, ...] = ()) -> Iterator[Any]:
    """Yield a value and everything it contains, depth first."""
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
    if hasattr(value, "__dict__") and not callable(value):
        return [vars(value)]
    return []


def holds(value: Any, wanted: Sequence[Any]) -> bool:
    """Return whether a value is one of the ``wanted`` objects, or contains one."""
    waiting = [value]
    visited = dict[int, Any]()
    while waiting:
        part = waiting.pop()
        if any(part is w for w in wanted):
            return True
        if id(part) not in visited:
            visited[id(part)] = part  # kept, so that no other object gets its id
            waiting += _parts(part)
    return False


def digest_of(value: Any) -> str:
    """Return the SHA-256 of a value's content: tensors, arrays, numbers, text, modules, generators,
    and containers of them.
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
    """Return the digest of each value."""
    return {name: digest_of(value) for name, value in answers.items()}


def difference(before: dict[str, str], after: dict[str, str]) -> str:
    """Return the first name with another digest, or nothing."""
    return next((name for name in {**before, **after} if before.get(name) != after.get(name)), "")


# --- global state ---------------------------------------------------------------------------------


def global_state(kind: str) -> dict[str, str]:
    """Return digests of the global generators and settings of the process.

    A model may draw from torch's generator in ``build``.
    """
    state = {
        "Python's random": random.getstate(),
        "numpy.random": np.random.get_state(),
        "numpy's error settings": np.geterr(),
        "the working directory": os.getcwd(),
        "the environment": dict(os.environ),
    }
    state |= {f"torch's {name}": get() for name, get in SETTINGS.items()}
    if kind != "model":
        state["torch's default generator"] = torch.random.default_generator.get_state()
    return digests_of(state)


def seed_globals(seed: int) -> None:
    """Seed the global generators."""
    random.seed(seed)
    np.random.seed(seed)
    torch.random.default_generator.manual_seed(seed)
