"""See every call of a component's hooks, with what it is handed and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from fedbench.core.contract.phases import PHASES
from fedbench.core.registry.kinds import BASES

HOOKS: dict[str, tuple[str, ...]] = {
    "defense": ("check", "remarks", *PHASES),
    "attack": ("fit", "score", "score_rounds", "craft"),
    "analysis": ("applies", "analyse"),
    "dataset": ("load",),
    "model": ("build",),
    "signal": ("measure",),
    "report": ("write", "summary"),
}
Call = Callable[..., Any]
Around = Callable[[str, Call, tuple[Any, ...]], Any]


def bases_of(kind: str) -> tuple[type, ...]:
    """The contract's own classes of a kind."""
    module, name = BASES[kind]
    base = getattr(import_module(module), name)
    return (base, import_module(module).ActiveAttack) if kind == "attack" else (base,)


def overridden(made: Any, kind: str) -> list[str]:
    """The hooks that a component implements itself."""
    return [
        name for name in HOOKS[kind]
        if hasattr(made, name) and all(getattr(type(made), name) is not getattr(b, name, None) for b in bases_of(kind))
    ]  # fmt: skip


def hooked(made: Any, kind: str, around: Around) -> Any:
    """``made``, each of whose hooks is now called as ``around(name, hook, arguments)``."""
    for name in overridden(made, kind):
        call = getattr(made, name)
        object.__setattr__(made, name, partial(_called, around, name, call))
    return made


def _called(around: Around, name: str, call: Call, *args: Any, **named: Any) -> Any:
    return around(name, partial(call, **named) if named else call, args)


def state_of(made: Any, kind: str) -> dict[str, Any]:
    """What an instance holds of its own, the wrapped hooks apart."""
    return {name: value for name, value in vars(made).items() if name not in HOOKS[kind]}
