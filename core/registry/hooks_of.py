"""Hooks of a component's class, and public methods that are none: the engine never calls them.

A hook is a method of the contract's class that the component is built on: for a defense a phase of
``contract/phases.py`` or ``check``, for an active attack also ``craft``.
"""

from __future__ import annotations

import functools
import inspect
from types import FunctionType
from typing import Any

from fedbench.core.contract.components import Configured
from fedbench.core.words import nearest, one_line

_CONTRACT = "fedbench.core.contract"
_METHODS = (
    FunctionType,
    staticmethod,
    classmethod,
    functools.partialmethod,
    functools._lru_cache_wrapper,
)
_NEAR = 0.75  # of the letters: `protekt` is `protect`, `predict` is a word of its own
_LONGEST, _MOST = 60, 20  # letters of a name, messages of a class


def hooks_of(cls: type) -> dict[str, type]:
    """Return the hooks of a class by name: the first class of the contract that has each."""
    hooks: dict[str, type] = {}
    for base in filter(_is_contract, cls.__mro__):
        for name in _methods(base):
            hooks.setdefault(name, base)
    return hooks


def misfits(cls: type) -> list[tuple[str, str, str]]:
    """Return (hook, the parameters of the class's own method, those of the contract) of each hook
    that the engine's arguments do not fit.
    """
    wrong = []
    for name, base in hooks_of(cls).items():
        if vars(base)[name] is inspect.getattr_static(cls, name):
            continue
        if not callable(getattr(cls, name, None)):
            continue
        expected = _signature(base, name)
        signature = _signature(cls, name)
        needed = []
        optional: dict[str, None] = {}
        for p in expected.parameters.values():
            if p.default is not p.empty:
                optional[p.name] = None
            elif p.kind is p.POSITIONAL_OR_KEYWORD:
                needed.append(p)
        try:
            signature.bind(*needed, **optional)
        except TypeError:
            wrong.append((name, _parameters(signature), _parameters(expected)))
    return wrong


def _signature(cls: type, name: str) -> inspect.Signature:
    """Return the signature of a method without ``self`` and ``cls``."""
    signature = inspect.signature(getattr(cls, name))
    parameters = list(signature.parameters.values())
    if inspect.isfunction(inspect.getattr_static(cls, name)):
        del parameters[0]
    return signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)


def _parameters(signature: inspect.Signature) -> str:
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare))


def unknown_methods(cls: type) -> list[str]:
    """Return a message on each public method, of the class's own or of its package's bases, that is
    no hook: ``its method 'protekt' is no phase, ...``. Empty for a class that is not built on the
    contract.

    A method that overrides one of another library's class (``forward`` of a module) is that
    library's to call.
    """
    bases = [base for base in cls.__mro__ if _is_contract(base) and base is not Configured]
    if not bases:
        return []
    authored = [base for base in cls.__mro__ if _is_authored(base, cls)]
    inherited = set().union(*(dir(base) for base in cls.__mro__ if base not in authored))
    names: dict[str, None] = {}
    for base in authored:
        names |= dict.fromkeys(name for name in _methods(base) if name not in inherited)
    messages = [_message(name, bases[0]) for name in list(names)[:_MOST]]
    if len(names) > _MOST:
        messages.append(f"{len(names) - _MOST} more of its methods are no hooks either")
    return messages


def _message(name: str, contract: type) -> str:
    hooks = dict.fromkeys(hooks_of(contract), "")
    subclasses: list[type] = type.__subclasses__(contract)
    for subclass in filter(_is_contract, subclasses):
        for hook in hooks_of(subclass):  # `craft` of an active attack
            hooks.setdefault(hook, f" of {subclass.__name__}, which it is not built on")
    kind = "phase" if contract.__name__ == "Defense" else f"hook of {contract.__name__}"
    text = f"its method '{one_line(name, _LONGEST)}' is no {kind}, so the engine never calls it"
    near = nearest(name, hooks, _NEAR)
    if near is None:
        return f"{text}; a helper's name begins with an underscore"
    return f"{text} - did you mean '{near}'{hooks[near]}? A helper's name begins with an underscore"


def _methods(cls: type) -> list[str]:
    """Return the names of the public methods in the body of a class."""
    members: dict[str, Any] = dict(vars(cls))
    return [n for n, m in members.items() if isinstance(m, _METHODS) and not n.startswith("_")]


def _is_authored(base: type, cls: type) -> bool:
    """Return whether a base of a component's class is its author's."""
    if _is_contract(base):
        return False
    return issubclass(base, Configured) or _package(base) == _package(cls)


def _is_contract(cls: type) -> bool:
    return str(cls.__module__).startswith(f"{_CONTRACT}.") and issubclass(cls, Configured)


def _package(cls: type) -> str:
    return str(cls.__module__).partition(".")[0]
