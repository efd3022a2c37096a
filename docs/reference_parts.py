"""The blocks of docs/reference/, made of the contract, the table of phases and the suite's models."""

from __future__ import annotations

import dataclasses
import inspect
import re
from functools import cache, cached_property
from types import SimpleNamespace
from typing import Any

import click
import torch

import fedbench.core
from fedbench.core.cli.main import LazyGroup, cli, commands
from fedbench.core.contract.contexts import Randomness
from fedbench.core.contract.defense import Defense
from fedbench.core.contract.hooks import Hooks
from fedbench.core.contract.phases import PHASES
from fedbench.core.contract.samples import Batch, MemberData
from fedbench.core.federation.answers import CHECKS
from fedbench.core.registry.kinds import BASES as _BASES
from fedbench.core.spec import base, federation, schema, setting, suite

__all__ = ["PHASES"]

HOOKS = {name: f for name, f in vars(Hooks).items() if not name.startswith("_")}
BASES = {name: getattr(fedbench.core, name) for name in [*dict.fromkeys(n for _, n in _BASES.values()), "ActiveAttack"]}
CONTEXTS = {
    name: getattr(fedbench.core, name, None) or Randomness
    for name in (
        "Randomness", "Federation", "MemberData", "Batch", "Selection", "MemberContext", "CoalitionContext", "Layer",
        "ServerContext", "AnswerContext", "ReportContext", "Observations", "Audit", "Colluder", "ShadowModels", "Knowledge",
        "Probe", "Data", "FinishedRun", "Judgement", "Judged", "Findings", "Number", "Component", "Summary", "Section", "Row",
        "Entry", "Sweep", "Duel", "Family", "Standing", "Strengths", "Courses",
    )
}  # fmt: skip
_MODULES = (suite, federation, setting, base)
SPECS = {name: cls for module in _MODULES for name, cls in vars(module).items()
         if isinstance(cls, type) and issubclass(cls, base.SpecModel) and cls is not base.SpecModel}  # fmt: skip
TITLES = {  # the sections of suite.md
    "SuiteSpec": "suite", "Setting": "settings", "FederationSpec": "federation", "Optimizer": "optimizer", "Schedule": "schedule",
    "Partition": "partition", "Group": "groups", "AuditSpec": "audit", "ShadowSpec": "shadow", "Adversary": "adversary",
    "Coalition": "coalitions", "Use": "component", "MethodUse": "row", "Limits": "limits", "PublishedNumbers": "published",
}  # fmt: skip


class Mistake(Exception):
    """Something that a page asks for and the code has not, or has without saying what it is."""


def hook_block(name: str) -> str:
    """Signature, one line, and the base class of what it announces."""
    hook = _named(HOOKS, name, "hook")
    kind = next(k for k, (_, cls) in _BASES.items() if name == f"fedbench_{'analyses' if k == 'analysis' else k + 's'}")
    base_class = _BASES[kind][1]
    what = f"{_prose(hook)} Each is a class derived from `fedbench.core.{base_class}`."
    return f"{_code(_signature(hook, name, skip_self=True))}\n\n{what}"


def phase_block(name: str) -> str:
    """Signature, the row of the table, the docstring, and what the engine accepts."""
    row = _named(PHASES, name, "phase")
    method = getattr(Defense, name)
    table = _table(("party", "stage", "several defenses", "returns"), [(row.party, row.stage, row.combines, row.returns)])
    return "\n\n".join((_code(_signature(method, name)), table, _prose(method), f"The engine accepts {_accepted(name)}."))


def method_block(name: str) -> str:
    """Signature and docstring of a method of a base class."""
    cls, _, method = name.partition(".")
    if method not in methods_of(cls):
        raise Mistake(f"{cls} has no public method '{method}'; it has {', '.join(methods_of(cls))}")
    found = inspect.getattr_static(BASES[cls], method)
    function = found.__func__ if isinstance(found, classmethod) else found
    return f"{_code(_signature(function, method))}\n\n{_prose(function)}"


def methods_of(name: str) -> list[str]:
    """Public methods that a base class declares itself, phases apart: those have pages of their own."""
    cls = _named(BASES, name, "base class")
    own = [n for n, f in vars(cls).items() if not n.startswith("_") and (inspect.isfunction(f) or isinstance(f, classmethod))]
    return [n for n in own if not (cls is Defense and n in PHASES)]


def class_block(name: str) -> str:
    """Docstring, fields, and what can be called or read besides."""
    cls = _named(CONTEXTS, name, "class")
    parts = [_prose(cls)]
    if dataclasses.is_dataclass(cls):
        rows = [(f"`{f.name}`", f"`{_type(f.type)}`", _default(f), _meaning(cls, f)) for f in dataclasses.fields(cls)]
        parts.append(_table(("field", "type", "default", "what"), rows))
    more = [(f"`{_signature(f, n, skip_self=True) if callable(f) else n}`", _first(f)) for n, f in _members(cls)]
    if more:
        parts.append(_table(("also", "what"), more))
    return "\n\n".join(parts)


def spec_block(name: str) -> str:
    """The fields of a part of a suite."""
    model = _named(SPECS, name, "part of a suite")
    rows = []
    for field, kind, default, span, description in schema.parameters(model):
        if not description:
            raise Mistake(f"{name}.{field} has no description: give its Field one")
        rows.append((f"`{field}`", _linked(kind), default, span, description))
    return f"{_prose(model)}\n\n" + _table(("field", "type", "default", "range", "what"), rows)


