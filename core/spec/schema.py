"""Read pydantic models for people: which fields are there, of what type, in which range."""

from __future__ import annotations

import enum
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_WORDS: dict[Any, str] = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
_LISTS = (list, tuple, set, frozenset)


def arms(annotation: Any) -> list[Any]:
    """The plain types of an annotation: unions taken apart, ``Annotated`` unwrapped, None left out."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return arms(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [arm for part in get_args(annotation) for arm in arms(part)]
    return [] if annotation is type(None) else [annotation]


def fields(annotation: Any) -> dict[str, FieldInfo]:
    """The fields of the models among the arms, by the name that a file uses."""
    found: dict[str, FieldInfo] = {}
    for arm in arms(annotation):
        if isinstance(arm, type) and issubclass(arm, BaseModel):
            found |= {info.alias or name: info for name, info in arm.model_fields.items()}
    return found


def child(annotation: Any, segment: str | int) -> Any | None:
    """The annotation of a field, a list's element or a mapping's value; None where the type has no such thing."""
    if segment in (names := fields(annotation)):
        return names[segment].annotation
    for arm in arms(annotation):
        if isinstance(segment, int) and get_origin(arm) in _LISTS:
            return get_args(arm)[0]
        if isinstance(segment, str) and get_origin(arm) is dict:
            return get_args(arm)[1]
    return None


def descend(annotation: Any, loc: tuple[str | int, ...]) -> Any | None:
    """The annotation at ``loc``, or None."""
    for segment in loc:
        annotation = child(annotation, segment) if annotation is not None else None
    return annotation


def field_at(annotation: Any, loc: tuple[str | int, ...]) -> FieldInfo | None:
    """The field that ``loc`` ends in, or None."""
    return fields(descend(annotation, loc[:-1])).get(str(loc[-1])) if loc else None


def type_words(annotation: Any) -> str:
    """``an integer``, ``a number or a list``, ``'a' or 'b'``, as an error message says it."""
    return " or ".join(dict.fromkeys(_words(arm) for arm in arms(annotation))) or "anything"


def short_type(annotation: Any) -> str:
    """``int``, ``float | null``, ``batchmean | mean``, ``list of int``, as a table says it."""
    names = [_short(arm) for arm in arms(annotation)]
    if type(None) in get_args(annotation):
        names.append("null")
    return " | ".join(dict.fromkeys(names))


def constraints_at(annotation: Any, loc: tuple[str | int, ...]) -> list[tuple[Any, list[Any]]]:
    """(plain type, its constraints) of each arm of what stands at ``loc``; a list's elements have their own."""
    if not loc:
        return list(_constrained(annotation, []))
    parent = descend(annotation, loc[:-1])
    field = fields(parent).get(str(loc[-1])) if parent is not None else None
    if field is not None:
        return list(_constrained(field.annotation, field.metadata))
    inner = child(parent, loc[-1]) if parent is not None else None
    return list(_constrained(inner, []))


def number_words(annotation: Any, loc: tuple[str | int, ...]) -> str:
    """``an integer in [1, 10] or a number in (0, 1)``: the numbers that may stand at ``loc``, each type with its own range."""
    words: dict[str, list[str]] = {}
    for arm, constraints in constraints_at(annotation, loc):
        if arm in (int, float):
            words.setdefault(_interval(constraints), []).append(_WORDS[arm])
    return " or ".join(f"{' or '.join(dict.fromkeys(names))} {interval}".strip() for interval, names in words.items())


def range_words(field: FieldInfo) -> str:
    """``(0, 1]`` or ``>= 1``; empty where the field is unbounded. Of a list's elements ``each [0, 1)``; where types have
    ranges of their own, ``int in [1, 10], float in (0, 1)``."""
    found: dict[str, list[str]] = {}
    for arm, constraints in _constrained(field.annotation, field.metadata):
        each = _constrained(get_args(arm)[0], []) if get_origin(arm) in _LISTS else []
        inner = " or ".join(dict.fromkeys(filter(None, (_interval(c) for _, c in each))))
        interval = f"each {inner}" if inner else _interval(constraints)
        if interval:
            found.setdefault(interval.removeprefix("in ").replace("each in ", "each "), []).append(_short(arm))
    if len(found) == 1:
        return next(iter(found))
    return ", ".join(f"{' or '.join(names)} {'in ' * (words[0] in '[(')}{words}" for words, names in found.items())


def default_words(field: FieldInfo) -> str:
    """The default as YAML would have it, or ``required``."""
    if field.is_required():
        return "required"
    if field.default_factory is not None:
        computed = field.default_factory_takes_validated_data
        return "computed" if computed else str(field.get_default(call_default_factory=True, validated_data={}))
    value = field.default
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _words(arm: Any) -> str:
    if get_origin(arm) is Literal:
        return " or ".join(map(repr, get_args(arm)))
    if isinstance(arm, type) and issubclass(arm, enum.Enum):
        return " or ".join(repr(item.value) for item in arm)
    if get_origin(arm) in _LISTS or arm in _LISTS:
        return "a list"
    if get_origin(arm) is dict or arm is dict or fields(arm):
        return "a mapping"
    return _WORDS.get(arm, getattr(arm, "__name__", str(arm)))


def _short(arm: Any) -> str:
    if get_origin(arm) is Literal:
        return " | ".join(map(str, get_args(arm)))
    if isinstance(arm, type) and issubclass(arm, enum.Enum):
        return " | ".join(str(item.value) for item in arm)
    if get_origin(arm) in _LISTS:
        items = [short_type(item) for item in get_args(arm) if item is not Ellipsis]
        return f"list of {', '.join(dict.fromkeys(items))}"
    return "mapping" if get_origin(arm) is dict else getattr(arm, "__name__", str(arm))


def _constrained(annotation: Any, constraints: list[Any]) -> Iterator[tuple[Any, list[Any]]]:
    """Each plain type with the constraints around it, those of a union around all of its parts."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *metadata = get_args(annotation)
        own = [c for item in metadata for c in (item.metadata if isinstance(item, FieldInfo) else [item])]
        yield from _constrained(inner, [*constraints, *own])
    elif origin in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from _constrained(part, constraints)
    elif annotation is not None and annotation is not type(None):
        yield annotation, constraints


def _interval(constraints: list[Any]) -> str:
    """``in (0, 1]``, ``>= 1``, ``a multiple of 2``, as one range however many constraints make it; empty without any."""
    low = [(value, sign) for sign in ("gt", "ge") for c in constraints if (value := getattr(c, sign, None)) is not None]
    high = [(value, sign) for sign in ("lt", "le") for c in constraints if (value := getattr(c, sign, None)) is not None]
    steps = [f"a multiple of {m}" for c in constraints if (m := getattr(c, "multiple_of", None)) is not None]
    least = max(low, key=lambda end: (end[0], end[1] == "gt")) if low else None
    largest = min(high, key=lambda end: (end[0], end[1] == "le")) if high else None
    if least and largest:
        ends = ("(" if least[1] == "gt" else "["), ("]" if largest[1] == "le" else ")")
        steps.insert(0, f"in {ends[0]}{_plain(least[0])}, {_plain(largest[0])}{ends[1]}")
    elif least or largest:
        value, sign = least or largest or (0, "")
        steps.insert(0, f"{_SIGNS[sign]} {_plain(value)}")
    return " and ".join(steps)


def _plain(value: Any) -> str:
    """A bound as a person writes it: 1000000, 0.0001."""
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else f"{value}"
