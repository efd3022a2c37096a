"""Suites: every mistake is one line with its place, what was found and what was expected."""

import math
from importlib import metadata
from pathlib import Path

import pytest
from good_suite import GOOD, edited, write
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from fedbench.core.contract.errors import UserError
from fedbench.core.registry.components import Registry
from fedbench.core.spec import most
from fedbench.core.spec.coalition import Coalition, resolve_coalition
from fedbench.core.spec.document import MAX_BYTES, read
from fedbench.core.spec.load import LoadedSuite, find_suite, load_suite
from fedbench.core.spec.resolve import load_and_check
from fedbench.core.spec.shipped import shipped_suites


def mistakes(folder: Path, text: str | bytes, *overrides: str, registry: Registry | None = None) -> list[str]:
    """The messages, without the folder."""
    path = write(folder, text)
    with pytest.raises(UserError) as caught:
        load_and_check(path, registry, overrides) if registry else load_suite(path, overrides)
    assert all("\n" not in message for message in caught.value.messages)
    return [m.replace(f"{folder}/", "") for m in caught.value.messages]


def test_a_good_suite_loads(tmp_path):
    loaded = load_suite(write(tmp_path, GOOD))
    assert isinstance(loaded, LoadedSuite)
    spec = loaded.spec
    assert (spec.name, spec.seeds, spec.settings[0].federation.rounds) == ("small", [0, 1], 10)
    assert [c.name for c in spec.coalitions_of(spec.settings[0])] == ["pair", "half"]
    assert spec.n_cells(0) == 2 * 2 * 2 * 1
    assert loaded.text == GOOD and loaded.path.name == "suite.yaml"
    assert loaded.position(("defenses", 1, "params", "sigma")) == (17, 40)
    assert loaded.position(("defenses", 1, "params", "absent")) == (17, 24)


