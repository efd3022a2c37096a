"""pydantic's errors as messages about the places of a file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from fedbench.core.spec.base import PATTERNS
from fedbench.core.spec.document import Loc, Problem
from fedbench.core.spec.schema import arms, at, fields, words
from fedbench.core.words import did_you_mean, printable

_LENGTHS = {"min_length": "at least", "max_length": "at most"}


def problems(error: ValidationError, model: type[BaseModel], data: Any) -> list[Problem]:
    """One problem per place: where it is in ``data`` (which ``model`` refused), what was found,
    what was expected.

    A union reports an error for each of its alternatives; errors inside of one replace those about
    the whole.
    """
    places: dict[Loc, Mapping[str, Any]] = {}
    for item in error.errors(include_url=False):
        places.setdefault(_place(item, data), item)
    inner = {loc[:n] for loc in places for n in range(1, len(loc))}
    return [_problem(loc, item, model) for loc, item in places.items() if loc not in inner]


def _place(item: Mapping[str, Any], data: Any) -> Loc:
    """The error's place in the data, without pydantic's names of union members."""
    kept: list[str | int] = []
    for i, step in enumerate(item["loc"]):
        there = (
            step in data
            if isinstance(data, dict)
            else isinstance(data, list) and isinstance(step, int) and step < len(data)
        )
        if there:
            data = data[step]
        if there or (item["type"] == "missing" and i == len(item["loc"]) - 1):
            kept.append(step)
    return tuple(kept)


def _problem(loc: Loc, item: Mapping[str, Any], model: type[BaseModel]) -> Problem:
    extra = item["type"] == "extra_forbidden"
    try:
        node = at(model, loc[:-1] if extra else loc)
    except Exception:  # a type of a plugin that has no schema: pydantic's own message is shown
        node = {}
    return Problem(
        loc, unknown_field(str(loc[-1]), fields(node)) if extra else _text(item, node), at_key=extra
    )


def _text(item: Mapping[str, Any], node: dict[str, Any]) -> str:
    kind, ctx, value = item["type"], item.get("ctx", {}), item["input"]
    if kind in ("missing", "invalid_key"):
        return (
            "required field is missing"
            if kind == "missing"
            else "a key must be text (put it in quotes)"
        )
    if kind in ("too_short", "string_too_short") and ctx["min_length"] == 1:
        return "must not be empty"
    if "too_short" in kind or "too_long" in kind:
        limit = next(f"{text} {ctx[key]:,}" for key, text in _LENGTHS.items() if key in ctx)
        return f"expected {limit} {'characters' if 'string' in kind else 'elements'}, found {len(value):,}"
    expected = PATTERNS.get(ctx.get("pattern", ""), "") or words(node)
    if not expected or kind in ("fedbench", "value_error", "assertion_error"):
        return " ".join(item["msg"].removeprefix("Value error, ").split())
    good = [str(choice) for arm in arms(node) for choice in arm.get("enum", ())]
    return f"expected {expected}, found {found(value)}{did_you_mean(value, good) if isinstance(value, str) else ''}"


def found(value: Any) -> str:
    """A value of the file in words: ``the text 'abc'``, ``60.5``, ``a list``, ``nothing (null)``."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        shown = printable(value[:61])
        return f"the text '{shown}'" if len(value) <= 60 else f"the text '{shown[:57]}'..."
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    if isinstance(value, int | float):
        return f"{value!r:.60}"
    return (
        "a list"
        if isinstance(value, list)
        else "a mapping"
        if isinstance(value, dict)
        else f"the date {value}"
    )


def unknown_field(name: str, good: Iterable[str]) -> str:
    """``unknown field - did you mean 'stride'?``; without a near name, all the good ones."""
    names = list(good)
    listed = f"; the fields are {', '.join(names)}" if names else "; there are no fields here"
    return f"unknown field{did_you_mean(name, names) or listed}"
