"""pydantic's errors as messages about the places of a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from fedbench.core.spec.base import PATTERNS
from fedbench.core.spec.document import Loc, Problem
from fedbench.core.spec.schema import arms, at, fields, words
from fedbench.core.words import did_you_mean, one_line

_OWN = ("fedbench", "value_error", "assertion_error")  # errors with a message of a validator's own


def problems(error: ValidationError, model: type[BaseModel], data: Any) -> list[Problem]:
    """Return one problem per place of ``data``, which ``model`` refused.

    A union reports an error for each of its alternatives; errors inside of one replace those about
    the whole.
    """
    places: dict[Loc, Mapping[str, Any]] = {}
    for item in error.errors(include_url=False):
        places.setdefault(_place(item, data), item)
    outer = set[Loc]()
    for loc in places:
        outer.update(loc[:n] for n in range(1, len(loc)))
    return [_problem(loc, item, model) for loc, item in places.items() if loc not in outer]


def _place(item: Mapping[str, Any], data: Any) -> Loc:
    """Return the error's place in the data, without pydantic's names of union members."""
    place: Loc = ()
    for step in item["loc"]:
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            continue
        place += (step,)
    if item["type"] == "missing":
        place += (item["loc"][-1],)
    return place


def _problem(loc: Loc, item: Mapping[str, Any], model: type[BaseModel]) -> Problem:
    is_extra = item["type"] == "extra_forbidden"
    try:
        node = at(model, loc[:-1] if is_extra else loc)
    except Exception:  # a type of a plugin that has no schema: pydantic's own message is shown
        node = {}
    if is_extra:
        return Problem(loc, unknown_field(str(loc[-1]), fields(node)), at_key=True)
    return Problem(loc, _text(item, node))


def _text(item: Mapping[str, Any], node: dict[str, Any]) -> str:
    kind = item["type"]
    ctx = item.get("ctx", {})
    value = item["input"]
    if kind == "missing":
        return "required field is missing"
    if kind == "invalid_key":
        return "a key must be text (put it in quotes)"
    if kind.endswith(("too_short", "too_long")):
        if ctx.get("min_length") == 1:
            return "must not be empty"
        if "min_length" in ctx:
            limit = f"at least {ctx['min_length']:,}"
        else:
            limit = f"at most {ctx['max_length']:,}"
        unit = "characters" if "string" in kind else "elements"
        return f"expected {limit} {unit}, found {len(value):,}"
    expected = PATTERNS.get(ctx.get("pattern", "")) or words(node)
    if not expected or kind in _OWN:
        return " ".join(item["msg"].removeprefix("Value error, ").split())
    text = f"expected {expected}, found {found(value)}"
    if isinstance(value, list) and item["loc"][:1] == ("defenses",) and len(item["loc"]) > 1:
        text += "; defenses in order are one entry, {name: FIRST, then: [SECOND]}"
    if isinstance(value, str):
        choices: list[str] = []
        for arm in arms(node):
            choices += map(str, arm.get("enum", ()))
        text += did_you_mean(value, choices)
    return text


def found(value: Any) -> str:
    """Return a value in words: ``the text 'abc'``, ``60.5``, ``a list``, ``nothing (null)``."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"the text '{one_line(value, 60)}'"
    if isinstance(value, int | float):
        return f"{value!r:.60}"
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a mapping"
    return f"the date {value}"


def unknown_field(name: str, fields: Iterable[str]) -> str:
    """Return ``unknown field - did you mean 'stride'?``; without a near name, all fields."""
    names = list(fields)
    if near := did_you_mean(name, names):
        return f"unknown field{near}"
    if not names:
        return "unknown field; there are no fields here"
    return f"unknown field; the fields are {', '.join(names)}"