# (edit of the good suite, the one message expected)
FIELD_MISTAKES = {
    "unknown field": (("rounds: 10", "rouns: 10\n      rounds: 10"),
        "suite.yaml:10:7: settings[0].federation.rouns: unknown field - did you mean 'rounds'?"),
    "unknown field, none near": (("schema: 1", "schema: 1\nzzz: 1"),
        "suite.yaml:2:1: zzz: unknown field; the fields are schema, name, title, description, seeds, "
        "tuning_seeds, settings, coalitions, defenses, floors, attacks, analyses, signals, limits, published"),
    "missing field": (("      rounds: 10\n", ""),
        "suite.yaml:8:5: settings[0].federation.rounds: required field is missing"),
    "missing at the top": (("name: small\n", ""), "suite.yaml:1:1: name: required field is missing"),
    "text for an integer": (("rounds: 10", "rounds: ten"),
        "suite.yaml:10:15: settings[0].federation.rounds: expected an integer in [1, 1000000], found the text 'ten'"),
    "float for an integer": (("rounds: 10", "rounds: 10.0"),
        "suite.yaml:10:15: settings[0].federation.rounds: expected an integer in [1, 1000000], found 10.0"),
    "bool for an integer": (("clients: 4", "clients: true"),
        "suite.yaml:9:16: settings[0].federation.clients: expected an integer in [1, 100000], found true"),
    "null for an integer": (("batch_size: 20", "batch_size:"),
        "suite.yaml:11:7: settings[0].federation.batch_size: expected an integer in [1, 1000000000], found nothing (null)"),
    "quoted number": (("lr: 0.1", "lr: '0.1'"),
        "suite.yaml:12:34: settings[0].federation.optimizer.lr: expected a number in (0, 1000000], found the text '0.1'"),
    "infinite": (("lr: 0.1", "lr: .inf"),
        "suite.yaml:12:34: settings[0].federation.optimizer.lr: expected a finite number in (0, 1000000], found .inf"),
    "both bounds": (("batch_size: 20", "batch_size: 20\n      participation: 1.5"),
        "suite.yaml:12:22: settings[0].federation.participation: expected a number in (0, 1], found 1.5"),
    "optimiser": (("name: sgd", "name: sdg"),
        "suite.yaml:12:25: settings[0].federation.optimizer.name: expected 'sgd' or 'adam', found the text 'sdg' "
        "- did you mean 'sgd'?"),
    "list for a mapping": (("audit: {every: 5}", "audit: [5]"),
        "suite.yaml:13:12: settings[0].audit: expected a mapping, found a list"),
    "mapping for a list": (("seeds: [0, 1]", "seeds: {a: 1}"),
        "suite.yaml:3:8: seeds: expected a list, found a mapping"),
    "no seeds": (("seeds: [0, 1]", "seeds: []"), "suite.yaml:3:8: seeds: must not be empty"),
    "negative seed": (("seeds: [0, 1]", "seeds: [0, -1]"),
        "suite.yaml:3:12: seeds[1]: expected an integer in [0, 9223372036854775807], found -1"),
    "same seed": (("seeds: [0, 1]", "seeds: [0, 1, 0]"),
        "suite.yaml:3:15: seeds[2]: the seed 0 is already given in line 3: name every seed once, "
        "those of tuning apart from those that are reported"),
    "date": (("seeds: [0, 1]", "seeds: [2001-01-01]"),
        "suite.yaml:3:9: seeds[0]: expected an integer in [0, 9223372036854775807], found the date 2001-01-01"),
    "name": (("name: small", "name: My Suite"),
        "suite.yaml:2:7: name: expected lower-case letters and digits, joined by single '-' or '_', "
        "found the text 'My Suite'"),
    "YAML 1.2 has no `no`": (("name: small", "name: small\ntitle: no\ndescription: 1"),
        "suite.yaml:4:14: description: expected text, found 1"),
    "dirichlet without beta": (("partition: iid", "partition: dirichlet"),
        "suite.yaml:7:16: settings[0].partition: dirichlet needs beta, e.g. {name: dirichlet, beta: 0.5}"),
    "iid with beta": (("partition: iid", "partition: {name: iid, beta: 1}"),
        "suite.yaml:7:16: settings[0].partition: iid takes no beta: remove it, or use the name dirichlet"),
    "beta": (("partition: iid", "partition: {name: dirichlet, beta: 0}"),
        "suite.yaml:7:40: settings[0].partition.beta: expected a number > 0, found 0"),
    "partition name": (("partition: iid", "partition: {name: irid}"),
        "suite.yaml:7:23: settings[0].partition.name: expected 'iid', 'dirichlet', 'dirichlet-sizes' or 'group-bias', found "
        "the text 'irid' - did you mean 'iid'?"),
    "audited rounds": (("every: 5", "every: 11"),
        "suite.yaml:13:20: settings[0].audit.every: expected an integer <= 10 (federation.rounds), found 11"),
    "an earlier word for knowledge": (("audit: {every: 5}", "adversary: {knowledge: full}"),
        "suite.yaml:13:28: settings[0].adversary.knowledge: 'full' is called 'honest', as attacks call it"),
    "targets word": (("every: 5", "targets: all"),
        "suite.yaml:13:22: settings[0].audit.targets: expected 'coalition', 'honest' or 'groups' or a list, "
        "found the text 'all'"),
    "members from elsewhere": (("every: 5", "members_from: hold-out"),
        "suite.yaml:13:27: settings[0].audit.members_from: expected 'training' or 'holdout', found the text 'hold-out' "
        "- did you mean 'holdout'?"),
    "a null of redrawn candidates": (("every: 5", "members_from: holdout, align_nonmembers: false"),
        "suite.yaml:13:12: settings[0].audit: align_nonmembers: false redraws non-members around members: remove it, or "
        "members_from: holdout"),
    "outsiders of all clients together": (("every: 5", "targets: honest, outside: 9"),
        "suite.yaml:13:12: settings[0].audit: outside: all non-members of targets: honest are from outside; say how many by "
        "nonmembers"),
    "no outsiders": (("every: 5", "outside: 0"),
        "suite.yaml:13:22: settings[0].audit.outside: expected an integer in [1, 1000000000], found 0"),
    "floors": (("floors: []", "floors: free-rider"), "suite.yaml:20:9: floors: expected a list, found the text 'free-rider'"),
    "target type": (("every: 5", "targets: [0, a]"),
        "suite.yaml:13:26: settings[0].audit.targets[1]: expected an integer in [0, 100000), found the text 'a'"),
    "target range": (("every: 5", "targets: [0, 4]"),
        "suite.yaml:13:26: settings[0].audit.targets[1]: there is no client 4, federation.clients is 4 "
        "(ids count from 0)"),
    "target twice": (("every: 5", "targets: [1, 1]"),
        "suite.yaml:13:26: settings[0].audit.targets[1]: the client 1 is given twice"),
    "coalition word": (("pair, half", "pair, hlaf"),
        "suite.yaml:14:20: coalitions[1]: unknown coalition 'hlaf' - did you mean 'half'?; expected none, pair, half, "
        "uniform, {name, clients}, {name, fraction} or {name, groups}"),
    "coalition twice": (("pair, half", "pair, pair"),
        "suite.yaml:14:20: coalitions[1]: the coalition 'pair' is already taken in line 14"),
    "coalition without members": (("pair, half", "{name: mine}"),
        "suite.yaml:14:14: coalitions[0]: the coalition 'mine' needs one of clients, fraction and groups; expected none, pair, "
        "half, uniform, {name, clients}, {name, fraction} or {name, groups}"),
    "reserved coalition": (("pair, half", "{name: pair, clients: [2, 3]}"),
        "suite.yaml:14:14: coalitions[0]: 'pair' has fixed members: remove clients or choose another name"),
    "groups of a name": (("pair, half", "{name: pair, groups: [[0], [1]]}"),
        "suite.yaml:14:14: coalitions[0]: 'pair' has fixed members: remove groups or choose another name"),
    "clients and groups": (("pair, half", "{name: mine, clients: [0], groups: [[1], [2]]}"),
        "suite.yaml:14:14: coalitions[0]: the coalition 'mine' needs one of clients, fraction and groups; expected none, pair, "
        "half, uniform, {name, clients}, {name, fraction} or {name, groups}"),
    "one group": (("pair, half", "{name: mine, groups: [[0, 1]]}"),
        "suite.yaml:14:35: coalitions[0].groups: expected at least 2 elements, found 1"),
    "an empty group": (("pair, half", "{name: mine, groups: [[0, 1], []]}"),
        "suite.yaml:14:44: coalitions[0].groups[1]: must not be empty"),
    "groups that overlap": (("pair, half", "{name: mine, groups: [[0, 1], [3, 2, 1]]}"),
        "suite.yaml:14:51: coalitions[0].groups[1][2]: the client 1 belongs to group 1 [0, 1] and to group 2 [3, 2, 1]: "
        "coalitions do not overlap; leave it in one of them"),
    "client twice in a group": (("pair, half", "{name: mine, groups: [[0, 0], [1]]}"),
        "suite.yaml:14:40: coalitions[0].groups[0][1]: the client 0 is given twice"),
    "no such client in a group": (("pair, half", "{name: mine, groups: [[0, 1], [2, 4]]}"),
        "suite.yaml:14:14: coalitions[0]: there is no client 4, federation.clients is 4 (ids count from 0) (setting 'digits')"),
    "groups too large": (("pair, half", "{name: mine, groups: [[0, 1], [2, 3, 4]]}"),
        "suite.yaml:14:14: coalitions[0]: 'mine' has 5 members, but federation.clients is 4 (setting 'digits')"),
    "coalition too large": (("pair, half", "{name: mine, clients: [0, 1, 2, 3, 4]}"),
        "suite.yaml:14:14: coalitions[0]: 'mine' has 5 members, but federation.clients is 4 (setting 'digits')"),
    "coalition outside": (("pair, half", "{name: mine, clients: [1, 9]}"),
        "suite.yaml:14:14: coalitions[0]: there is no client 9, federation.clients is 4 (ids count from 0) "
        "(setting 'digits')"),
    "coalition's client twice": (("pair, half", "{name: mine, clients: [1, 1]}"),
        "suite.yaml:14:40: coalitions[0].clients[1]: the client 1 is given twice"),
    "coalition's share": (("pair, half", "{name: mine, fraction: 1.5}"),
        "suite.yaml:14:37: coalitions[0].fraction: expected a number in (0, 1], found 1.5"),
    "a setting's own coalition": (("audit: {every: 5}", "coalitions: [{name: mine, clients: [4]}]"),
        "suite.yaml:13:18: settings[0].coalitions[0]: there is no client 4, federation.clients is 4 "
        "(ids count from 0)"),
    "no coalition anywhere": (("coalitions: [pair, half]\n", ""),
        "suite.yaml:5:5: settings[0]: no coalitions: give the suite or this setting a list, such as "
        "coalitions: [pair, half]"),
    "label twice": (("- loss-series", "- loss-series\n  - loss-series"),
        "suite.yaml:20:5: attacks[1]: the label 'loss-series' is already taken in line 19: add a label"),
    "empty grid": (("params: {sigma: 0.01}", "grid: {sigma: []}"),
        "suite.yaml:17:38: defenses[1].grid.sigma: must not be empty"),
    "grid is no list": (("params: {sigma: 0.01}", "grid: {sigma: 0.1}"),
        "suite.yaml:17:38: defenses[1].grid.sigma: expected a list, found 0.1"),
    "grid and params": (("params: {sigma: 0.01}", "params: {sigma: 1}, grid: {sigma: [1]}"),
        "suite.yaml:17:5: defenses[1]: 'sigma' is given in both params and grid: keep one"),
    "same grid value": (("params: {sigma: 0.01}", "grid: {sigma: [0.1, 0.1]}"),
        "suite.yaml:17:5: defenses[1]: the label 'grad-noise[sigma=0.1]' is already taken in line 17: add a label"),
    "limit": (("attacks:", "limits: {run_seconds: 0}\nattacks:"),
        "suite.yaml:18:23: limits.run_seconds: expected a number in (0, 100000000], found 0"),
    "newer schema": (("schema: 1", "schema: 2"),
        "suite.yaml:1:9: schema: made for a newer fedbench (schema 2, this one reads 1): upgrade fedbench"),
    "schema true": (("schema: 1", "schema: true"), "suite.yaml:1:9: schema: expected 1, found true"),
    "no use": (("- none", "- 3"), "suite.yaml:16:5: defenses[0]: expected a name or a mapping, found 3"),
    "label": (("- none", "- {name: none, label: a b}"),
        "suite.yaml:16:25: defenses[0].label: expected text without blanks and brackets, found the text 'a b'"),
    "schema as text": (("schema: 1", "schema: '1'"), "suite.yaml:1:9: schema: expected 1, found the text '1'"),
    "duplicate key": (("      rounds: 10", "      rounds: 10\n      clients: 5"),
        "suite.yaml:11:7: duplicate key 'clients', first given in line 9"),
    "number as a key": (("every: 5", "7: 5"), "suite.yaml:13:13: a key must be text, found '7' (put it in quotes)"),
    "list as a key": (("every: 5", "[a]: 5"),
        "suite.yaml:13:13: a key must be text, found a collection (put it in quotes)"),
    "alias of itself": (("seeds: [0, 1]", "seeds: &s [0, *s]"),
        "suite.yaml:3:8: an alias refers to the part it stands in"),
    "tab": (("    partition: iid", "\tpartition: iid"),
        "suite.yaml:7:1: not valid YAML: found character '\\t' that cannot start any token, while scanning for the "
        "next token (indent with spaces, not tabs)"),
    "open list": (("seeds: [0, 1]", "seeds: [0, 1"),
        "suite.yaml:4:9: not valid YAML: expected ',' or ']', but got ':', while parsing a flow sequence"),
    "unknown alias": (("seeds: [0, 1]", "seeds: *s"), "suite.yaml:3:8: not valid YAML: found undefined alias 's'"),
    "two documents": (("defenses:", "---\ndefenses:"),
        "suite.yaml:15:1: not valid YAML: but found another document, expected a single document in the stream"),
    "Python object": (("name: small", "name: !!python/object:os.system x"),
        "suite.yaml:2:7: not valid YAML: could not determine a constructor for the tag "
        "'tag:yaml.org,2002:python/object:os.system'"),
    "control character": (("name: small", "name: sm\x01all"),
        "suite.yaml:2:9: not valid YAML: the character U+0001 is not allowed"),
    "YAML 1.1": (("schema: 1", "%YAML 1.1\n---\nschema: 1"),
        "suite.yaml:1:1: suites are YAML 1.2: remove the %YAML directive"),
}  # fmt: skip


