"""Read pydantic models for people: which fields are there, of what type, in which range."""

from __future__ import annotations

import enum
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

_SIGNS = (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))
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


def range_words(field: FieldInfo) -> str:
    """``> 0 and <= 1``; empty where the field is unbounded. Bounds of a list's elements are ``each ...``."""
    own = _bounds([*field.metadata, *_nested(field.annotation)])
    items = [_bounds(list(_nested(get_args(arm)[0]))) for arm in arms(field.annotation) if get_origin(arm) in _LISTS]
    each = [f"each {words}" for words in items if words]
    return ", ".join([own] * bool(own) + each)


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


def _nested(annotation: Any) -> Iterator[Any]:
    """Constraints that sit inside ``Annotated``, in a union or not."""
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        for item in metadata:
            yield from item.metadata if isinstance(item, FieldInfo) else [item]
        yield from _nested(inner)
    elif get_origin(annotation) in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from _nested(part)


def _bounds(metadata: list[Any]) -> str:
    found = [
        f"{sign} {value:g}" if isinstance(value, float) else f"{sign} {value}"
        for name, sign in _SIGNS
        for item in metadata
        if (value := getattr(item, name, None)) is not None
    ]
    found += [f"a multiple of {m}" for item in metadata if (m := getattr(item, "multiple_of", None)) is not None]
    return " and ".join(found)
