"""Public methods of a component's class that no hook of its kind is called: the engine never calls
them.

A hook is a method of the contract's class that the component is built on: for a defense a phase of
``contract/phases.py`` or ``check``, for an active attack also ``craft``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from types import FunctionType

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
    """What the engine calls of a class built on the contract, by name: the contract's class that
    has it first.
    """
    found: dict[str, type] = {}
    for base in (b for b in cls.__mro__ if _of_contract(b)):
        found |= {
            name: base
            for name, value in vars(base).items()
            if isinstance(value, _METHODS) and name not in found
        }
    return {name: base for name, base in found.items() if not name.startswith("_")}


def misfits(cls: type) -> list[tuple[str, str, str]]:
    """(hook, the parameters that the class's own method takes, those of the contract) of each hook
    that the engine's arguments do not fit.
    """
    found = []
    for name, base in hooks_of(cls).items():
        expected, bare = (
            _parameters(base, name),
            vars(base)[name] is inspect.getattr_static(cls, name),
        )
        if bare or not callable(getattr(cls, name, None)):
            continue
        needed = [
            p
            for p in expected.parameters.values()
            if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
        ]
        extra = {p.name: None for p in expected.parameters.values() if p.default is not p.empty}
        taken = _parameters(cls, name)
        try:
            taken.bind(*needed, **extra)
        except TypeError:
            found.append((name, _shown(taken), _shown(expected)))
    return found


def _parameters(cls: type, name: str) -> inspect.Signature:
    """Of a method, ``self`` and ``cls`` left out."""
    signature = inspect.signature(getattr(cls, name))
    plain = inspect.isfunction(inspect.getattr_static(cls, name))
    return signature.replace(
        parameters=list(signature.parameters.values())[plain:],
        return_annotation=inspect.Signature.empty,
    )


def _shown(signature: inspect.Signature) -> str:
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare))


def unknown_methods(cls: type) -> list[str]:
    """A message on each public method, of the class's own or of its package's bases, that is no
    hook: ``its method 'protekt' is no phase, ...``. Empty for a class that is not built on the
    contract. A method that overrides one of another library's class (``forward`` of a module) is
    that library's to call.
    """
    contract = next(
        (base for base in cls.__mro__ if _of_contract(base) and base is not Configured), None
    )
    if contract is None:
        return []
    own = [
        c
        for c in cls.__mro__
        if not _of_contract(c) and (issubclass(c, Configured) or _package(c) == _package(cls))
    ]
    known = {name for c in cls.__mro__ if c not in own for name in dir(c)}
    names = (name for c in own for name, value in vars(c).items() if isinstance(value, _METHODS))
    unknown = [
        name for name in dict.fromkeys(names) if not name.startswith("_") and name not in known
    ]
    messages = [_message(name, contract) for name in unknown[:_MOST]]
    more = len(unknown) - len(messages)
    return [*messages, *([f"{more} more of its methods are no hooks either"] if more else [])]


def _message(name: str, contract: type) -> str:
    here, narrower = hooks_of(contract), dict(_hooks_of_subclasses(contract))
    what = "phase" if contract.__name__ == "Defense" else f"hook of {contract.__name__}"
    text = f"its method '{one_line(name, _LONGEST)}' is no {what}, so the engine never calls it"
    near = nearest(name, [*here, *narrower], _NEAR)
    if near is None:
        return f"{text}; a helper's name begins with an underscore"
    of = f" of {narrower[near].__name__}, which it is not built on" if near in narrower else ""
    return f"{text} - did you mean '{near}'{of}? A helper's name begins with an underscore"


def _hooks_of_subclasses(contract: type) -> Iterator[tuple[str, type]]:
    """What only a narrower class of the contract has: ``craft`` of an active attack."""
    subclasses: list[type] = type.__subclasses__(contract)
    narrower = filter(_of_contract, subclasses)
    yield from (
        (name, sub) for sub in narrower for name in hooks_of(sub) if name not in hooks_of(contract)
    )


def _of_contract(cls: type) -> bool:
    return str(cls.__module__).startswith(f"{_CONTRACT}.") and issubclass(cls, Configured)


def _package(cls: type) -> str:
    return str(cls.__module__).partition(".")[0]