@pytest.mark.parametrize(("edit", "expected"), FIELD_MISTAKES.values(), ids=FIELD_MISTAKES)
def test_each_mistake_is_one_line_with_its_place(tmp_path, edit, expected):
    assert mistakes(tmp_path, edited(edit)) == [expected]


COMPONENT_MISTAKES = {
    "unknown defense": (("name: grad-noise", "name: grad-noize"),
        "suite.yaml:17:12: defenses[1].name: unknown defense 'grad-noize' - did you mean 'grad-noise'?; "),
    "unknown attack": (("- loss-series", "- loss-serie"),
        "suite.yaml:19:5: attacks[0]: unknown attack 'loss-serie' - did you mean 'loss-series'?; the attacks are "),
    "wrong kind": (("- loss-series", "- digits"),
        "suite.yaml:19:5: attacks[0]: unknown attack 'digits' (there is a dataset of this name); the attacks are "),
    "unknown dataset": (("dataset: digits", "dataset: digitz"),
        "suite.yaml:6:14: settings[0].dataset: unknown dataset 'digitz' - did you mean 'digits'?; the datasets are "),
    "unknown model": (("partition: iid", "model: mpl"),
        "suite.yaml:7:12: settings[0].model: unknown model 'mpl' - did you mean 'mlp'?; the models are "),
    "unknown parameter": (("sigma: 0.01", "sigm: 0.01"),
        "suite.yaml:17:33: defenses[1].params.sigm: unknown field - did you mean 'sigma'?"),
    "no parameters": (("- none", "- {name: none, params: {a: 1}}"),
        "suite.yaml:16:27: defenses[0].params.a: unknown field; there are no fields here"),
    "range of a parameter": (("sigma: 0.01", "sigma: -1"),
        "suite.yaml:17:40: defenses[1].params.sigma: expected a number >= 0, found -1"),
    "type of a parameter": (("sigma: 0.01", "sigma: much"),
        "suite.yaml:17:40: defenses[1].params.sigma: expected a number >= 0, found the text 'much'"),
    "a value of a grid": (("params: {sigma: 0.01}", "grid: {sigma: [0.1, -1]}"),
        "suite.yaml:17:44: defenses[1].grid.sigma[1]: expected a number >= 0, found -1"),
    "a dataset's parameter": (("dataset: digits", "dataset: {name: digits, params: {test: 0}}"),
        "suite.yaml:6:44: settings[0].dataset.params.test: expected an integer in [1, 1795], found 0"),
}  # fmt: skip


