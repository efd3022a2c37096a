"""JSON schemas: of suites for editors, and read for messages and tables of parameters."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedbench.core.registry.kinds import PLURAL

Schema = dict[str, Any]
KINDS = ("defense", "attack", "analysis", "dataset", "model", "signal")  # that a suite names
_TYPES = {
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "string": "text",
    "array": "a list",
    "object": "a mapping",
}
_SHORT = {
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "string": "str",
    "object": "mapping",
    "null": "null",
}
_LOW = {"minimum": ("[", ">="), "ge": ("[", ">="), "exclusiveMinimum": ("(", ">"), "gt": ("(", ">")}
_HIGH = {
    "maximum": ("]", "<="),
    "le": ("]", "<="),
    "exclusiveMaximum": (")", "<"),
    "lt": (")", "<"),
}

# --- reading a schema -----------------------------------------------------------------------------


@cache
def schema_of(model: type[BaseModel]) -> Schema:
    """Return the JSON schema of a model with its references resolved.

    Raises what a plugin's types raise.
    """
    schema = model.model_json_schema()
    resolved: Schema = _resolved(schema, schema.get("$defs", {}))
    return resolved


def _resolved(node: Any, defs: Schema) -> Any:
    """Return a node with its references replaced, without titles; ``model``: the name of one."""
    if isinstance(node, list):
        return [_resolved(part, defs) for part in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        siblings = {key: value for key, value in node.items() if key != "$ref"}
        node = {"model": name, **defs[name], **siblings}
    resolved = {}
    for key, value in node.items():
        if key in ("default", "enum", "const"):
            resolved[key] = value
        elif key != "$defs" and not (key == "title" and isinstance(value, str)):
            resolved[key] = _resolved(value, defs)
    return resolved


def arms(node: Schema) -> list[Schema]:
    """Return the alternatives of a node, without null, each with what the node says outside."""
    if "anyOf" not in node:
        return [] if node.get("type") == "null" else [node]
    outside = {key: value for key, value in node.items() if key not in ("anyOf", "model")}
    alternatives = []
    for part in node["anyOf"]:
        alternatives += arms({**outside, **part})
    return alternatives


def fields(node: Schema) -> Schema:
    """Return name -> schema of the fields of a mapping."""
    nodes: Schema = {}
    for arm in arms(node):
        nodes |= arm.get("properties", {})
    return nodes


def at(model: type[BaseModel], loc: tuple[str | int, ...]) -> Schema:
    """Return the node at a place; empty where the schema says nothing about it."""
    node = schema_of(model)
    for step in loc:
        node = {"anyOf": list(filter(None, (_child(arm, step) for arm in arms(node))))}
    return node


def _child(arm: Schema, step: str | int) -> Schema | None:
    if isinstance(step, int):
        child = arm.get("items")
    else:
        child = arm.get("properties", {}).get(step, arm.get("additionalProperties"))
    return child if isinstance(child, dict) else None


def words(node: Schema) -> str:
    """Return ``an integer in [1, 10] or a number in (0, 1)``, for messages.

    Empty where the schema does not tell.
    """
    return " or ".join(dict.fromkeys(filter(None, map(_words, arms(node)))))


def _words(arm: Schema) -> str:
    if "enum" in arm or "const" in arm:
        *first, last = map(repr, arm.get("enum", [arm.get("const")]))
        return f"{', '.join(first)} or {last}" if first else last
    return f"{_TYPES.get(arm.get('type', ''), '')} {interval(arm)}".strip()


def interval(arm: Schema) -> str:
    """Return ``in (0, 1]`` or ``>= 1``; empty without bounds."""
    low = _bound(arm, _LOW)
    high = _bound(arm, _HIGH)
    if low and high:
        return f"in {low[0]}{low[2]}, {high[2]}{high[0]}"
    return " ".join((low or high)[1:])


def _bound(arm: Schema, signs: dict[str, tuple[str, str]]) -> tuple[str, ...]:
    """Return bracket, sign and value of a bound; empty where there is none."""
    for key, sign in signs.items():
        if key in arm:
            value = arm[key]
            return *sign, f"{value:.15g}" if isinstance(value, float) else str(value)
    return ()


# --- tables of parameters -------------------------------------------------------------------------


def parameters(model: type[BaseModel]) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield name, type, default, range and description of every field."""
    nodes = fields(schema_of(model))
    for field, info in model.model_fields.items():
        name = info.alias or field
        node = nodes.get(name, {})
        yield name, type_name(node), _default(info), range_of(node), info.description or ""


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    if info.default_factory_takes_validated_data:
        return "computed"
    value = info.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "its defaults"
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)