def recipes_block() -> str:
    """Every recipe with what it states, and the source its file names."""
    rows = []
    for name in federation.recipe_names():
        stated = federation.recipe(name)
        text = (federation.RECIPES / f"{name}.yaml").read_text(encoding="utf-8")
        source = " ".join(line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#"))
        rest = ", ".join(f"{k} {v}" for k, v in stated.items() if k != "optimizer")
        rows.append((f"`{name}`", rest, ", ".join(f"{k} {_flat(v)}" for k, v in stated["optimizer"].items()), source))
    return _table(("recipe", "states", "optimizer", "source"), rows)


def commands_block() -> str:
    """Every command with its line of help."""
    context = click.Context(cli)
    return _table(("command", "what"), [(f"`fedbench {name}`", LazyGroup().summary(context, name)) for name in commands()])


# --- pieces


def _named(known: dict[str, Any], name: str, what: str) -> Any:
    if name not in known:
        raise Mistake(f"there is no {what} '{name}'; there are {', '.join(known)}")
    return known[name]


def _signature(function: Any, name: str, skip_self: bool = False) -> str:
    """As it is written, without the quotes of annotations."""
    given = inspect.signature(function)
    parameters = [p for p in given.parameters.values() if not (skip_self and p.name in ("self", "cls"))]
    return name + str(given.replace(parameters=parameters)).replace("'", "")


def _code(text: str) -> str:
    return f"```python\ndef {text}: ...\n```"


def _prose(documented: Any) -> str:
    """A docstring as Markdown, one paragraph as it is wrapped there."""
    text = inspect.getdoc(documented)
    if not text:
        raise Mistake(f"{documented} has no docstring")
    return re.sub(r":class:`(\w+)`", r"`\1`", text).replace("``", "`").replace("[n, *input", r"[n, \*input")


def _first(documented: Any) -> str:
    if isinstance(documented, property) and not documented.__doc__:
        return f"`{inspect.signature(documented.fget).return_annotation}`"
    return _flat(_prose(documented).split("\n\n")[0])


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: Any) -> str:
    return _flat(text).replace("|", "\\|")


def _flat(text: Any) -> str:
    if isinstance(text, dict):
        return ", ".join(f"{k} {v}" for k, v in text.items())
    return " ".join(str(text).split())


def _type(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return "" if "lambda" in str(field.default_factory) else f"`{field.default_factory()}`"
    return "" if field.default is dataclasses.MISSING else f"`{field.default}`"


def _members(cls: type) -> list[tuple[str, Any]]:
    """Public properties and methods of a class and of what it is derived from."""
    found = {}
    for part in reversed(cls.__mro__[:-1]):
        for name, value in vars(part).items():
            shown = value.fget if isinstance(value, property) else value.func if isinstance(value, cached_property) else value
            if not name.startswith("_") and inspect.isfunction(shown):
                found[name] = value if isinstance(value, property | cached_property) else shown
    return list(found.items())


def _meaning(cls: type, field: dataclasses.Field[Any]) -> str:
    """The sentence of the docstring that names a field first; of one that it does not name, what its type is."""
    for part in cls.__mro__[:-1]:
        sentences = re.split(r"(?<=[.;]) (?=`)|(?<=\.) |\n\n", _flat_paragraphs(_prose(part)))
        for sentence in sentences:
            if re.search(rf"`(?:{field.name}|\*_{field.name.rpartition('_')[2]})(?:`|\[|\()", sentence):
                return re.sub(rf"^`{field.name}`: ", "", sentence.rstrip(";"))
    of = CONTEXTS.get(_type(field.type).partition(" ")[0])
    if of is not None:
        return _first(of)
    raise Mistake(f"the docstring of {cls.__name__} says nothing of '{field.name}'")


def _flat_paragraphs(text: str) -> str:
    return "\n\n".join(_flat(p) for p in text.split("\n\n"))


def _linked(text: str) -> str:
    """A type as a table says it, models as links to their sections."""
    return re.sub(r"\w+", lambda m: f"[{TITLES[m[0]]}](#{TITLES[m[0]]})" if m[0] in TITLES else m[0], text)


@cache
def _accepted(name: str) -> str:
    """What the check of a phase's answer expects, in its own words: it is shown answers that nothing accepts."""
    p, n, d, s, classes = 5, 4, 2, 3, 7  # told apart by their size; the words of the reference say which is which
    ctx = SimpleNamespace(params=torch.zeros(p), federation=SimpleNamespace(n_classes=classes),
                          data=MemberData(torch.zeros(n, 6), torch.zeros(n, dtype=torch.int64)))  # fmt: skip
    batch = Batch(torch.zeros(n, 6), torch.zeros(n, dtype=torch.int64), torch.arange(n))
    args: dict[str, tuple[Any, ...]] = {
        "assign": (torch.zeros(s, p), ctx), "prepare": (ctx.data, ctx), "select": (ctx,), "transform": (batch, ctx),
        "local_step": (batch, ctx), "protect": (torch.zeros(p), ctx), "coordinate": (torch.zeros(d, p), ctx),
        "aggregate": (torch.zeros(n, p), torch.ones(n), ctx), "loss": (torch.zeros(n, classes), batch, ctx),
        "answer": (torch.zeros(n, classes), ctx),
    }  # fmt: skip
    returns = PHASES[name].returns
    rows = {"same shape": args.get(name, ((),))[0], "step": torch.zeros(p), "vector or nothing": torch.zeros(p)}.get(returns)
    wrong = rows.long() if isinstance(rows, torch.Tensor) else object()
    misfit = CHECKS[returns](wrong, *args.get(name, (ctx,)))
    assert misfit is not None
    said = {f"[{p}]": "[P]", f"[{d}, {p}]": "[d, P]", f"[{n}, {classes}]": "[n, C]", f"0..{s - 1}": "an integer 0..s-1"}
    words = misfit.expected
    for number, letter in said.items():
        words = words.replace(number, letter)
    return f"None, or {words}" if returns == "vector or nothing" else words