@pytest.mark.parametrize(("edit", "expected"), COMPONENT_MISTAKES.values(), ids=COMPONENT_MISTAKES)
def test_mistakes_in_components_have_their_place(tmp_path, registry, edit, expected):
    (message,) = mistakes(tmp_path, edited(edit), registry=registry)
    assert message.startswith(expected)
    load_suite(tmp_path / "suite.yaml")  # the file alone has no mistake


def test_all_mistakes_at_once_in_the_order_of_the_file(tmp_path, registry):
    text = edited(
        ("rounds: 10", "rounds: 0"), ("sigma: 0.01", "sigm: 1"), ("pair, half", "pair, hafl"), ("- none", "- nope")
    )  # fmt: skip
    places = [message.split(": ")[0] for message in mistakes(tmp_path, text, registry=registry)]
    assert places == ["suite.yaml:10:15", "suite.yaml:14:20", "suite.yaml:16:5", "suite.yaml:17:33"]


EMPTY = "suite.yaml:1:1: the file is empty, expected a suite (`fedbench list suites` shows examples)"


@pytest.mark.parametrize(("content", "expected"), [
    ("", EMPTY),
    ("# only a comment\n", EMPTY),
    ("- a\n", "suite.yaml:1:1: expected a mapping with schema, name, seeds, settings, defenses, attacks, found a list"),
    ("schema: 1\nname: \xe9\n".encode("latin-1"), "suite.yaml:2:7: not UTF-8 text (byte 0xe9)"),
    (b"#" * (MAX_BYTES + 1), "suite.yaml: larger than 1 MiB, which no suite is"),
    ("[" * 1_000, "suite.yaml:1:51: nested too deeply"),
], ids=["empty", "comment", "list", "latin-1", "large", "deep"])  # fmt: skip
def test_files_that_are_no_suite(tmp_path, content, expected):
    assert mistakes(tmp_path, content) == [expected]


