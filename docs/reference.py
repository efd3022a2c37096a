#!/usr/bin/env python3
"""Write the generated blocks of docs/reference/: ``python docs/reference.py`` (``--check`` compares
them).

A page is prose with blocks between ``<!-- made: KIND NAME -->`` and ``<!-- end -->``, which this
writes:

* ``hook NAME``: signature, summary and base class; ``phase NAME``: signature, row of the table of
  phases, and docstring; ``method CLASS.NAME``: signature and docstring;
* ``function NAME``: signature and docstring of a function of ``fedbench`` or
  ``fedbench.core.toolkit``;
* ``class CLASS``: docstring, a table of its fields, and a table of its properties and methods;
* ``spec MODEL``: the fields of a part of a suite, from its pydantic model; ``recipes``;
* ``phases``: the pages of the phases, a line each.

Every phase needs a page; every hook, public method of a base class and context needs a block; a
block of something that does not exist is an error. Nothing is written then.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from records import Mistake, finish, meanings

import fedbench.core
from fedbench.core import api, report, toolkit
from fedbench.core.contract.contexts import Randomness
from fedbench.core.contract.defense import Defense
from fedbench.core.contract.hooks import Hooks
from fedbench.core.contract.phases import PHASES
from fedbench.core.registry.kinds import BASES as _BASES
from fedbench.core.spec import base, federation, recipes, schema, setting, suite

PAGES = Path(__file__).resolve().parent / "reference"
BLOCK = re.compile(r"(<!-- made: (\w+)(?: ([\w./-]+))? -->\n)(.*?)(<!-- end -->)", re.DOTALL)


HOOKS = {name: f for name, f in vars(Hooks).items() if not name.startswith("_")}
BASES = {
    name: getattr(fedbench.core, name)
    for name in [*dict.fromkeys(n for _, n in _BASES.values()), "ActiveAttack"]
}
_NAMES = """
Federation MemberData Batch Selection MemberContext CoalitionContext Layer ServerContext
AnswerContext ReportContext Observations Audit Colluder ShadowModels Knowledge Probe Data
FinishedRun Judgement Judged Findings Number Component Summary
RunInfo RunStarted RoundFinished CellFinished RunFinished BoardWritten
"""
_REPORT_NAMES = "Section Row Entry Sweep RowDifference RowSummary Figure Style"
CONTEXTS = (
    {"Randomness": Randomness, "Results": api.Results}
    | {name: getattr(fedbench.core, name) for name in _NAMES.split()}
    | {name: getattr(report, name) for name in _REPORT_NAMES.split()}
)
SPECS = {
    name: cls
    for module in (suite, setting, federation)
    for name, cls in vars(module).items()
    if isinstance(cls, type) and issubclass(cls, base.SpecModel) and cls is not base.SpecModel
}
TITLES = {  # the sections of suite.md
    "SuiteSpec": "suite",
    "Setting": "settings",
    "FederationSpec": "federation",
    "Optimizer": "optimizer",
    "Schedule": "schedule",
    "Partition": "partition",
    "Group": "groups",
    "AuditSpec": "audit",
    "ShadowSpec": "shadow",
    "Adversary": "adversary",
    "Coalition": "coalitions",
    "Use": "component",
    "MethodUse": "row",
    "Limits": "limits",
    "PublishedNumbers": "published",
}


def hook_block(name: str) -> str:
    """Signature, in one line."""
    hook = _named(HOOKS, name, "hook")
    return f"Hook: `{_signature(hook, name, skip_self=True)}`"


def phase_block(name: str) -> str:
    """Signature, the row of the table, and the docstring."""
    row = _named(PHASES, name, "phase")
    method = getattr(Defense, name)
    acts = f"Party: {row.party}. Stage: {row.stage}. Several defenses: {row.combines}."
    return "\n\n".join((_code(_signature(method, name)), acts, _prose(method)))


def method_block(name: str) -> str:
    """Signature and docstring of a method of a base class."""
    cls, _, method = name.partition(".")
    _named(dict.fromkeys(methods_of(cls)), method, f"public method of {cls}")
    static = inspect.getattr_static(BASES[cls], method)
    function = static.__func__ if isinstance(static, classmethod) else static
    return f"{_code(_signature(function, method))}\n\n{_prose(function)}"


def function_block(name: str) -> str:
    """Signature and docstring of a function of the Python API or the toolkit."""
    function = _named(vars(toolkit) | vars(api), name, "function")
    return f"{_code(_signature(function, name))}\n\n{_prose(function)}"


def methods_of(name: str) -> list[str]:
    """Public methods that a base class declares itself, phases apart: those have pages of their
    own.
    """
    cls = _named(BASES, name, "base class")
    public = [
        n
        for n, f in vars(cls).items()
        if not n.startswith("_") and (inspect.isfunction(f) or isinstance(f, classmethod))
    ]
    return [n for n in public if not (cls is Defense and n in PHASES)]


def class_block(name: str) -> str:
    """First sentence of the docstring, fields with the sentence that describes each, the other
    sentences, properties and methods. What the page says of a base class is not repeated.
    """
    cls = _named(CONTEXTS, name, "class")
    bases = [base for base in cls.__mro__[1:] if base.__name__ in CONTEXTS]
    inherited = {
        n for base in bases for n in [*getattr(base, "__annotations__", ()), *dict(_members(base))]
    }
    first, *rest = _sentences(cls)
    described: dict[str, list[dataclasses.Field[Any]]] = {}
    for field in dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ():
        if field.name not in inherited:
            described.setdefault(_meaning(cls, field), []).append(field)
    has = [f"Has all of [{base.__name__}](#{base.__name__.lower()})." for base in bases]
    parts = [" ".join([first.rstrip(".;") + ".", *has])]
    if set(described) - {first}:
        parts.append(
            "\n".join(
                _entry(fields, "" if text == first else text) for text, fields in described.items()
            )
        )
    if others := [sentence for sentence in rest if sentence not in described]:
        parts.append(" ".join(others).rstrip(".;") + ".")
    if members := [(n, f) for n, f in _members(cls) if n not in inherited]:
        signatures = [
            (_signature(f, n, skip_self=True) if callable(f) else n, _first(f)) for n, f in members
        ]
        parts.append("\n".join(f"* `{signature}`: {text}" for signature, text in signatures))
    return "\n\n".join(parts)


def _entry(fields: list[dataclasses.Field[Any]], text: str) -> str:
    """The line of fields that one sentence describes."""
    names = ", ".join(f"`{f.name}`" for f in fields)
    types = ", ".join(dict.fromkeys(_type(f) for f in fields))
    text = text.rstrip(";")
    after = text.removeprefix(f"{names}: ")
    if types in ("`Tensor`", "`ndarray`") and after.startswith("["):
        return f"* {names}: {after}"
    return f"* {names} ({types})" + f": {after}" * bool(after)


def spec_block(name: str) -> str:
    """The fields of a part of a suite."""
    model = _named(SPECS, name, "part of a suite")
    rows = []
    for field, kind, default, span, description in schema.parameters(model):
        if not description:
            raise Mistake(f"{name}.{field} has no description: give its Field one")
        value = default if default == "required" else f"default {default}"
        if default in ("", "null", "its defaults", "[]", "{}"):
            value = ""
        span = re.sub(
            r"([\[(])([^,]+), \d{6,}[\])]", lambda m: f"{'>=' if m[1] == '[' else '>'} {m[2]}", span
        )
        span = span.replace(" in >", " >")
        kind = re.sub(
            r"\w+", lambda m: f"[{TITLES[m[0]]}](#{TITLES[m[0]]})" if m[0] in TITLES else m[0], kind
        )
        kind = kind.removesuffix(" | null")
        rows.append(
            f"* `{field}` ({', '.join(part for part in (kind, span, value) if part)}): "
            f"{_flat(description)}"
        )
    return f"{_prose(model)}\n\n" + "\n".join(rows)


def recipes_block(_: str) -> str:
    """Every recipe with what it states, and the source its file names."""
    rows = []
    for name in federation.recipe_names():
        stated = dict(federation.recipe(name))
        text = (files(recipes.__name__) / f"{name}.yaml").read_text(encoding="utf-8")
        comments = [
            line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#")
        ]
        optimizer = stated.pop("optimizer")
        rows.append(
            f"* `{name}`: {_flat(stated)}; optimizer {_flat(optimizer)}. {' '.join(comments)}"
        )
    return "\n".join(rows)


# --- pieces


def _named(known: dict[str, Any], name: str, what: str) -> Any:
    if name not in known:
        raise Mistake(f"there is no {what} '{name}'; there are {', '.join(known)}")
    return known[name]


def _signature(function: Any, name: str, skip_self: bool = False) -> str:
    """As it is written, without the quotes of annotations."""
    given = inspect.signature(function)
    parameters = [
        p for p in given.parameters.values() if not (skip_self and p.name in ("self", "cls"))
    ]
    return name + re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(given.replace(parameters=parameters)))


def _code(text: str) -> str:
    return f"```python\ndef {text}: ...\n```"


def _prose(documented: Any) -> str:
    """A docstring as Markdown, one paragraph as it is wrapped there."""
    text = inspect.getdoc(documented)
    if not text:
        raise Mistake(f"{documented} has no docstring")
    return re.sub(r":(?:class|func|attr):`(\w+)`", r"`\1`", text).replace("``", "`")


def _first(documented: Any) -> str:
    if isinstance(documented, property) and not documented.__doc__:
        return f"`{inspect.signature(documented.fget).return_annotation}`"
    return _sentences(documented)[0].rstrip(";")


def _flat(text: Any) -> str:
    if isinstance(text, dict):
        return ", ".join(f"{k} {_flat(v)}" for k, v in text.items())
    return " ".join(str(text).split())


def _type(field: dataclasses.Field[Any]) -> str:
    """Return the type, with ``?`` for None."""
    text = (
        field.type
        if isinstance(field.type, str)
        else getattr(field.type, "__name__", str(field.type))
    )
    text = re.sub(r"Callable\[.*\]", "Callable", text)
    name, _, rest = text.partition(" ")
    if name in CONTEXTS:
        return f"[{name}](#{name.lower()})" + "?" * bool(rest)
    return f"`{text.replace(' | None', '?')}`"


def _members(cls: type) -> list[tuple[str, Any]]:
    """Public properties and methods of a class and of what it is derived from."""
    members = {}
    for part in reversed(cls.__mro__[:-1]):
        for name, value in vars(part).items():
            function = getattr(value, "fget", getattr(value, "func", value))
            if not name.startswith("_") and inspect.isfunction(function):
                members[name] = value if isinstance(value, property | cached_property) else function
    return list(members.items())


def _meaning(cls: type, field: dataclasses.Field[Any]) -> str:
    """The text under a field, else the sentence of the docstring that names it first."""
    texts = meanings(cls)
    if field.name in texts:
        return f"`{field.name}`: {texts[field.name].replace('``', '`')}"
    for part in cls.__mro__[:-1]:
        for sentence in _sentences(part):
            if re.search(
                rf"`(?:{field.name}|\*_{field.name.rpartition('_')[2]})(?:`|\[|\()", sentence
            ):
                return sentence
    if not texts and str(field.type) not in CONTEXTS:
        raise Mistake(f"the docstring of {cls.__name__} does not describe '{field.name}'")
    return ""


def _sentences(documented: Any) -> list[str]:
    """Sentences of a docstring, cut at semicolons before a name, too."""
    paragraphs = "\n\n".join(_flat(p) for p in _prose(documented).split("\n\n"))
    return re.split(r"(?<=[.;]) (?=`)|(?<=\.) (?=[A-Z])|\n\n", paragraphs)


# --- pages


def filled(text: str, where: str) -> str:
    """A page with its blocks made anew; raises :class:`Mistake` for one that cannot be made."""

    def make(match: re.Match[str]) -> str:
        head, kind, name, _, end = match.groups()
        if kind not in MAKERS:
            raise Mistake(f"{where}: unknown block '{kind}'; there are {', '.join(MAKERS)}")
        try:
            return f"{head}{MAKERS[kind](name or '').strip()}\n{end}"
        except Mistake as mistake:
            raise Mistake(f"{where}: {mistake}") from None

    marks = {text.count("<!-- made:"), text.count("<!-- end -->")}
    if marks != {len(BLOCK.findall(text))}:
        raise Mistake(f"{where}: a block is not closed, or its first line is misspelt")
    return BLOCK.sub(make, text)


def phases_block(_: str) -> str:
    """Return a line a phase: its page as a link, and the page's first sentence."""
    lines = []
    for name in PHASES:
        prose = (PAGES / "phases" / f"{name}.md").read_text(encoding="utf-8").split("\n\n")[1]
        sentence = re.split(r"(?<=[.]) ", " ".join(prose.split()), maxsplit=1)[0]
        lines.append(f"* [{name}](phases/{name}.md): {sentence}")
    return "\n".join(lines)


