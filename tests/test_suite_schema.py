"""The JSON schema of suites: what the loader accepts it accepts, so an editor never underlines a suite that runs."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fake_packages import install
from good_suite import GOOD
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from mutants import parsed, suite_mutants, written
from pydantic import BaseModel
from ruamel.yaml import YAML
from suite_shapes import nearly

from fedbench.core.cli.main import cli
from fedbench.core.cli.schema import schema_text
from fedbench.core.contract.errors import UserError
from fedbench.core.registry.components import Registry
from fedbench.core.registry.kinds import KINDS
from fedbench.core.spec.document import read
from fedbench.core.spec.json_schema import DIALECT
from fedbench.core.spec.recipes import recipe_names
from fedbench.core.spec.resolve import load_and_check
from fedbench.core.spec.shipped import shipped_suites
from fedbench.core.spec.suite import SuiteSpec

ROOT = Path(__file__).parent.parent
COMMITTED = ROOT / "suites" / "suite.schema.json"
MODELINE = "# yaml-language-server: $schema="
REGISTRY = Registry.discover()


@cache
def schema() -> dict[str, Any]:
    return json.loads(COMMITTED.read_text(encoding="utf-8"))


def complaints(data: Any, of: dict[str, Any] | None = None) -> list[str]:
    """What the schema has against a suite, as an editor sees its text: a date is a text there."""
    errors = Draft202012Validator(of or schema()).iter_errors(json.loads(json.dumps(data, default=str)))
    return [f"{'.'.join(map(str, e.absolute_path))}: {e.message[:200]}" for e in errors]


def loads(path: Path) -> bool:
    """Whether `fedbench validate --no-data` accepts a file."""
    try:
        load_and_check(path, REGISTRY)
    except UserError:
        return False
    return True


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("schema")


def test_the_committed_schema_is_what_the_command_makes():
    Draft202012Validator.check_schema(schema())
    assert schema()["$schema"] == DIALECT
    assert COMMITTED.read_text(encoding="utf-8") == schema_text(REGISTRY, built_in=True), (
        "write it again: fedbench schema --built-in --output suites/suite.schema.json"
    )


@pytest.mark.parametrize("path", shipped_suites().values(), ids=shipped_suites())
def test_a_shipped_suite_begins_with_its_schema_and_fits_it(path):
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith(MODELINE)
    assert (path.parent / first.removeprefix(MODELINE)).resolve() == COMMITTED
    assert complaints(read(path).data) == []


@given(suite=nearly())
@settings(max_examples=60, deadline=None)
def test_what_the_loader_accepts_the_schema_accepts(folder, suite):
    path = folder / "suite.yaml"
    path.write_text(written(suite))
    if loads(path):
        assert complaints(read(path).data) == []


@given(seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_a_mutant_of_a_shipped_suite_that_loads_fits(folder, seed):
    (mutant,) = suite_mutants(seed, 1)
    path = folder / "mutant.yaml"
    path.write_bytes(mutant.content)
    if loads(path):
        assert complaints(read(path).data) == [], mutant.how


@pytest.mark.slow
def test_the_two_agree_on_both_sides_often_enough_for_that_to_say_something(folder):
    """Of 100 suites of the strategy, the same in every run: refused by both, by the loader alone."""
    seen: Counter[tuple[bool, bool]] = Counter()

    @given(suite=nearly())
    @settings(max_examples=100, deadline=None, database=None, derandomize=True)
    def count(suite):
        path = folder / "counted.yaml"
        path.write_text(written(suite))
        seen[loads(path), not complaints(suite)] += 1

    count()
    assert seen[True, True] >= 30 and seen[False, False] >= 20 and seen[True, False] == 0


BAD = {
    "an unknown field": ("seeds:", "seedz: 1\nseeds:"),
    "another version": ("schema: 1", "schema: 2"),
    "a name that is none": ("- none\n", "- nonne\n"),
    "a parameter out of range": ("sigma: 0.01", "sigma: -1"),
    "a parameter of another component": ("sigma: 0.01", "alpha: 0.01"),
    "a parameter as text": ("sigma: 0.01", "sigma: '0.01'"),
    "a grid out of range": ("params: {sigma: 0.01}", "grid: {sigma: [0.1, -1]}"),
    "a grid of another parameter": ("params: {sigma: 0.01}", "grid: {alpha: [0.1]}"),
    "an attack that something follows": ("- loss-series", "- {name: loss-series, then: [avg-cosine]}"),
    "what follows out of range": ("- none\n", "- [none, {name: grad-noise, params: {sigma: -1}}]\n"),
    "a data set without what it needs": ("dataset: digits", "dataset: {name: image-folder}"),
    "a federation without its size": ("clients: 4\n", "recipe: null\n"),
    "a coalition that is none": ("[pair, half]", "[pairs]"),
    "a floor that is none": ("floors: []", "floors: [nothing]"),
    "a whole number with a fraction": ("rounds: 10", "rounds: 10.5"),
}


@pytest.mark.parametrize(("old", "new"), BAD.values(), ids=BAD)
def test_a_mistake_is_underlined_and_refused_by_the_loader_too(folder, old, new):
    assert GOOD.count(old) == 1
    (folder / "bad.yaml").write_text(GOOD.replace(old, new))
    assert complaints(YAML(typ="safe").load(GOOD)) == []
    assert complaints(read(folder / "bad.yaml").data) != []
    assert not loads(folder / "bad.yaml")


@pytest.mark.parametrize(("old", "new", "message"), [
    ("- none\n", "- [{name: none, then: [placebo]}, grad-sparse]\n", "the first of a list has a `then` of its own"),
    ("schema: 1", "schema_version: 1", "schema_version: unknown field"),
])  # fmt: skip
def test_what_can_be_said_in_one_way_only_is_not_dropped_in_silence(folder, old, new, message):
    (folder / "two_ways.yaml").write_text(GOOD.replace(old, new))
    with pytest.raises(UserError, match=message):
        load_and_check(folder / "two_ways.yaml", REGISTRY)


@pytest.mark.parametrize("recipe", recipe_names())
def test_a_recipe_gives_what_a_federation_needs(recipe):
    data = json.loads(json.dumps(parsed(0)))
    data["settings"][0]["federation"] = {"recipe": recipe, "optimizer": {"lr": 0.1}}
    assert complaints(data) == []
    assert complaints({**data, "settings": [{**data["settings"][0], "federation": {"recipe": "nobody"}}]}) != []


def test_every_component_and_every_parameter_is_there_with_description_and_default():
    defs = schema()["$defs"]
    for kind in (k for k in KINDS if k != "report"):
        for found in REGISTRY.own(kind):
            params = found.load().Params
            fields = defs[f"{kind}.{found.name}"].get("properties", {})
            assert set(fields) == set(params.model_fields), found.name
            for name, field in params.model_fields.items():
                assert fields[name]["description"] == field.description
                assert field.is_required() == ("default" not in fields[name])
    (noise,) = (entry for entry in defs["defense-name"]["anyOf"] if entry["const"] == "grad-noise")
    assert noise["description"] == REGISTRY.get("defense", "grad-noise").component.summary


def models(model: type[BaseModel], found: dict[str, type[BaseModel]]) -> dict[str, type[BaseModel]]:
    """A model and all that its fields are made of."""
    from fedbench.core.spec.schema import arms

    def inside(annotation: Any) -> list[Any]:
        return [b for a in arms(annotation) for b in ([a] if not getattr(a, "__args__", ()) else
                [c for arg in a.__args__ if not isinstance(arg, str) for c in inside(arg)])]  # fmt: skip

    found[model.__name__] = model
    for field in model.model_fields.values():
        for part in inside(field.annotation):
            if isinstance(part, type) and issubclass(part, BaseModel) and part.__name__ not in found:
                models(part, found)
    return found


def test_every_field_of_a_suite_says_what_it_is():
    found = models(SuiteSpec, {})
    assert {"FederationSpec", "Optimizer", "ShadowSpec", "Adversary", "MethodUse", "Limits", "Group"} <= set(found)
    bare = [f"{name}.{field}" for name, model in found.items() for field, info in model.model_fields.items()
            if not info.description]  # fmt: skip
    assert bare == []


PACKAGE = """
    from typing import Annotated, Any
    from fedbench.core import Component, Defense, Params, hookimpl
    from pydantic import BaseModel, BeforeValidator, Field

    def letters(value):
        return len(value) if isinstance(value, str) else value

    class Part(BaseModel):
        depth: int = Field(1, ge=1, description="how deep")

    class Odd(Defense):
        class Params(Params):
            level: int = Field(1, ge=1, le=9, description="how much")
            tags: set[int] = Field(set(), description="which")
            step: float = Field(0.1, multiple_of=0.1, description="a multiple")
            words: Annotated[int, BeforeValidator(letters)] = Field(1, description="as many as there are letters")
            part: Part = Field(Part(), description="a part")

    class Broken(Defense):
        class Params(Params):
            what: int = Field(1, json_schema_extra=lambda schema: 1 / 0, description="raises")

    @hookimpl
    def fedbench_defenses():
        yield Component("odd", "odd_package:Odd", "parameters of every kind")
        yield Component("broken-params", "odd_package:Broken", "cannot describe itself")