def test_a_suite_of_almost_nothing_lists_all_that_is_missing(tmp_path):
    required = ("schema", "name", "seeds", "settings", "defenses", "attacks")
    expected = [f"suite.yaml:1:1: {field}: required field is missing" for field in required]
    assert mistakes(tmp_path, "title: x") == expected


def test_paths_that_are_no_file(tmp_path):
    cases = {
        tmp_path / "absent.yaml": "absent.yaml: no such file",
        tmp_path: "is a directory, expected a suite file",
        "partial_defense.yaml": "no such file - did you mean the shipped suite 'partial_defense'?",
        "partal-defense": "unknown suite 'partal-defense' - did you mean 'partial_defense'?; the shipped suites are ",
        "no/such": "unknown suite 'no/such'; the shipped suites are ",
        "x" * 5000 + ".yaml": "cannot be read: File name too long",
    }
    for ref, expected in cases.items():
        with pytest.raises(UserError) as caught:
            load_suite(ref)
        assert expected in str(caught.value)


def test_a_byte_order_mark_is_no_mistake(tmp_path):
    assert load_suite(write(tmp_path, b"\xef\xbb\xbf" + GOOD.encode())).spec.name == "small"


@pytest.mark.slow
def test_shipped_suites_are_valid_and_found_by_name(registry):
    assert "partial_defense" in shipped_suites()
    for name, path in shipped_suites().items():
        assert find_suite(name) == path
        load_and_check(name, registry)


def test_suites_in_folders_are_named_by_path(tmp_path, monkeypatch):
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "x.yaml").write_text(GOOD)
    monkeypatch.setattr("fedbench.core.spec.shipped.files", lambda package: tmp_path)
    assert load_suite("papers/x").spec.name == "small"
    with pytest.raises(UserError, match=r"did you mean 'papers/x'\?"):
        load_suite("papers/y")


# --set


def test_overrides_reach_every_part(tmp_path):
    loaded = load_suite(write(tmp_path, GOOD), [
        "seeds=[7]", "settings.digits.federation.rounds=5", "settings.0.dataset.params.test=3",
        "defenses.grad-noise.params.sigma=1e-3", "limits.memory_gb=2", "attacks.loss-series.label=mine",
        "settings.0.partition.name=dirichlet", "settings.0.partition.beta=.inf",
    ])  # fmt: skip
    setting = loaded.spec.settings[0]
    assert loaded.spec.seeds == [7] and setting.federation.rounds == 5
    assert setting.dataset.name == "digits" and setting.dataset.params == {"test": 3}
    assert loaded.spec.defenses[1].params == {"sigma": 0.001} and loaded.spec.limits.memory_gb == 2
    assert loaded.spec.attacks[0].label == "mine" and setting.partition.beta == math.inf
    assert loaded.text == GOOD


