"""``--set settings.digits.federation.rounds=5``: change a suite from the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fedbench.core.contract.errors import UserError
from fedbench.core.spec import schema
from fedbench.core.spec.document import Document, Loc, parse_value, path_words
from fedbench.core.spec.suite import SuiteSpec
from fedbench.core.words.explain import bounded, one_line
from fedbench.core.words.nearest import did_you_mean


def apply(document: Document, overrides: Sequence[str]) -> Document:
    """The document with each ``path=value`` applied in turn; raises ``UserError`` with every bad option.

    A path is dotted; elements of a list go by index or by their name (label). The value is YAML. What follows in
    error messages about such a place names the option instead of a line.
    """
    mistakes: list[str] = []
    for override in overrides:
        try:
            document = _apply_one(document, override)
        except UserError as exc:
            mistakes += [f"{document.path}: {message}" for message in exc.messages]
    if mistakes:
        raise UserError(*bounded(mistakes))
    return document


def _apply_one(document: Document, override: str) -> Document:
    option = f"--set {one_line(override, 200)}"
    path, equals, text = override.partition("=")
    segments = path.strip().split(".")
    if not equals or not all(segments):
        raise UserError(f"{option}: expected PATH=VALUE, such as settings.0.federation.rounds=5")
    value = parse_value(text, f"{option}: value")
    data, loc = _set(document.data, segments, value, SuiteSpec, (), option)
    return replace(document, data=data, overridden={**document.overridden, loc: option})


def _set(data: Any, path: list[str], value: Any, annotation: Any, at: Loc, option: str) -> tuple[Any, Loc]:
    """A copy of ``data`` with the value at ``path``, and the place; copies, as YAML aliases share their parts."""
    if not path:
        return value, at
    if isinstance(data, str) and path[0] in schema.fields(annotation):
        data = {"name": data}  # the short form of a use
    key: Any
    if isinstance(data, list):
        key = _index(data, path[0], at, option)
        inner = data[key]
    else:
        key = _key(data, path[0], annotation, at, option)
        inner = data.get(key)
    if inner is None:
        inner = _empty(schema.child(annotation, key))
    changed, loc = _set(inner, path[1:], value, schema.child(annotation, key), (*at, key), option)
    copy = data.copy()
    copy[key] = changed
    return copy, loc


def _empty(annotation: Any) -> Any:
    """What stands for a part that the file leaves out."""
    return {} if schema.fields(annotation) or schema.type_words(annotation) in ("a mapping", "Any") else []


def _index(data: list[Any], segment: str, at: Loc, option: str) -> int:
    if segment.isdecimal():
        if int(segment) < len(data):
            return int(segment)
        raise UserError(f"{option}: {path_words(at)} has no element {segment}, it has {len(data)} (from 0)")
    names = [_name(item) for item in data]
    if names.count(segment) == 1:
        return names.index(segment)
    if segment in names:
        raise UserError(f"{option}: {path_words(at)} has several elements '{segment}': use an index, from 0")
    good = [n for n in names if n]
    listed = did_you_mean(segment, good) or f"; its elements are {', '.join(good) or 'without names: use an index'}"
    raise UserError(f"{option}: {path_words(at)} has no element '{segment}'{listed}")


def _name(item: Any) -> str:
    if isinstance(item, dict):
        item = item.get("label") or item.get("name")
    return item if isinstance(item, str) else ""


def _key(data: Any, segment: str, annotation: Any, at: Loc, option: str) -> str:
    where = path_words(at) or "a suite"
    if not isinstance(data, dict):
        raise UserError(f"{option}: {where} is a single value, it has no field '{segment}'")
    names = schema.fields(annotation)
    if segment in data or segment in names or schema.child(annotation, segment) is not None:
        return segment
    good = sorted({*names, *data})
    listed = did_you_mean(segment, good) or f"; the fields are {', '.join(good)}"
    raise UserError(f"{option}: {where} has no field '{segment}'{listed}")