def type_name(node: Schema) -> str:
    """Return ``int``, ``float | null``, ``batchmean | mean``, ``list of int``, a model's name."""
    if "model" in node:
        return str(node["model"])
    if "anyOf" in node:
        return " | ".join(dict.fromkeys(map(type_name, node["anyOf"])))
    if "enum" in node or "const" in node:
        return " | ".join(map(str, node.get("enum", [node.get("const")])))
    if node.get("type") == "array":
        items = node.get("prefixItems", [node.get("items", {})])
        return f"list of {', '.join(dict.fromkeys(map(type_name, items)))}"
    return _SHORT.get(node.get("type", ""), "any")


def range_of(node: Schema) -> str:
    """Return ``(0, 1]`` or ``>= 1``.

    Of a list's elements it is ``each [0, 1)``; of a union ``int in [1, 10], float in (0, 1)``.
    """
    ranges: dict[str, list[str]] = {}
    for arm in arms(node):
        text = interval(arm).removeprefix("in ")
        if isinstance(arm.get("items"), dict) and (inner := range_of(arm["items"])):
            text = f"each {inner.removeprefix('each ')}"
        if text:
            ranges.setdefault(text, []).append(type_name(arm))
    if len(ranges) == 1:
        return next(iter(ranges))
    parts = []
    for text, names in ranges.items():
        preposition = "in " if text[0] in "[(" else ""
        parts.append(f"{' or '.join(names)} {preposition}{text}")
    return ", ".join(parts)


# --- for editors ----------------------------------------------------------------------------------


def suite_schema(
    suite: type[BaseModel], components: dict[str, dict[str, tuple[str, Schema]]]
) -> Schema:
    """Return the JSON schema (draft 2020-12) of suites.

    Args:
        components: kind -> name -> summary, schema of the parameters.
    """
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://github.com/fedbench/fedbench/blob/main/suites/suite.schema.json",
        **suite.model_json_schema(),
    }
    setting = schema["$defs"]["Setting"]["properties"]
    for kind, named in components.items():
        use = "Use" if kind in ("dataset", "model", "signal") else "MethodUse"
        names, conditions = [], [{"$ref": f"#/$defs/{use}"}]
        for name, (summary, params) in sorted(named.items()):
            names.append({"const": name, "description": summary})
            conditions.append(_condition(name, params))
        schema["$defs"][kind] = {
            "allOf": conditions,
            "anyOf": [*names, {"type": "object", "properties": {"name": {"anyOf": names}}}],
        }
        field = setting[kind] if kind in setting else schema["properties"][PLURAL[kind]]
        _point(field, use, f"#/$defs/{kind}")
    return schema


def _condition(name: str, params: Schema) -> Schema:
    """Return the parameters that go with a name; a grid may give the required ones."""
    is_named = {"type": "object", "properties": {"name": {"const": name}}, "required": ["name"]}
    optional = {key: value for key, value in params.items() if key != "required"}
    return {"if": is_named, "then": {"properties": {"params": optional}}}


def _point(node: Any, use: str, target: str) -> None:
    """Let references to a kind of use in a field's schema point to the component's kind."""
    if isinstance(node, dict):
        if node.get("$ref") == f"#/$defs/{use}":
            node["$ref"] = target
        node = list(node.values())
    if isinstance(node, list):
        for part in node:
            _point(part, use, target)