def test_an_override_changes_one_place_even_where_the_file_shares_it(tmp_path):
    head, tail = GOOD.split("    federation:\n")
    body, rest = tail.split("    audit")
    text = f"{head}    federation: &f\n{body}  - name: other\n    dataset: digits\n    federation: *f\ncoalitions" + (
        rest.split("coalitions")[1]
    )
    spec = load_suite(write(tmp_path, text), ["settings.other.federation.rounds=3"]).spec
    assert [s.federation.rounds for s in spec.settings] == [10, 3]


@pytest.mark.parametrize(("override", "expected"), [
    ("seeds", "--set seeds: expected PATH=VALUE, such as settings.0.federation.rounds=5"),
    ("a..b=1", "--set a..b=1: expected PATH=VALUE, such as settings.0.federation.rounds=5"),
    ("seed=[1]", "--set seed=[1]: a suite has no field 'seed' - did you mean 'seeds'?"),
    ("settings.digit.name=a", "--set settings.digit.name=a: settings has no element 'digit' - did you mean 'digits'?"),
    ("settings.3.name=a", "--set settings.3.name=a: settings has no element 3, it has 1 (from 0)"),
    ("settings.0.federation.round=1",
     "--set settings.0.federation.round=1: settings[0].federation has no field 'round' - did you mean 'rounds'?"),
    ("name.x=1", "--set name.x=1: name is a single value, it has no field 'x'"),
    ("seeds=[0", "--set seeds=[0: value:1:3: not valid YAML: expected ',' or ']', but got '<stream end>', "
     "while parsing a flow sequence"),
    ("settings.digits.federation.rounds=0",
     "--set settings.digits.federation.rounds=0: settings[0].federation.rounds: expected an integer in [1, 1000000], found 0"),
    ("seeds=[0, x]", "--set seeds=[0, x]: seeds[1]: expected an integer in [0, 9223372036854775807], found the text 'x'"),
])  # fmt: skip
def test_a_bad_override_names_the_option(tmp_path, override, expected):
    assert mistakes(tmp_path, GOOD, override) == [f"suite.yaml: {expected}"]


def test_an_ambiguous_element_needs_an_index(tmp_path):
    text = edited(("- none", "- {name: grad-noise, label: strong}\n  - {name: none, label: strong}"))
    assert mistakes(tmp_path, text, "defenses.strong.name=x") == [
        "suite.yaml: --set defenses.strong.name=x: defenses has several elements 'strong': use an index, from 0"
    ]


# what comes out


def test_resolved_uses_hold_every_parameter_and_expand_grids(tmp_path, registry):
    grid = "{name: grad-noise, label: gn, grid: {sigma: [0.01, 0.1]}}"
    text = edited(("{name: grad-noise, params: {sigma: 0.01}}", grid))
    loaded, resolved = load_and_check(write(tmp_path, text), registry)
    assert [d.label for d in resolved.defenses] == ["none", "gn[sigma=0.01]", "gn[sigma=0.1]"]
    assert [d.params.get("sigma") for d in resolved.defenses] == [None, 0.01, 0.1]
    (noise,) = resolved.defenses[2].make()
    assert noise.params.sigma == 0.1
    assert resolved.defenses[1].distribution == f"fedbench {metadata.version('fedbench')}"
    assert resolved.positions["defense", "gn[sigma=0.01]"] == (17, 5)
    setting = resolved.settings[0]
    assert setting.dataset.params == setting.dataset.load().Params().model_dump(mode="json")
    assert setting.model.name == setting.dataset.load().default_model
    assert [c.name for c in setting.coalitions] == ["pair", "half"]
    assert loaded.spec.n_cells(0) == 2 * 3 * 2


def test_a_later_problem_gets_the_same_form(tmp_path):
    from fedbench.core.spec.document import Problem

    loaded = load_suite(write(tmp_path, GOOD))
    error = loaded.error([Problem(("settings", 0, "dataset"), "too small")])
    assert error.messages == (f"{tmp_path}/suite.yaml:6:14: settings[0].dataset: too small",)


