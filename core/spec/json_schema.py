"""The JSON schema of a suite: what an editor completes, explains and underlines. It refuses nothing that the loader accepts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from fedbench.core.registry.kinds import PLURAL
from fedbench.core.spec.coalition import NAMED
from fedbench.core.spec.recipes import recipe_names
from fedbench.core.spec.suite import SuiteSpec

DIALECT = "https://json-schema.org/draft/2020-12/schema"
KINDS = ("defense", "attack", "analysis", "dataset", "model", "signal")  # what a suite names
_ROWS = ("defense", "attack", "analysis")  # what it lists with labels and grids
_SHORT = {"Coalition": list(NAMED), "Partition": ["iid"], "Schedule": ["constant", "cosine"]}  # what may stand for the mapping
_SURE = frozenset({
    "any", "bool", "default", "definition-ref", "definitions", "dict", "enum", "float", "int", "list", "literal", "model",
    "model-field", "model-fields", "none", "nullable", "str", "tagged-union", "tuple", "union", "function-after",
})  # fmt: skip

Schema = dict[str, Any]


@dataclass(frozen=True)
class Described:
    """A component as a schema knows it; ``params``: None where its parameters are not known, so that any will do."""

    name: str
    summary: str
    params: Schema | None


class _Untitled(GenerateJsonSchema):
    """Without the titles that pydantic makes of names, and without warnings: what cannot be said is left out."""

    def render_warning_message(self, kind: Any, detail: str) -> str | None:
        return None

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class _Lenient(_Untitled):
    """Constrains what is sure. A validator of somebody's that runs first may take what its field's type does not; and
    types that are written as text, or as a list with repetitions, have forms that no schema knows."""

    def generate_inner(self, schema: Any) -> JsonSchemaValue:
        return super().generate_inner(schema) if schema["type"] in _SURE else {}


def params_schema(params: type[BaseModel], at: str) -> str:
    """The JSON schema of a component's parameters, defined as ``at`` in a suite's; as JSON: it travels between processes."""
    made = params.model_json_schema(schema_generator=_Lenient, ref_template=f"#/$defs/{at}/$defs/{{model}}")
    if any(field.validation_alias for field in params.model_fields.values()):  # which of the names counts is the class's to say
        made = {k: v for k, v in made.items() if k not in ("required", "additionalProperties")}
    return json.dumps(_cleaned(made))


def suite_schema(components: Mapping[str, list[Described]], floors: list[str]) -> Schema:
    """Of suites that use these components, by kind; ``floors``: the names that ``floors`` may list."""
    made = SuiteSpec.model_json_schema(schema_generator=_Untitled)
    defs = _cleaned(made.pop("$defs"))
    uses = {name: defs.pop(name) for name in ("Use", "MethodUse")}
    for name, short in _SHORT.items():
        defs[name] = {"description": defs[name].pop("description"), "anyOf": [{"enum": short}, defs[name]]}
    _optional_with_recipe(defs)
    for kind in KINDS:
        defs |= _uses(kind, components.get(kind, []), uses)
    _refer(defs["Setting"]["properties"], {"dataset": _the, "model": _or_null})
    top = _cleaned(made)["properties"]
    _refer(top, {PLURAL[kind]: _all for kind in ("defense", "attack", "signal")} | {"analyses": _all_or_null})
    names = {"type": "array", "items": {"enum": sorted(floors)}}
    top["floors"]["anyOf"] = [{**branch, **names} if branch["type"] == "array" else branch for branch in top["floors"]["anyOf"]]
    head = {"$schema": DIALECT, "title": "fedbench suite", "description": "What `fedbench run` reads."}
    whole = {"type": "object", "properties": top, "required": made["required"], "additionalProperties": False}
    return head | whole | {"$defs": defs}


def _refer(properties: Schema, how: Mapping[str, Callable[[Schema, str], Schema]]) -> None:
    """Let the fields that name components point to the definitions of their kinds."""
    kinds = {**{PLURAL[kind]: kind for kind in KINDS}, "dataset": "dataset", "model": "model"}
    for name, change in how.items():
        properties[name] = change(properties[name], kinds[name])


def _the(field: Schema, kind: str) -> Schema:
    return {"description": field["description"], "allOf": [{"$ref": f"#/$defs/{kind}"}]}


def _or_null(field: Schema, kind: str) -> Schema:
    return {**field, "anyOf": [{"$ref": f"#/$defs/{kind}"}, {"type": "null"}]}


def _all(field: Schema, kind: str) -> Schema:
    return {**field, "items": {"$ref": f"#/$defs/{kind}"}}


def _all_or_null(field: Schema, kind: str) -> Schema:
    return {**field, "anyOf": [_all(b, kind) if b["type"] == "array" else b for b in field["anyOf"]]}


def _uses(kind: str, components: list[Described], uses: Mapping[str, Schema]) -> Schema:
    """Definitions: ``KIND`` in every form that a suite may give it, and ``KIND.NAME``, the parameters of each."""
    listed = sorted(components, key=lambda c: c.name)
    known = [c for c in listed if c.params is not None]
    name, part, row = _ref(f"{kind}-name"), _ref(f"{kind}-use"), _ref(f"{kind}-row")
    use = _mapping(uses["Use"], f"a {kind} by name, with parameters", kind, known, grid=False)
    defs: Schema = {f"{kind}-name": {"anyOf": [{"const": c.name, "description": c.summary} for c in listed]}, f"{kind}-use": use}
    # what is required may come from a grid, so that is said where the mapping is known
    defs |= {f"{kind}.{c.name}": {k: v for k, v in c.params.items() if k != "required"} for c in known if c.params is not None}
    if kind not in _ROWS:
        return {kind: {"anyOf": [name, part]}} | defs
    method = _mapping(uses["MethodUse"], f"a {kind}; a grid makes one row of every combination of its values", kind, known, True)
    then = method["properties"]["then"]
    then |= {"items": {"anyOf": [name, part]}, "maxItems": then["maxItems"] if kind == "defense" else 0}
    in_order = {
        "type": "array", "description": "one row: all of these, in this order", "minItems": 1, "maxItems": 1 + then["maxItems"],
        "prefixItems": [{"anyOf": [name, row]}], "items": then["items"],
    }  # fmt: skip
    return {kind: {"anyOf": [name, row, in_order]}, f"{kind}-row": method} | defs


def _mapping(form: Schema, description: str, kind: str, known: list[Described], grid: bool) -> Schema:
    """A use as a mapping: its fields, and for each name the parameters that go with it."""
    fields = {name: dict(field) for name, field in form["properties"].items()}
    fields["name"] = {"description": fields["name"]["description"], "allOf": [_ref(f"{kind}-name")]}
    return {**form, "description": description, "properties": fields, "allOf": [_when(kind, c, grid) for c in known]}


def _when(kind: str, component: Described, grid: bool) -> Schema:
    """What holds of a use of this component."""
    at, params = f"{kind}.{component.name}", component.params or {}
    then: Schema = {"properties": {"params": _ref(at)}}
    if grid:
        lists = {n: {"type": "array", "minItems": 1, "items": _ref(f"{at}/properties/{n}")} for n in params.get("properties", {})}
        closed = {} if params.get("additionalProperties", True) else {"additionalProperties": False}
        then["properties"]["grid"] = {"properties": lists, **closed}
    if "required" in params:
        given = {"required": ["params"], "properties": {"params": {"required": params["required"]}}}
        then["anyOf"] = [given, {"required": ["grid"]}] if grid else [given]
    return {"if": {"properties": {"name": {"const": component.name}}, "required": ["name"]}, "then": then}


def _optional_with_recipe(defs: Schema) -> None:
    """A recipe fills in what a federation, and its optimiser, leave out."""
    federation, optimizer = defs["FederationSpec"], defs["Optimizer"]
    names = list(recipe_names())
    field = federation["properties"]["recipe"]
    field["anyOf"] = [{"enum": names}, {"type": "null"}]
    stated = {"properties": {"recipe": {"enum": names}}, "required": ["recipe"]}
    asked = {"required": federation.pop("required"), "properties": {"optimizer": {"required": optimizer.pop("required")}}}
    federation |= {"if": stated, "else": asked}


def _cleaned(schema: Any) -> Any:
    """Without the titles of models, and without multiples of fractions: what pydantic rounds, a schema does not."""
    if isinstance(schema, list):
        return [_cleaned(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    drop = {"title": str, "multipleOf": float}
    kept = {k: v for k, v in schema.items() if not (k in drop and isinstance(v, drop[k]))}
    return {k: v if k in ("default", "const", "enum", "examples") else _cleaned(v) for k, v in kept.items()}


def _ref(at: str) -> Schema:
    return {"$ref": f"#/$defs/{at}"}