MAKERS: dict[str, Callable[[str], str]] = {
    "hook": hook_block,
    "phase": phase_block,
    "method": method_block,
    "class": class_block,
    "spec": spec_block,
    "function": function_block,
    "recipes": recipes_block,
    "phases": phases_block,
}


def wanted() -> dict[str, str]:
    """Block -> the page that it must stand on; ``*`` for any."""
    blocks = {f"hook {name}": "*" for name in HOOKS}
    blocks |= {f"phase {name}": f"phases/{name}.md" for name in PHASES}
    blocks |= {f"method {base}.{name}": "*" for base in BASES for name in methods_of(base)}
    blocks |= {f"class {name}": "*" for name in CONTEXTS}
    return blocks | {f"spec {name}": "suite.md" for name in SPECS}


def missing(pages: dict[str, str]) -> list[str]:
    """Return what has no block on its page."""
    stands: dict[str, list[str]] = {}
    for page, text in pages.items():
        for _, kind, name, _, _ in BLOCK.findall(text):
            stands.setdefault(f"{kind} {name}", []).append(page)
    bad = []
    for block, page in wanted().items():
        places = stands.get(block, [])
        if not places or (page != "*" and page not in places):
            bad.append(f"docs/reference/{page}: no block '{block}'")
    return bad


def main() -> int:
    """Write all pages, or compare them; the exit status."""
    pages = {
        p.relative_to(PAGES).as_posix(): p.read_text(encoding="utf-8")
        for p in sorted(PAGES.rglob("*.md"))
    }
    problems, contents = missing(pages), {}
    for name, text in pages.items():
        try:
            contents[PAGES / name] = filled(text, f"docs/reference/{name}")
        except Mistake as mistake:
            problems.append(str(mistake))
    return finish(contents, problems, "the code says: run `python docs/reference.py`")


if __name__ == "__main__":
    raise SystemExit(main())