@given(st.integers(2, 50))
def test_named_coalitions(clients):
    assert resolve_coalition("none", clients) == []
    assert resolve_coalition("pair", clients) == [0, 1]
    assert resolve_coalition("half", clients) == list(range(clients // 2))
    assert resolve_coalition("uniform", clients) == list(range(clients))


@given(st.integers(1, 50), st.floats(0.001, 1))
def test_a_share_of_the_clients_is_never_empty_and_never_too_many(clients, fraction):
    members = resolve_coalition(Coalition(name="mine", fraction=fraction), clients)
    assert members == list(range(len(members)))
    assert 1 <= len(members) <= clients and abs(len(members) - fraction * clients) <= 1


def test_explicit_coalitions_are_sorted():
    assert resolve_coalition(Coalition(name="mine", clients=[3, 0]), 5) == [0, 3]


def _places(node, at=()):
    """Every place of a ruamel round-trip document with ruamel's own line and column: another way to the same facts."""
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in items:
        yield (*at, key), node.lc.value(key) if isinstance(node, dict) else node.lc.item(key)
        if isinstance(value, dict | list):
            yield from _places(value, (*at, key))


def test_positions_agree_with_ruamels_round_trip_loader(tmp_path):
    loaded = load_suite(write(tmp_path, GOOD))
    places = list(_places(YAML(typ="rt").load(GOOD)))
    assert len(places) > 25
    for loc, (line, column) in places:
        assert loaded.position(loc) == (line + 1, column + 1), loc


# files made to hurt


def nested(levels: int, width: int = 9) -> str:
    """A mapping whose last value stands for width ** levels scalars."""
    rows = [f"      a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else 'x'] * width)}]\n" for i in range(levels)]
    return "".join(rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("- none", "- name: none\n    params:\n" + nested(9)), ":1:1: its aliases stand for "),
        (("name: small", "name: small\ntitle: " + "[" * 5000 + "]" * 5000), ":3:57: nested too deeply"),
        (("name: small", "name: small\ntitle: " + "[" * 90 + "]" * 90), ":3:57: nested too deeply"),
        (("params: {sigma: 0.01}", f"grid: {{sigma: {list(range(40))}, b: {list(range(40))}}}"), "grid has 1,600 combinations"),
    ],
)
def test_a_file_made_to_hurt_is_refused_at_once(tmp_path, change, message):
    (tmp_path / "suite.yaml").write_text(edited(change))
    with pytest.raises(UserError, match=message):
        load_and_check(tmp_path / "suite.yaml", Registry.discover())


def test_a_few_aliases_are_fine(tmp_path):
    shared = "params: &p {sigma: 0.01}}\n  - {name: grad-noise, label: again, params: *p}"
    (tmp_path / "suite.yaml").write_text(edited(("params: {sigma: 0.01}}", shared)))
    _, resolved = load_and_check(tmp_path / "suite.yaml", Registry.discover())
    assert [d.params for d in resolved.defenses][1] == [d.params for d in resolved.defenses][2]


def test_a_deep_value_of_set_is_refused(tmp_path):
    (tmp_path / "suite.yaml").write_text(GOOD)
    with pytest.raises(UserError, match=r"value:1:51: nested too deeply$"):
        load_suite(tmp_path / "suite.yaml", ["seeds=" + "[" * 3000])


# values that cannot be meant


FEDERATION_BOUNDS = {
    "clients": ("clients: 4", "[1, 100000]"), "rounds": ("rounds: 10", "[1, 1000000]"),
    "batch_size": ("batch_size: 20", "[1, 1000000000]"),
}  # fmt: skip


@pytest.mark.parametrize("value", ["1000000001", "-1", "0", "1" * 90])
@pytest.mark.parametrize("field", FEDERATION_BOUNDS)
def test_a_size_beyond_every_machine_is_one_message(tmp_path, field, value):
    line, interval = FEDERATION_BOUNDS[field]
    (message,) = [m for m in mistakes(tmp_path, edited((line, f"{field}: {value}"))) if f".{field}: " in m]
    found = value if len(value) < 40 else "a number of 90 digits"
    assert message.endswith(f"settings[0].federation.{field}: expected an integer in {interval}, found {found}")


@pytest.mark.parametrize(("edit", "expected"), [
    (("clients: 4", "clients: 1e9"), "federation.clients: expected an integer in [1, 100000], found 1000000000.0"),
    (("batch_size: 20", "batch_size: 1e30"), "federation.batch_size: expected an integer in [1, 1000000000], found 1e+30"),
    (("lr: 0.1", "lr: 1e308"), "optimizer.lr: expected a number in (0, 1000000], found 1e+308"),
    (("lr: 0.1", "lr: 0.1, weight_decay: 1e7"), "optimizer.weight_decay: expected a number in [0, 1000000], found 10000000.0"),
    (("rounds: 10", "rounds: 10\n      max_delay: 1e30"),
     "federation.max_delay: expected an integer in [0, 1000000], found 1e+30"),
    (("rounds: 10", "rounds: 10\n      local_epochs: 100001"),
     "federation.local_epochs: expected an integer in [1, 100000], found 100001"),
    (("attacks:", "limits: {memory_gb: 1e12}\nattacks:"),
     "limits.memory_gb: expected a number in (0, 1000000], found 1000000000000.0"),
    (("attacks:", "limits: {run_seconds: 1e9}\nattacks:"),
     "run_seconds: expected a number in (0, 100000000], found 1000000000.0"),
    (("audit: {every: 5}", "adversary: {clients: 0.0}"),
     "adversary.clients: expected an integer in [1, 100000] or a number in (0, 1), found 0.0"),
    (("partition: iid", "partition: {name: dirichlet, beta: 1e-300}"),
     "partition.beta: expected a number in [0.0001, 1000000], or .inf, found 1e-300"),
    (("every: 5", "shadow: {models: 10001}"), "shadow.models: expected an integer in [2, 10000], found 10001"),
    (("audit: {every: 5}", "groups: [{name: a, rotation: [0, 1e9], fraction: 0.5}, {name: b}]"),
     "groups[0].rotation[1]: expected a number in [-3600, 3600], found 1000000000.0"),
    (("seeds: [0, 1]", f"seeds: {list(range(1001))}"), "seeds: expected at most 1,000 elements, found 1,001"),
    (("params: {sigma: 0.01}", "params: {sigma: 0.01}, then: [none, none, none, none, none, none, none, none, none, none, none]"),
     "defenses[1].then: expected at most 10 elements, found 11"),
])  # fmt: skip
def test_a_value_that_cannot_be_meant_is_one_message_with_its_range(tmp_path, edit, expected):
    (message,) = mistakes(tmp_path, edited(edit))
    assert message.endswith(expected)


