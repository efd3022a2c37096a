"""The component under test, and the results of its checks."""

from __future__ import annotations

import inspect
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from fedbench.core import SkipCell, UserError
from fedbench.core.registry.component import RegisteredComponent
from fedbench.core.registry.components import Registry
from fedbench.core.registry.kinds import KINDS, kind_of
from fedbench.core.words import did_you_mean, one_line, printable

Outcome = Literal["passed", "failed", "skipped", "warned"]

# --- results --------------------------------------------------------------------------------------


class Failed(AssertionError):
    """Violation of the plugin contract: what was found, what is expected, how to fix it, where."""


class Skipped(SkipCell):
    """Reason why the check does not apply to this component or on this machine."""


class Warned(Exception):
    """Remark on something that the contract allows, but the author should know."""


@dataclass(frozen=True)
class Result:
    """Result of one check."""

    name: str
    outcome: Outcome
    message: str = ""
    """what to do, empty where it passed"""
    seconds: float = 0.0
    """wall time"""


@dataclass(frozen=True)
class Report:
    """All results of one component."""

    component: str
    """kind, name and package"""
    results: tuple[Result, ...]

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not self.count("failed")

    def count(self, outcome: Outcome) -> int:
        """Return the number of checks with this outcome."""
        return sum(r.outcome == outcome for r in self.results)

    def markdown(self) -> str:
        """Return a heading, the counts, and a table of the checks."""
        outcomes: tuple[Outcome, ...] = ("passed", "failed", "warned", "skipped")
        counts = ", ".join(f"{n} {o}" for o in outcomes if (n := self.count(o)))
        head = f"## {_escaped(self.component)}\n\n{counts}.\n\n| check | outcome | what to do |\n"
        rows = [f"| {r.name} | {r.outcome} | {_escaped(r.message)} |\n" for r in self.results]
        return "".join([head, "|---|---|---|\n", *rows])


def _escaped(text: str) -> str:
    """Return one line without active Markdown or HTML."""
    plain = printable(one_line(text, 2000))
    for mark in "\\`*_[]<>|":
        plain = plain.replace(mark, f"\\{mark}")
    return plain


# --- the component --------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class Subject:
    """A component and the parameter values for the checks."""

    name: str
    kind: str
    params: dict[str, Any]
    announced: RegisteredComponent | None = None
    """its announcement, None for a bare class"""
    bare: type | None = None
    """the class, where it is not announced"""
    notes: dict[str, Any] = field(default_factory=dict)
    """values that several checks share, such as the answers of the first passes"""

    def __str__(self) -> str:
        return str(self.announced or f"{self.kind} '{self.name}'")

    @cached_property
    def cls(self) -> Any:
        """The class. Raises ``UserError`` if it cannot be imported."""
        return self.announced.load() if self.announced else self.bare

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind, and for an attack whether it is active."""
        if self.kind != "attack":
            return (self.kind,)
        return ("attack", "active attack" if hasattr(self.cls, "craft") else "passive attack")

    def require_params(self) -> None:
        """Raise ``UserError`` for invalid parameter values."""
        fields = ", ".join(self.cls.Params.model_fields) or "none"
        try:
            self.cls.Params(**self.params)
        except ValidationError as error:
            mistakes = [
                f"{self}: parameter {'.'.join(map(str, e['loc']))}: {e['msg']}; it has {fields}"
                for e in error.errors()
                if e["loc"] and e["loc"][0] in self.params
            ]
            if mistakes:
                raise UserError(*mistakes) from None

    def make(self) -> Any:
        """Return a fresh instance. Raises :class:`Skipped` if a parameter needs a value."""
        fields = self.cls.Params.model_fields.items()
        if missing := [n for n, f in fields if f.is_required() and n not in self.params]:
            values = ", ".join(f'"{n}": ...' for n in missing)
            remedy = f'check it as ("{self.name}", {{{values}}}) or with --param {missing[0]}=...'
            raise Skipped(f"its parameters need values: {remedy}")
        return self.cls(**self.params)

    def failed(self, text: str, code: Any = None) -> Failed:
        """Return the exception for a failed check; the source line of the class, or of ``code``, is
        appended to the text.
        """
        place = f"{self.cls.__module__}:{self.cls.__qualname__}"
        with suppress(OSError, TypeError):
            code = inspect.unwrap(code or self.cls)
            file = inspect.getsourcefile(code) or "?"
            line = inspect.getsourcelines(code)[1]
            place = f"{Path(file).name}:{line}"
        return Failed(f"{text} [{place}]")


def subject_of(
    component: Any,
    kind: str | None = None,
    params: dict[str, Any] | None = None,
    registry: Registry | None = None,
) -> Subject:
    """Return the subject for ``component``: a name, (name, params), a class or an instance.

    Raises ``UserError`` for unknown names and anything else.
    """
    if isinstance(component, tuple):
        component, params = component
    if isinstance(component, str):
        announced = _announced(component, kind, registry or Registry.discover())
        return Subject(
            name=announced.name, kind=announced.kind, params=params or {}, announced=announced
        )
    bare = isinstance(component, type)
    cls = component if bare else type(component)
    kind = kind_of(cls)
    if kind not in KINDS:
        raise UserError(
            f"{component!r:.80} cannot be checked: expected the name of a component, or a class of "
            "fedbench.core's bases"
        )
    if params is None:
        params = {} if bare else component.params.model_dump()
    return Subject(name=cls.__name__, kind=kind, params=params, bare=cls)


def _announced(name: str, kind: str | None, registry: Registry) -> RegisteredComponent:
    kinds = [kind] if kind else [k for k in KINDS if registry.claimants(k, name)]
    if len(kinds) > 1:
        raise UserError(
            f"'{name}' is {' and '.join(f'a {k}' for k in kinds)}: choose one with --kind (kind= "
            "in Python)"
        )
    if not kinds:
        names = [c.name for k in KINDS for c in registry.components(k)]
        broken = "".join(
            f"; a broken plugin may have provided it: {p}: {p.reason}" for p in registry.broken
        )
        raise UserError(
            f"unknown component '{name}'{did_you_mean(name, names)}; see `fedbench list`{broken}"
        )
    return registry.get(kinds[0], name)