"""


@pytest.fixture
def odd(site) -> dict[str, Any]:
    """The schema with somebody's package installed, as printed."""
    install(site, "odd_package", PACKAGE)
    done = CliRunner().invoke(cli, ["schema"])
    assert done.exit_code == 0
    assert "defense 'broken-params' (odd_package 1.0): its Params have no schema: ZeroDivisionError" in done.stderr
    assert done.stderr.rstrip().endswith("any parameters will do")
    return json.loads(done.stdout)


def test_an_installed_package_is_part_of_it_and_leniently(odd, tmp_path):
    def suite(params: str, name: str = "odd") -> str:
        return GOOD.replace("- none\n", f"- {{name: {name}, params: {params}}}\n")

    registry = Registry.discover()
    for params in ("{level: 9}", "{tags: [1, 1]}", "{step: 0.3}", "{words: abc}", "{part: {depth: 2}}"):
        (tmp_path / "suite.yaml").write_text(suite(params))
        assert load_and_check(tmp_path / "suite.yaml", registry)
        assert complaints(read(tmp_path / "suite.yaml").data, odd) == []
    for params in ("{level: 10}", "{level: x}", "{part: {depth: 0}}", "{lvl: 1}"):
        assert complaints(YAML(typ="safe").load(suite(params)), odd) != [], params
    assert complaints(YAML(typ="safe").load(suite("{what: 3, more: 4}", "broken-params")), odd) == []


def test_the_built_in_schema_knows_no_other_package(odd, tmp_path):
    done = CliRunner().invoke(cli, ["schema", "--built-in", "--output", str(tmp_path / "s.json")])
    assert done.exit_code == 0
    assert (tmp_path / "s.json").read_text() == COMMITTED.read_text()
    assert "defense.odd" in odd["$defs"]


def test_the_wheel_brings_the_schema_to_where_its_suites_look_for_it():
    import tomllib

    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert COMMITTED.name in build["package-data"]["fedbench.suites"]