def test_a_plan_of_millions_of_cells_is_refused_with_its_count(tmp_path):
    seeds = ("seeds: [0, 1]", f"seeds: {list(range(1000))}")
    grid = ("params: {sigma: 0.01}", f"grid: {{sigma: {[i / 1000 for i in range(1000)]}}}")
    (message,) = mistakes(tmp_path, edited(seeds, grid))
    assert "the suite has 2,002,000 cells (settings x coalitions x defenses x attacks x seeds), at most 1,000,000 can" in message


def test_rows_of_many_grids_are_counted_and_not_made(tmp_path, registry, monkeypatch):
    def made(use):
        raise AssertionError("a row was made")

    grid = "{name: grad-noise, grid: &g {sigma: [1, 2, 3, 4, 5, 6, 7, 8, 9], a: [1, 2, 3, 4, 5, 6, 7, 8, 9]}}"
    uses = f"{grid}" + "\n  - {name: grad-noise, grid: *g}" * 99
    text = edited(("{name: grad-noise, params: {sigma: 0.01}}", uses)).replace("attacks:\n  - loss-series", "attacks: []")
    monkeypatch.setattr("fedbench.core.spec.checks.expand", made)
    monkeypatch.setattr("fedbench.core.spec.resolve.expand", made)
    found = mistakes(tmp_path, text, registry=registry)
    assert "suite.yaml:16:3: defenses: 8,101 rows with all grids, at most 5,000 can be planned: split the suite" in found


def test_of_many_unknown_fields_the_first_are_named_and_the_others_counted(tmp_path):
    many = "".join(f"      unknown_{i}: 1\n" for i in range(8000))
    found = mistakes(tmp_path, edited(("      rounds: 10\n", f"      rounds: 10\n{many}")))
    assert len(found) == 11 and found[9].startswith("suite.yaml:20:7: settings[0].federation.unknown_9: unknown field; the ")
    assert found[10].startswith("suite.yaml:21:7: ") and found[10].endswith("and 7,990 more unknown fields from here on")


def test_a_place_is_found_without_walking_past_its_neighbours(tmp_path):
    """Each mapping is walked once, however many of its fields are asked for: 8,000 unknown fields took 11 s."""
    many = "".join(f"      unknown_{i}: 1\n" for i in range(300))
    path = write(tmp_path, edited(("      rounds: 10\n", f"      rounds: 10\n{many}")))
    document = read(path)
    walks = []

    class Counted(list):
        def __iter__(self):
            walks.append(1)
            return super().__iter__()

    federation = next(v for k, v in document.root.value if k.value == "settings").value[0].value[3][1]
    federation.value = Counted(federation.value)
    assert [document.position(("settings", 0, "federation", f"unknown_{i}"))[0] for i in range(300)] == list(range(11, 311))
    assert len(walks) == 1


def test_of_many_mistakes_the_first_are_printed_and_the_others_counted(tmp_path):
    found = mistakes(tmp_path, edited(("every: 5", f"targets: {[0] * 500}")))
    assert len(found) == 51 and found[-1] == "suite.yaml: and 449 more mistakes"


def test_a_long_number_is_refused_where_it_stands(tmp_path):
    assert mistakes(tmp_path, edited(("seeds: [0, 1]", f"seeds: [0, {'9' * 900_000}]"))) == [
        "suite.yaml:3:12: a number of 900,000 characters, at most 100 are read"
    ]


def test_a_file_of_more_values_than_any_suite_is_refused_before_all_are_read(tmp_path):
    (message,) = mistakes(tmp_path, edited(("seeds: [0, 1]", f"seeds: [{'0, ' * 100_000}0]")))
    assert message.endswith("more than 30,000 values, which no suite has") and message.startswith("suite.yaml:3:")


def test_shipped_suites_are_far_from_every_bound():
    for path in shipped_suites().values():
        spec = load_suite(path).spec
        assert spec.n_cells(2) * 10 <= most.CELLS
        assert max(s.federation.clients for s in spec.settings) * 10 <= most.CLIENTS
