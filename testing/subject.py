"""The component that is checked: found by name, or a class or an instance of the contract's base classes."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedbench.core.contract.errors import UserError
from fedbench.core.contract.params import Params
from fedbench.core.registry.component import RegisteredComponent
from fedbench.core.registry.components import Registry
from fedbench.core.registry.kinds import KINDS, PLURAL, kind_of
from fedbench.core.words.nearest import did_you_mean
from fedbench.testing.results import Failed, Skipped


@dataclass(eq=False, kw_only=True)
class Subject:
    """A component with the values that its parameters take in the checks. ``found``: its announcement, None of a bare class.

    ``cls`` imports it. ``notes``: what the checks of one component share, so that no federation is trained twice.
    """

    name: str
    kind: str
    params: dict[str, Any]
    found: RegisteredComponent | None = None
    given: type | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return str(self.found) if self.found else f"{self.kind} '{self.name}'"

    @cached_property
    def cls(self) -> Any:
        """The class; raises ``UserError`` for one that cannot be imported."""
        return self.found.load() if self.found else self.given

    @property
    def required(self) -> list[str]:
        """Parameters without a default that were given no value."""
        return [n for n, f in self.cls.Params.model_fields.items() if f.is_required() and n not in self.params]

    def require_params(self) -> None:
        """Raise ``UserError`` for values that its parameters do not take."""
        if not self.params:
            return
        try:
            self.cls.Params(**self.params)
        except ValidationError as error:
            wrong = [e for e in error.errors() if e["loc"] and e["loc"][0] in self.params]
            known = ", ".join(self.cls.Params.model_fields) or "none"
            if wrong:
                raise UserError(*(f"{self}: parameter {_dotted(e['loc'])}: {e['msg']}; it has {known}" for e in wrong)) from None

    def make(self) -> Any:
        """A fresh instance; raises :class:`Skipped` where a parameter needs a value."""
        if missing := self.required:
            shown = ", ".join(f'"{n}": ...' for n in missing)
            way = f'check it as ("{self.name}", {{{shown}}}) or with --param {missing[0]}=...'
            raise Skipped(f"its parameters need values: {way}")
        why = "it cannot be made, which `defaults_construct` reports"
        try:
            made = self.cls(**self.params)
        except Exception as error:
            raise Skipped(f"{why} ({type(error).__name__})") from error
        if not constructed(made):
            raise Skipped(why)
        return made

    @property
    def kinds(self) -> tuple[str, ...]:
        """Its kind, and for an attack whether it is active."""
        if self.kind != "attack":
            return (self.kind,)
        from fedbench.core.contract.attack import ActiveAttack

        return ("attack", "active attack") if issubclass(self.cls, ActiveAttack) else ("attack", "passive attack")

    def failed(self, text: str, thing: Any = None) -> Failed:
        """What a check raises: what was found, what is expected, the remedy; the place of the class, or of ``thing``, follows."""
        return Failed(f"{text} [{self.where(thing)}]")

    def where(self, thing: Any = None) -> str:
        """File and line of its class, or of a function of it, for a message."""
        try:
            code = inspect.unwrap(thing if thing is not None else self.cls)
            return f"{Path(inspect.getsourcefile(code) or '?').name}:{inspect.getsourcelines(code)[1]}"
        except (OSError, TypeError):
            return f"{self.cls.__module__}:{self.cls.__qualname__}"


def constructed(made: Any) -> bool:
    """Whether the contract's own constructor has made it: one that forgets ``super().__init__`` leaves no params."""
    return isinstance(getattr(made, "params", None), Params)


def _dotted(place: tuple[int | str, ...]) -> str:
    return ".".join(map(str, place))


def subject_of(
    what: Any, kind: str | None = None, params: dict[str, Any] | None = None, registry: Registry | None = None
) -> Subject:
    """``what``: a name, (name, params), a class or an instance. Raises ``UserError`` for what cannot be checked."""
    if isinstance(what, tuple):
        what, params = what
    if isinstance(what, str):
        found = _found(what, kind, registry or Registry.discover())
        return Subject(name=found.name, kind=found.kind, params=params or {}, found=found)
    cls = what if isinstance(what, type) else type(what)
    its = kind_of(cls)
    if its not in KINDS:
        raise UserError(f"{what!r:.80} cannot be checked: expected the name of a component, or a class of fedbench.core's bases")
    values = params if params is not None else {} if what is cls else what.params.model_dump()
    return Subject(name=cls.__name__, kind=its, params=values, given=cls)


def _found(name: str, kind: str | None, registry: Registry) -> RegisteredComponent:
    if kind is not None:
        return registry.get(kind, name)
    clashes = {c.kind for c in registry.clashes if c.name == name}
    kinds = [k for k in KINDS if k in clashes or any(c.name == name for c in registry.components(k))]
    if len(kinds) > 1:
        raise UserError(f"'{name}' is {' and '.join(f'a {k}' for k in kinds)}: say which with --kind (kind= in Python)")
    if not kinds:
        names = [c.name for k in KINDS for c in registry.components(k)]
        kinds_ = ", ".join(f"fedbench list {PLURAL[k]}" for k in ("defense", "attack"))
        broken = "".join(f"; a broken plugin may have provided it: {p}: {p.reason}" for p in registry.broken)
        raise UserError(f"unknown component '{name}'{did_you_mean(name, names)}; {kinds_}, ... say what there is{broken}")
    return registry.get(kinds[0], name)
