"""The component under test, and the results of its checks."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from fedbench.core import UserError
from fedbench.core.registry.component import RegisteredComponent
from fedbench.core.registry.components import Registry
from fedbench.core.registry.kinds import KINDS, kind_of
from fedbench.core.words import did_you_mean, one_line, printable

Outcome = Literal["passed", "failed", "skipped", "warned"]

# --- results --------------------------------------------------------------------------------------


class Failed(AssertionError):
    """The component violates the plugin contract: what was found, what is expected, how to fix it,
    where.
    """


class Skipped(Exception):
    """The check does not apply to this component or on this machine, for this reason."""


class Warned(Exception):
    """Allowed by the contract, but the author should know."""


@dataclass(frozen=True)
class Result:
    """Result of one check. ``message``: what to do, empty where it passed; ``seconds``: wall time."""

    name: str
    outcome: Outcome
    message: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Report:
    """All results of one component. ``component``: its kind, name and package."""

    component: str
    results: tuple[Result, ...]

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not self.count("failed")

    def count(self, outcome: Outcome) -> int:
        """The number of checks with this outcome."""
        return sum(r.outcome == outcome for r in self.results)

    def markdown(self) -> str:
        """A heading, the counts, and a table of the checks."""
        counts = ", ".join(
            f"{n} {o}" for o in ("passed", "failed", "warned", "skipped") if (n := self.count(o))
        )
        rows = [f"| {r.name} | {r.outcome} | {_escaped(r.message)} |" for r in self.results]
        head = [
            f"## {_escaped(self.component)}",
            "",
            f"{counts}.",
            "",
            "| check | outcome | what to do |",
            "|---|---|---|",
        ]
        return "\n".join([*head, *rows]) + "\n"


def _escaped(text: str) -> str:
    """One line without active Markdown or HTML."""
    plain = printable(one_line(text, 2000))
    for mark in "\\`*_[]<>|":
        plain = plain.replace(mark, f"\\{mark}")
    return plain


# --- the component --------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class Subject:
    """A component and the parameter values for the checks. ``found``: its announcement, None for a
    bare class (``given``).

    ``notes``: values that several checks share, such as the answers of the first passes.
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
        """The class. Raises ``UserError`` if it cannot be imported."""
        return self.found.load() if self.found else self.given

    @property
    def kinds(self) -> tuple[str, ...]:
        """Its kind, and for an attack whether it is active."""
        if self.kind != "attack":
            return (self.kind,)
        return ("attack", "active attack" if hasattr(self.cls, "craft") else "passive attack")

    def require_params(self) -> None:
        """Raise ``UserError`` for invalid parameter values."""
        try:
            self.cls.Params(**self.params)
        except ValidationError as error:
            wrong = [e for e in error.errors() if e["loc"] and e["loc"][0] in self.params]
            known = ", ".join(self.cls.Params.model_fields) or "none"
            if wrong:
                raise UserError(
                    *(
                        f"{self}: parameter {'.'.join(map(str, e['loc']))}: {e['msg']}; it has "
                        f"{known}"
                        for e in wrong
                    )
                ) from None

    def make(self) -> Any:
        """A fresh instance. Raises :class:`Skipped` if a parameter needs a value."""
        if missing := [
            n
            for n, f in self.cls.Params.model_fields.items()
            if f.is_required() and n not in self.params
        ]:
            shown = ", ".join(f'"{n}": ...' for n in missing)
            way = f'check it as ("{self.name}", {{{shown}}}) or with --param {missing[0]}=...'
            raise Skipped(f"its parameters need values: {way}")
        return self.cls(**self.params)

    def failed(self, text: str, code: Any = None) -> Failed:
        """The exception for a failed check. The source line of the class, or of ``code``, is
        appended to the text.
        """
        try:
            code = inspect.unwrap(code or self.cls)
            where = (
                f"{Path(inspect.getsourcefile(code) or '?').name}:{inspect.getsourcelines(code)[1]}"
            )
        except (OSError, TypeError):
            where = f"{self.cls.__module__}:{self.cls.__qualname__}"
        return Failed(f"{text} [{where}]")


def subject_of(
    what: Any,
    kind: str | None = None,
    params: dict[str, Any] | None = None,
    registry: Registry | None = None,
) -> Subject:
    """``what``: a name, (name, params), a class or an instance. Raises ``UserError`` for anything
    else and unknown names.
    """
    if isinstance(what, tuple):
        what, params = what
    if isinstance(what, str):
        found = _found(what, kind, registry or Registry.discover())
        return Subject(name=found.name, kind=found.kind, params=params or {}, found=found)
    cls = what if isinstance(what, type) else type(what)
    kind = kind_of(cls)
    if kind not in KINDS:
        raise UserError(
            f"{what!r:.80} cannot be checked: expected the name of a component, or a class of "
            "fedbench.core's bases"
        )
    values = params if params is not None else {} if what is cls else what.params.model_dump()
    return Subject(name=cls.__name__, kind=kind, params=values, given=cls)


def _found(name: str, kind: str | None, registry: Registry) -> RegisteredComponent:
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
