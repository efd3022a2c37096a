"""The JSON schema of suites: what the loader accepts it accepts, so an editor never underlines a
suite that runs.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from fake_packages import install
from good_suite import GOOD
from jsonschema import Draft202012Validator
from mutants import PLAUSIBLE, mutant, refusal, sources, written
from ruamel.yaml import YAML

from fedbench.core.cli.suites import schema_text
from fedbench.core.registry.components import Registry
from fedbench.core.registry.kinds import KINDS
from fedbench.core.spec.document import read
from fedbench.suites import shipped_suites

COMMITTED = Path(__file__).parent.parent / "suites" / "suite.schema.json"
MODELINE = "# yaml-language-server: $schema="
REGISTRY = Registry.discover()


@cache
def validator():
    return Draft202012Validator(json.loads(COMMITTED.read_text(encoding="utf-8")))


def complaints(data, of=None):
    """What the schema has against a suite, as an editor sees its text: a date is a text there."""
    errors = (Draft202012Validator(of) if of else validator()).iter_errors(
        json.loads(json.dumps(data, default=str))
    )
    return [f"{'.'.join(map(str, e.absolute_path))}: {e.message[:200]}" for e in errors]


def loads(folder, text, registry=REGISTRY):
    """Whether `fedbench validate --no-data` accepts it."""
    return refusal(text, folder, registry) is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("schema")


@pytest.fixture(autouse=True, scope="module")
def imported():
    """Every component's module, here and not in each fork that describes one."""
    for kind in KINDS:
        for component in REGISTRY.own(kind):
            component.load()


def test_the_committed_schema_is_what_the_command_makes():
    Draft202012Validator.check_schema(validator().schema)
    assert COMMITTED.read_text(encoding="utf-8") == schema_text(REGISTRY, built_in=True), (
        "write it again: fedbench schema --built-in --output suites/suite.schema.json"
    )


def test_shipped_suites_begin_with_their_schema_and_fit_it():
    first = {
        path: path.read_text(encoding="utf-8").splitlines()[0] for path in shipped_suites().values()
    }
    assert all(line.startswith(MODELINE) for line in first.values())
    assert {
        (path.parent / line.removeprefix(MODELINE)).resolve() for path, line in first.items()
    } == {COMMITTED}
    assert {path.name: said for path in first if (said := complaints(read(path).data))} == {}


def test_what_the_loader_accepts_the_schema_accepts(folder):
    """Of mutants of the small suite, the same in every run, many are accepted by both and many
    refused by both.
    """
    seen = Counter()
    for suite in (mutant(i, PLAUSIBLE, sources()[0]) for i in range(40)):
        accepted = loads(folder, written(suite))
        seen[accepted, not complaints(read(folder / "suite.yaml").data)] += 1
    assert seen[True, False] == 0 and seen[True, True] >= 5 and seen[False, False] >= 5


BAD = {
    "an unknown field": ("seeds:", "seedz: 1\nseeds:"),
    "another version": ("schema: 1", "schema: 2"),
    "an unknown defense": ("- none\n", "- nonne\n"),
    "a parameter out of range": ("sigma: 0.01", "sigma: -1"),
    "a parameter of another component": ("sigma: 0.01", "alpha: 0.01"),
    "a parameter as text": ("sigma: 0.01", "sigma: '0.01'"),
    "an unknown coalition": ("[pair, half]", "[pairs]"),
    "a whole number with a fraction": ("rounds: 10", "rounds: 10.5"),
}


def test_mistakes_are_underlined_and_refused_by_the_loader_too(folder):
    assert complaints(YAML(typ="safe").load(GOOD)) == []
    wrong = {how: GOOD.replace(old, new) for how, (old, new) in BAD.items()}
    assert GOOD not in wrong.values()
    accepted = {
        how: (loads(folder, text), not complaints(read(folder / "suite.yaml").data))
        for how, text in wrong.items()
    }
    assert accepted == dict.fromkeys(BAD, (False, False))


PACKAGE = """
    from fedbench.core import Component, Defense, Params, hookimpl
    from pydantic import BaseModel, Field

    class Part(BaseModel):
        depth: int = Field(1, ge=1, description="how deep")

    class Odd(Defense):
        class Params(Params):
            level: int = Field(1, ge=1, le=9, description="how much")
            part: Part = Field(Part(), description="a part")

    class Broken(Defense):
        class Params(Params):
            what: int = Field(1, json_schema_extra=lambda schema: 1 / 0, description="raises")

    @hookimpl
    def fedbench_defenses():
        yield Component("odd", "odd_package:Odd", "parameters of every kind")
        yield Component("broken-params", "odd_package:Broken", "cannot describe itself")
"""


def test_an_installed_package_is_part_of_it(site, tmp_path, words_of):
    install(site, "odd_package", PACKAGE)
    said = words_of("schema", "--output", tmp_path / "all.json")
    assert "its Params have no schema: ZeroDivisionError" in said
    assert "any parameters will do" in said
    everything, registry = json.loads((tmp_path / "all.json").read_text()), Registry.discover()

    def suite(params, name="odd"):
        return GOOD.replace("- none\n", f"- {{name: {name}, params: {params}}}\n")

    def accepted(text):
        return loads(tmp_path, text, registry), not complaints(
            YAML(typ="safe").load(text), everything
        )

    good = ("{level: 9}", "{part: {depth: 2}}")
    bad = ("{level: 10}", "{level: x}", "{part: {depth: 0}}", "{lvl: 1}")
    assert {p: accepted(suite(p)) for p in good} == dict.fromkeys(good, (True, True))
    assert {p: accepted(suite(p)) for p in bad} == dict.fromkeys(bad, (False, False))
    assert accepted(suite("{what: 3, more: 4}", "broken-params"))[1]
    words_of("schema", "--built-in", "--output", tmp_path / "own.json")
    assert (tmp_path / "own.json").read_text() == COMMITTED.read_text()
