"""pydantic's errors in the words of the person who wrote the file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from fedbench.core.spec import schema
from fedbench.core.spec.base import PATTERNS
from fedbench.core.spec.document import Loc, Problem
from fedbench.core.words.explain import printable
from fedbench.core.words.nearest import did_you_mean

_EXPECTED = {
    "int": "an integer", "float": "a number", "finite_number": "a finite number", "bool": "true or false",
    "string": "text", "list": "a list", "tuple": "a list", "set": "a list", "dict": "a mapping", "model": "a mapping",
}  # fmt: skip
_RENAMED = {"reference": "published"}  # fields by what they were called before
_LARGEST = 10**40  # of which every digit is printed
_MOST_UNKNOWN = 10  # fields of one mapping that are named one by one
_RANGES = ("greater_than", "greater_than_equal", "less_than", "less_than_equal", "multiple_of")


def problems(error: ValidationError, model: type[BaseModel], data: Any) -> list[Problem]:
    """One problem a place: where it is in ``data`` (which ``model`` refused), what was found, what was expected.

    A union reports an error for each of its alternatives: they are joined, or, where one alternative got further than
    the others, only that one's are kept.
    """
    places: dict[Loc, list[Mapping[str, Any]]] = {}
    in_union: dict[Loc, set[Loc]] = {}
    for item in error.errors(include_url=False):
        loc, union_at = _real_loc(item["loc"], model, data, item["type"] == "extra_forbidden")
        places.setdefault(loc, []).append(item)
        if union_at is not None:
            in_union.setdefault(union_at, set()).add(loc)
    for at, locs in in_union.items():
        if len(locs) > 1:
            places.pop(at, None)
    beyond, more = _many_unknown(loc for loc, items in places.items() if items[0]["type"] == "extra_forbidden")
    return [_problem(loc, items, model) for loc, items in places.items() if loc not in beyond] + more


def _many_unknown(locs: Iterable[Loc]) -> tuple[set[Loc], list[Problem]]:
    """(unknown fields that are not named: those after the first ones of a mapping, one problem for those of each)."""
    inside: dict[Loc, list[Loc]] = {}
    for loc in locs:
        inside.setdefault(loc[:-1], []).append(loc)
    rest = {at: found[_MOST_UNKNOWN:] for at, found in inside.items() if len(found) > _MOST_UNKNOWN}
    more = [Problem(found[0], f"and {len(found):,} more unknown fields from here on", at_key=True) for found in rest.values()]
    return {loc for found in rest.values() for loc in found}, more


def found(value: Any) -> str:
    """What stands in the file: ``the text 'abc'``, ``60.5``, ``a list``, ``nothing (null)``."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        shown = printable(value[:61])  # not repr: it would double the backslash of a code
        return f"the text '{shown}'" if len(value) <= 60 else f"the text '{shown[:57]}'..."
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    if isinstance(value, int) and abs(value) >= _LARGEST:
        return f"a number of {math.log10(abs(value)) + 1:.0f} digits"
    if isinstance(value, int | float):
        return repr(value)
    return "a list" if isinstance(value, list) else "a mapping" if isinstance(value, dict) else f"the date {value}"


def unknown_field(name: str, good: Iterable[str]) -> str:
    """``unknown field - did you mean 'stride'?``; without a near name, all the good ones."""
    names = list(good)
    if _RENAMED.get(name) in names:
        return f"unknown field: it is called '{_RENAMED[name]}'"
    listed = f"; the fields are {', '.join(names)}" if names else "; there are no fields here"
    return f"unknown field{did_you_mean(name, names) or listed}"


def _real_loc(loc: Sequence[str | int], model: type[BaseModel], data: Any, extra: bool) -> tuple[Loc, Loc | None]:
    """``loc`` without pydantic's tags of union members, and where the first of those tags stood."""
    kept: list[str | int] = []
    union_at: Loc | None = None
    annotation: Any = model
    for i, segment in enumerate(loc):
        here = schema.child(annotation, segment) if annotation is not None else None
        if here is None and not _contains(data, segment) and not (extra and i == len(loc) - 1):
            union_at = tuple(kept) if union_at is None else union_at
            continue
        kept.append(segment)
        annotation = here
        data = data[segment] if _contains(data, segment) else None
    return tuple(kept), union_at


