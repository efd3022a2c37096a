"""JSON schemas: of a suite for editors, and read back for messages and tables of parameters."""

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
    """The JSON schema of a model with its references resolved. Raises what a plugin's types raise."""
    schema = model.model_json_schema()
    return _resolved(schema, schema.get("$defs", {}))


def _resolved(node: Any, defs: Schema) -> Any:
    if isinstance(node, list):
        return [_resolved(part, defs) for part in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        return {
            "model": name,
            **_resolved(defs[name], defs),
            **{k: v for k, v in node.items() if k != "$ref"},
        }
    kept = {
        k: v for k, v in node.items() if k != "$defs" and not (k == "title" and isinstance(v, str))
    }
    return {
        k: v if k in ("default", "enum", "const") else _resolved(v, defs) for k, v in kept.items()
    }


def arms(node: Schema) -> list[Schema]:
    """The alternatives of a node, without null; what the node says outside of them holds for each."""
    own = (
        {k: v for k, v in node.items() if k not in ("anyOf", "model")} if "anyOf" in node else node
    )
    found = (
        [arm for part in node["anyOf"] for arm in arms({**own, **part})]
        if "anyOf" in node
        else [node]
    )
    return [arm for arm in found if arm.get("type") != "null"]


def fields(node: Schema) -> Schema:
    """Name -> schema of the fields of a mapping."""
    return {name: field for arm in arms(node) for name, field in arm.get("properties", {}).items()}


def at(model: type[BaseModel], loc: tuple[str | int, ...]) -> Schema:
    """The node at a place; empty where the schema says nothing about it."""
    node = schema_of(model)
    for step in loc:
        node = {"anyOf": list(filter(None, (_child(arm, step) for arm in arms(node))))}
    return node


def _child(arm: Schema, step: str | int) -> Schema | None:
    if isinstance(step, int):
        items = arm.get("items")
        return items if isinstance(items, dict) else None
    more = arm.get("additionalProperties")
    return arm.get("properties", {}).get(step, more if isinstance(more, dict) else None)


def words(node: Schema) -> str:
    """``an integer in [1, 10] or a number in (0, 1)``, for messages; empty where the schema does
    not tell.
    """
    return " or ".join(dict.fromkeys(filter(None, map(_words, arms(node)))))


def _words(arm: Schema) -> str:
    if "enum" in arm or "const" in arm:
        *first, last = map(repr, arm.get("enum", [arm.get("const")]))
        return f"{', '.join(first)} or {last}" if first else last
    return f"{_TYPES.get(arm.get('type', ''), '')} {interval(arm)}".strip()


def interval(arm: Schema) -> str:
    """``in (0, 1]``, ``>= 1``; empty without bounds."""
    low, high = (
        [(*signs[k], _plain(arm[k])) for k in signs if k in arm] for signs in (_LOW, _HIGH)
    )
    if low and high:
        return f"in {low[0][0]}{low[0][2]}, {high[0][2]}{high[0][0]}"
    return " ".join((low or high)[0][1:]) if low or high else ""


def _plain(value: Any) -> str:
    return (
        f"{value:.0f}"
        if isinstance(value, float) and value.is_integer() and abs(value) < 1e15
        else f"{value}"
    )


# --- tables of parameters -------------------------------------------------------------------------


def parameters(model: type[BaseModel]) -> Iterator[tuple[str, str, str, str, str]]:
    """(name, type, default, range, description) of every field."""
    nodes = fields(schema_of(model))
    for name, info in model.model_fields.items():
        node = nodes.get(info.alias or name, {})
        yield (
            info.alias or name,
            type_name(node),
            _default(info),
            range_of(node),
            info.description or "",
        )


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    if info.default_factory_takes_validated_data:
        return "computed"
    value = info.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "its defaults"
    return (
        "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )


def type_name(node: Schema) -> str:
    """``int``, ``float | null``, ``batchmean | mean``, ``list of int``, the name of a model."""
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
    """``(0, 1]`` or ``>= 1``; of a list's elements ``each [0, 1)``; ``int in [1, 10], float in (0,
    1)`` of a union.
    """
    found: dict[str, list[str]] = {}
    for arm in arms(node):
        each = (
            range_of(arm["items"]).removeprefix("each ")
            if isinstance(arm.get("items"), dict)
            else ""
        )
        if text := f"each {each}" if each else interval(arm).removeprefix("in "):
            found.setdefault(text, []).append(type_name(arm))
    if len(found) == 1:
        return next(iter(found))
    return ", ".join(
        f"{' or '.join(names)} {'in ' * (text[0] in '[(')}{text}" for text, names in found.items()
    )


# --- for editors ----------------------------------------------------------------------------------


def suite_schema(
    suite: type[BaseModel], components: dict[str, dict[str, tuple[str, Schema]]]
) -> Schema:
    """The JSON schema (draft 2020-12) of suites. ``components``: kind -> name -> (summary, schema
    of the parameters).
    """
    made = {"$schema": "https://json-schema.org/draft/2020-12/schema", **suite.model_json_schema()}
    setting = made["$defs"]["Setting"]["properties"]
    for kind, found in components.items():
        use = "Use" if kind in ("dataset", "model", "signal") else "MethodUse"
        names = [
            {"const": name, "description": summary} for name, (summary, _) in sorted(found.items())
        ]
        made["$defs"][kind] = {
            "allOf": [
                {"$ref": f"#/$defs/{use}"},
                *(_params(name, params) for name, (_, params) in sorted(found.items())),
            ],
            "anyOf": [
                *names,
                {"type": "array"},
                {"type": "object", "properties": {"name": {"anyOf": names}}},
            ],
        }
        field = setting[kind] if kind in setting else made["properties"][PLURAL[kind]]
        _point(field, use, f"#/$defs/{kind}")
    return made


def _params(name: str, params: Schema) -> Schema:
    named = {"type": "object", "properties": {"name": {"const": name}}, "required": ["name"]}
    # a grid may give them
    given = {key: value for key, value in params.items() if key != "required"}
    return {"if": named, "then": {"properties": {"params": given}}}


def _point(node: Any, use: str, to: str) -> None:
    """Let references to a kind of use in a field's schema point to the component's kind."""
    for part in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        if isinstance(part, dict) and part.get("$ref") == f"#/$defs/{use}":
            part["$ref"] = to
        _point(part, use, to)