def _contains(data: Any, segment: str | int) -> bool:
    if isinstance(data, dict):
        return segment in data
    return isinstance(data, list) and isinstance(segment, int) and segment < len(data)


def _problem(loc: Loc, items: list[Mapping[str, Any]], model: type[BaseModel]) -> Problem:
    item = items[0]
    if item["type"] == "extra_forbidden":
        return Problem(loc, unknown_field(str(loc[-1]), schema.fields(schema.descend(model, loc[:-1]))), at_key=True)
    if len(items) > 1:
        expected = list(dict.fromkeys(_expected(i, loc, model) for i in items))
        if all(expected):
            return Problem(loc, f"expected {' or '.join(expected)}, found {found(item['input'])}")
    return Problem(loc, _text(item, loc, model))


def _text(item: Mapping[str, Any], loc: Loc, model: type[BaseModel]) -> str:
    kind, ctx = item["type"], item.get("ctx", {})
    if kind == "missing":
        return "required field is missing"
    if kind in ("too_short", "string_too_short") and ctx.get("min_length") == 1:
        return "must not be empty"
    expected = _expected(item, loc, model)
    if expected:
        near = did_you_mean(item["input"], _choices(ctx)) if isinstance(item["input"], str) else ""
        n = ctx.get("actual_length")
        return f"expected {expected}, found {found(item['input']) if n is None else f'{n:,}'}{near}"
    return " ".join(item["msg"].removeprefix("Value error, ").split())


def _expected(item: Mapping[str, Any], loc: Loc, model: type[BaseModel]) -> str:
    """What should have stood there, with the range; empty where only pydantic's own message says it."""
    kind, ctx = item["type"], item.get("ctx", {})
    if kind in ("literal_error", "enum"):
        return ctx["expected"]
    if kind == "string_pattern_mismatch":
        return PATTERNS.get(ctx["pattern"], f"text matching {ctx['pattern']}")
    if kind == "model_type":
        short = [getattr(arm, "short_form", "") for arm in schema.arms(schema.descend(model, loc))]
        return " or ".join([*filter(None, short), "a mapping"])
    if kind.startswith(("too_", "string_too_")):
        limit = next(f"{word} {ctx[key]:,}" for key, word in _LENGTHS.items() if key in ctx)
        return f"{limit} {'characters' if kind.startswith('string') else 'elements'}"
    return _typed(kind, ctx, loc, model)


_LENGTHS = {"min_length": "at least", "max_length": "at most"}


def _typed(kind: str, ctx: Mapping[str, Any], loc: Loc, model: type[BaseModel]) -> str:
    """Type and range: of the place, which knows all bounds, else from the error."""
    base = _EXPECTED.get(kind) or _EXPECTED.get(kind.removesuffix("_type").removesuffix("_parsing"), "")
    if kind in ("int_from_float", "int_parsing_size"):
        base = "an integer"
    if kind not in _RANGES and base not in ("an integer", "a number", "a finite number"):
        return base
    words = schema.number_words(model, loc)
    if kind == "finite_number":
        words = words.replace("a number", "a finite number", 1)
    return words or (f"a value {_bound(kind, ctx)}" if kind in _RANGES else base)


def _bound(kind: str, ctx: Mapping[str, Any]) -> str:
    """The one bound that an error names."""
    sign = {"greater_than": ">", "greater_than_equal": ">=", "less_than": "<", "less_than_equal": "<="}
    return f"{sign.get(kind, 'a multiple of')} {next(iter(ctx.values()))}"


def _choices(ctx: Mapping[str, Any]) -> list[str]:
    """The quoted words in pydantic's list of allowed values."""
    return str(ctx.get("expected", "")).split("'")[1::2]
