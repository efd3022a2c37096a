"""Suite files: every mistake is one line with its place, what was found and what was expected."""

import math
import re
from importlib import metadata
from operator import attrgetter
from pathlib import Path

import pytest
from good_suite import GOOD, edited, write
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from fedbench.core import UserError
from fedbench.core.contract.hooks import DISTRIBUTION
from fedbench.core.registry.components import Registry
from fedbench.core.spec.document import MAX_BYTES
from fedbench.core.spec.federation import FederationSpec, recipe_names
from fedbench.core.spec.load import LoadedSuite, open_document, validate
from fedbench.core.spec.resolve import load_and_check
from fedbench.core.spec.setting import NAMED, Coalition, resolve_coalition


def load_suite(ref: str | Path, overrides: tuple[str, ...] | list[str] = ()) -> LoadedSuite:
    """The suite of a file or a shipped name, without a look at its components."""
    document = open_document(ref, overrides)
    spec, problems = validate(document)
    if spec is None or problems:
        raise document.error(problems)
    return LoadedSuite(spec, document, tuple(overrides))


def mistakes(
    folder: Path, text: str | bytes, *overrides: str, registry: Registry | None = None
) -> list[str]:
    """The messages without the folder."""
    path = write(folder, text)
    with pytest.raises(UserError) as caught:
        load_and_check(path, registry, overrides) if registry else load_suite(path, overrides)
    assert all("\n" not in message for message in caught.value.messages)
    return [m.replace(f"{folder}/", "") for m in caught.value.messages]


def test_a_good_suite_loads_and_knows_the_place_of_everything(tmp_path):
    # a byte order mark is no mistake
    loaded = load_suite(write(tmp_path, b"\xef\xbb\xbf" + GOOD.encode()))
    spec = loaded.spec
    assert (spec.name, spec.seeds, spec.settings[0].federation.rounds, loaded.text) == (
        "small",
        [0, 1],
        10,
        GOOD,
    )
    assert [c.name for c in spec.coalitions_of(spec.settings[0])] == ["pair", "half"]
    assert spec.n_cells(0) == 2 * 2 * 2 * 1 and spec.n_cells(3) == 2 * 5 * 2 * 1
    assert loaded.position(("defenses", 1, "params", "absent")) == (17, 24)
    places = dict(_places(YAML(typ="rt").load(GOOD)))
    assert len(places) > 25
    assert {loc: loaded.position(loc) for loc in places} == {
        loc: (row + 1, column + 1) for loc, (row, column) in places.items()
    }


def _places(node, at=()):
    """(place, line and column) of a document as ruamel's round-trip loader knows them."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        yield (*at, key), node.lc.value(key) if isinstance(node, dict) else node.lc.item(key)
        if isinstance(value, dict | list):
            yield from _places(value, (*at, key))


SEED = "expected an integer in [0, 9223372036854775807], found"
ROUNDS = "expected an integer in [1, 1000000], found"

# edits of the good suite -> all of its messages, in the order of the file
FIELDS = {
    "names of fields": (
        [
            ("schema: 1", "schema: 1\nzzz: 1"),
            ("name: small\n", ""),
            ("      rounds:", "      rouns:"),
        ],
        [
            "1:1: name: required field is missing",
            "2:1: zzz: unknown field; the fields are schema, name, title, description, seeds, "
            "tuning_seeds, settings, coalitions, "
            "defenses, floors, attacks, adaptive, analyses, signals, limits, published",
            "8:5: settings[0].federation.rounds: required field is missing",
            "10:7: settings[0].federation.rouns: unknown field - did you mean 'rounds'?",
        ],
    ),
    "types of numbers": (
        [
            ("clients: 4", "clients: true"),
            ("rounds: 10", "rounds: ten"),
            ("batch_size: 20", "batch_size:"),
            ("lr: 0.1", "lr: '0.1'"),
            ("name: sgd", "name: sdg"),
        ],
        [
            "9:16: settings[0].federation.clients: expected an integer in [1, 100000], found true",
            f"10:15: settings[0].federation.rounds: {ROUNDS} the text 'ten'",
            "11:7: settings[0].federation.batch_size: expected an integer in [1, 1000000000], "
            "found nothing (null)",
            "12:25: settings[0].federation.optimizer.name: expected 'sgd' or 'adam', found the "
            "text 'sdg' - did you mean 'sgd'?",
            "12:34: settings[0].federation.optimizer.lr: expected a number in (0, 1000000], found "
            "the text '0.1'",
        ],
    ),
    "ranges of numbers": (
        [
            ("clients: 4", "clients: 1e9"),
            ("rounds: 10", f"rounds: {'1' * 30}"),
            ("batch_size: 20", "batch_size: 0"),
            ("lr: 0.1}", "lr: .inf, weight_decay: 1e7}\n      participation: 1.5"),
        ],
        [
            "9:16: settings[0].federation.clients: expected an integer in [1, 100000], found "
            "1000000000.0",
            f"10:15: settings[0].federation.rounds: {ROUNDS} {'1' * 30}",
            "11:19: settings[0].federation.batch_size: expected an integer in [1, 1000000000], "
            "found 0",
            "12:34: settings[0].federation.optimizer.lr: expected a number in (0, 1000000], found "
            "inf",
            "12:54: settings[0].federation.optimizer.weight_decay: expected a number in [0, "
            "1000000], found 10000000.0",
            "13:22: settings[0].federation.participation: expected a number in (0, 1], found 1.5",
        ],
    ),
    "seeds": (
        [("seeds: [0, 1]", "seeds: [0, -1, 2001-01-01, x, 0]\ntuning_seeds: [1, 0, 1]")],
        [
            f"3:12: seeds[1]: {SEED} -1",
            f"3:16: seeds[2]: {SEED} the date 2001-01-01",
            f"3:28: seeds[3]: {SEED} the text 'x'",
            "3:31: seeds[4]: '0' is already given in line 3",
            "4:19: tuning_seeds[1]: '0' is already given in line 3",
            "4:22: tuning_seeds[2]: '1' is already given in line 4",
        ],
    ),
    "kinds of values": (
        [
            ("seeds: [0, 1]", "seeds: {a: 1}\ntuning_seeds: 100\nlimits: {run_seconds: 0}"),
            ("audit: {every: 5}", "audit: [5]"),
            ("name: small", "name: My Suite\ntitle: no\ndescription: 1"),
            ("floors: []", "floors: free-rider"),
        ],
        [
            "2:7: name: expected lower-case letters and digits, joined by single '-' or '_', found "
            "the text 'My Suite'",
            "4:14: description: expected text, found 1",
            "5:8: seeds: expected a list, found a mapping",
            "6:15: tuning_seeds: expected a list, found 100",
            "7:23: limits.run_seconds: expected a number in (0, 100000000], found 0",
            "17:12: settings[0].audit: expected a mapping, found a list",
            "24:9: floors: expected a list, found the text 'free-rider'",
        ],
    ),
    "empty lists": (
        [("seeds: [0, 1]", "seeds: []"), ("  - loss-series\n", "")],
        [
            "3:8: seeds: must not be empty",
            "18:1: attacks: expected a list, found nothing (null)",
        ],
    ),
    "no coalition anywhere": (
        [("coalitions: [pair, half]\n", "")],
        [
            "5:5: settings[0]: no coalitions: give the suite or this setting a list, such as "
            "coalitions: [pair, half]",
        ],
    ),
    "coalitions of one client": (
        [("clients: 4", "clients: 1")],
        [
            f"14:{14 + 6 * i}: coalitions[{i}]: '{name}' needs at least 2 clients, but "
            "federation.clients is 1 (setting 'digits')"
            for i, name in enumerate(("pair", "half"))
        ],
    ),
    "lists that are too long": (
        [
            ("seeds: [0, 1]", f"seeds: {list(range(1001))}"),
            ("sigma: 0.01}", "sigma: 0.01}, then: [none" + ", none" * 10 + "]"),
        ],
        [
            "3:8: seeds: expected at most 1,000 elements, found 1,001",
            "17:53: defenses[1].then: expected at most 10 elements, found 11",
        ],
    ),
    "more mistakes than are printed": (
        [("seeds: [0, 1]", f"seeds: {[0] * 500}")],
        [
            *(f"3:{9 + 3 * i}: seeds[{i}]: '0' is already given in line 3" for i in range(1, 51)),
            " and 449 more mistakes",
        ],
    ),
    "another schema": (
        [("schema: 1", "schema: 2")],
        ["1:9: schema: expected an integer in [1, 1], found 2"],
    ),
}


@pytest.mark.parametrize(("edits", "expected"), FIELDS.values(), ids=FIELDS)
def test_all_mistakes_are_listed_with_their_places_in_the_order_of_the_file(
    tmp_path, edits, expected
):
    found = [message.removeprefix("suite.yaml:") for message in mistakes(tmp_path, edited(*edits))]
    assert found == expected


def table(text: str) -> dict[str, str]:
    """Row -> its message, which stands indented below it."""
    rows = (row.partition("\n") for row in re.split(r"\n(?! )", text.strip()))
    return {row: " ".join(said.split()) for row, _, said in rows}


# fields of a setting -> the one message; all of these settings stand in one suite
SETTINGS = table("""
partition: dirichlet
    settings[{}].partition: dirichlet needs beta, e.g. {name: dirichlet, beta: 0.5}
partition: dirichlet-sizes
    settings[{}].partition: dirichlet-sizes needs beta, e.g. {name: dirichlet-sizes, beta: 0.5}
partition: group-bias
    settings[{}].partition: group-bias needs bias, e.g. {name: group-bias, bias: 0.5}
partition: {name: iid, beta: 1}
    settings[{}].partition: iid takes no beta: remove it, or use the name dirichlet
partition: {name: iid, bias: 1}
    settings[{}].partition: iid takes no bias: remove it, or use the name group-bias
partition: {name: dirichlet, beta: 0}
    settings[{}].partition.beta: expected a number >= 0.0001, found 0
partition: {name: irid}
    settings[{}].partition.name: expected 'iid', 'dirichlet', 'dirichlet-sizes', 'group-bias' or
    'given', found the text 'irid' - did you mean 'iid'?
audit: {every: 11}
    settings[{}].audit.every: expected an integer <= 10 (federation.rounds), found 11
audit: {targets: all}
    settings[{}].audit.targets: expected 'coalition', 'honest' or 'groups' or a list, found the
    text 'all'
audit: {targets: [0, a]}
    settings[{}].audit.targets[1]: expected an integer in [0, 100000), found the text 'a'
audit: {targets: [0, 4]}
    settings[{}].audit.targets[1]: there is no client 4, federation.clients is 4 (ids count from
    0)
audit: {targets: [1, 1]}
    settings[{}].audit: the client 1 is given twice
audit: {targets: groups}
    settings[{}]: audit.targets: groups needs groups: list the setting's groups of clients
audit: {members_from: hold-out}
    settings[{}].audit.members_from: expected 'training' or 'holdout', found the text 'hold-out'
    - did you mean 'holdout'?
audit: {members_from: holdout, align_nonmembers: false}
    settings[{}].audit: align_nonmembers: false redraws non-members around members: remove it,
    or members_from: holdout
audit: {targets: honest, align_nonmembers: false}
    settings[{}].audit: align_nonmembers: false redraws per client; targets: honest has none
audit: {targets: honest, outside: 9}
    settings[{}].audit: outside: all non-members of targets: honest are from outside; say how
    many by nonmembers
audit: {members: 9}
    settings[{}].audit: members goes with targets: honest or groups: remove it (all of a
    client's samples are asked about)
audit: {outside: 0}
    settings[{}].audit.outside: expected an integer in [1, 1000000000], found 0
audit: {references: 0}
    settings[{}].audit.references: expected an integer in [1, 100000] or 'all', found 0
audit: {references: some}
    settings[{}].audit.references: expected an integer in [1, 100000] or 'all', found the text
    'some'
audit: {shadow: {models: 10001}}
    settings[{}].audit.shadow.models: expected an integer in [2, 10000], found 10001
adversary: {knowledge: full}
    settings[{}].adversary.knowledge: expected 'none', 'own', 'honest' or 'rule', found the text
    'full'
adversary: {clients: 0.0}
    settings[{}].adversary.clients: expected an integer in [1, 100000] or a number in (0, 1),
    found 0.0
adversary: {clients: 4}
    settings[{}].adversary.clients: 4 malicious clients of 4 leave no target: use fewer, or more
    federation.clients
adversary: {start_round: 11}
    settings[{}].adversary.start_round: expected an integer <= 10 (federation.rounds), found 11
adversary: {clients: 2}, audit: {targets: [1, 2]}
    settings[{}].audit.targets[1]: the client 2 is malicious (the last 2 are)
coalitions: [{name: mine, clients: [4]}]
    settings[{}].coalitions[0]: there is no client 4, federation.clients is 4 (ids count from 0)
groups: [{name: a, rotation: [0, 1e9], fraction: 0.5}, {name: b}]
    settings[{}].groups[0].rotation[1]: expected a number in [-3600, 3600], found 1000000000.0
groups: [{name: a, rotation: [0, 9], fraction: 0.5}, {name: a, rotation: [0, 1]}]
    settings[{}]: two groups have the same name: a, a
thresholds: [0.8, 0.5]
    settings[{}]: thresholds goes from 0.8 to 0.5: give the smaller value first
""")
SHARES = table(
    """
validation: 1
    settings[{}].federation.validation: expected a number in [0, 1), found 1
validation: 0.7, test: 0.3
    settings[{}].federation: validation 0.7 and test 0.3 leave nothing to train on: lower them
validation_on: nonmembers
    settings[{}].federation: validation_on: nonmembers validates on the test part: give test a
    share, and no validation
recipe: fedmai
    settings[{}].federation.recipe: unknown recipe 'fedmai' - did you mean 'fedmia'?; the
    recipes are RECIPES
max_delay: 1e30
    settings[{}].federation.max_delay: expected an integer in [0, 1000000], found 1e+30
local_epochs: 100001
    settings[{}].federation.local_epochs: expected an integer in [1, 100000], found 100001
optimizer: {lr: 0.1, name: adam, momentum: 0.9}
    settings[{}].federation.optimizer: adam takes no momentum: remove it, or set betas
optimizer: {lr: 0.1, keep_state: true}
    settings[{}].federation.optimizer: sgd takes neither betas nor keep_state: remove them, or
    use the name adam
optimizer: {lr: 0.1, schedule: exponential}
    settings[{}].federation.optimizer.schedule: exponential needs a factor
optimizer: {lr: 0.1, schedule: {name: cosine, factor: 0.5}}
    settings[{}].federation.optimizer.schedule: cosine takes no factor
optimizer: {lr: 0.1, schedule: {name: milestones, factor: 0.1}}
    settings[{}].federation.optimizer.schedule: milestones needs rounds
optimizer: {lr: 0.1, schedule: {name: exponential, factor: 0.1, rounds: [3]}}
    settings[{}].federation.optimizer.schedule: exponential takes no rounds
""".replace("RECIPES", ", ".join(recipe_names()))
)


def test_the_mistakes_of_many_settings_are_all_found(tmp_path):
    sizes = "clients: 4, rounds: 10, batch_size: 20"
    row = "  - {{name: s{}, dataset: digits, federation: {{{}}}, {}}}\n"
    rows = [
        row.format(i, f"{sizes}, optimizer: {{lr: 0.1}}", more) for i, more in enumerate(SETTINGS)
    ]
    plain = [
        f"{sizes}, {more}" + ("" if "optimizer" in more else ", optimizer: {lr: 0.1}")
        for more in SHARES
    ]
    rows += [row.format(i, more, "audit: {}") for i, more in enumerate(plain, len(rows))]
    head, tail = GOOD.split("settings:\n")
    found = mistakes(
        tmp_path, f"{head}settings:\n{''.join(rows)}coalitions{tail.split('coalitions')[1]}"
    )
    expected = [
        message.replace("{}", str(i))
        for i, message in enumerate([*SETTINGS.values(), *SHARES.values()])
    ]
    assert [message.split(": ", 1)[1] for message in found] == expected
    assert [int(message.split(":")[1]) for message in found] == list(range(5, 5 + len(rows)))


# a coalition -> the rest of its message
COALITIONS = table("""
hlaf
    : the coalition 'hlaf' needs one of clients, fraction and groups - did you mean 'half'?;
    expected none, pair, half, uniform, {name, clients}, {name, fraction} or {name, groups}
{name: a}
    : the coalition 'a' needs one of clients, fraction and groups; expected none, pair, half,
    uniform, {name, clients}, {name, fraction} or {name, groups}
{name: b, clients: [0], groups: [[1], [2]]}
    : the coalition 'b' needs one of clients, fraction and groups; expected none, pair, half,
    uniform, {name, clients}, {name, fraction} or {name, groups}
{name: pair, clients: [2, 3]}
    : 'pair' has fixed members: remove clients or choose another name
{name: half, groups: [[0], [1]]}
    : 'half' has fixed members: remove groups or choose another name
{name: c, fraction: 1.5}
    .fraction: expected a number in (0, 1], found 1.5
{name: d, groups: [[0, 1]]}
    .groups: expected at least 2 elements, found 1
{name: e, groups: [[0, 1], []]}
    .groups[1]: must not be empty
{name: f, groups: [[0, 1], [3, 2, 1]]}
    : the client 1 is given twice
{name: g, groups: [[0, 0], [1]]}
    : the client 0 is given twice
{name: h, clients: [1, 1]}
    : the client 1 is given twice
{name: i, groups: [[0, 1], [2, 4]]}
    : there is no client 4, federation.clients is 4 (ids count from 0) (setting 'digits')
{name: j, clients: [1, 4]}
    : there is no client 4, federation.clients is 4 (ids count from 0) (setting 'digits')
{name: k, clients: [0, 1, 2, 3, 4]}
    : 'k' has 5 members, but federation.clients is 4 (setting 'digits')
{name: j, clients: [1]}
    : 'j' is already given in line 27
""")


def test_the_mistakes_of_many_coalitions_are_all_found(tmp_path):
    rows = "".join(f"\n  - {row}" for row in COALITIONS)
    found = mistakes(tmp_path, edited(("coalitions: [pair, half]", f"coalitions:{rows}")))
    assert [m.split(": ", 1)[1] for m in found] == [
        f"coalitions[{i}]{said}" for i, said in enumerate(COALITIONS.values())
    ]


# a defense -> the rest of its message; (start) of a message that lists all names
DEFENSES = table("""
3
    : expected text or a mapping, found 3
{name: none, label: a b}
    .label: expected text without blanks and brackets, found the text 'a b'
{name: grad-noise, grid: {sigma: []}}
    .grid.sigma: must not be empty
{name: grad-noise, grid: {sigma: 0.1}}
    .grid.sigma: expected a list, found 0.1
{name: grad-noise, params: {sigma: 1}, grid: {sigma: [1]}}
    : 'sigma' is given in both params and grid: keep one
{name: grad-noise, label: x, grid: {sigma: [0.1, 0.1]}}
    : 'x[sigma=0.1]' is already given in line 21: add a label
grad-noize
    : unknown defense 'grad-noize' - did you mean 'grad-noise'?; the defenses are
digits
    : unknown defense 'digits' (there is a dataset of this name); the defenses are
{name: grad-noise, label: b, params: {sigm: 0.01}}
    .params.sigm: unknown field - did you mean 'sigma'?
{name: none, label: c, params: {a: 1}}
    .params.a: unknown field; there are no fields here
{name: grad-noise, label: d, params: {sigma: -1}}
    .params.sigma: expected a number >= 0, found -1
{name: grad-noise, label: e, params: {sigma: much}}
    .params.sigma: expected a number >= 0, found the text 'much'
{name: grad-noise, label: f, grid: {sigma: [0.1, -1]}}
    .grid.sigma[1]: expected a number >= 0, found -1
{name: none, label: g, then: [{name: grad-noise, params: {sigma: -1}}]}
    .then[0].params.sigma: expected a number >= 0, found -1
none
{name: none, params: {}}
    : 'none' is already given in line 30: add a label
[none, mixup]
    : expected text or a mapping, found a list; defenses in order are one entry, {name: FIRST,
    then: [SECOND]}
""")
COMPONENTS = [
    ("dataset: digits", "dataset: {name: digits, params: {test: 0}}\n    model: mpl"),
    ("- loss-series", "- {name: loss-series, then: [none]}"),
    ("floors: []", "floors: [none]"),
]


def test_the_mistakes_of_components_are_all_found(tmp_path, registry):
    rows = "".join(f"  - {row}\n" for row in DEFENSES)
    text = edited(("  - none\n  - {name: grad-noise, params: {sigma: 0.01}}\n", rows))
    found = [message.split(": ", 1)[1] for message in mistakes(tmp_path, text, registry=registry)]
    expected = [f"defenses[{i}]{said}" for i, said in enumerate(DEFENSES.values()) if said]
    assert [
        m.partition("defenses are ")[0] + "defenses are" * ("defenses are" in m) for m in found
    ] == expected
    elsewhere = mistakes(tmp_path, edited(*COMPONENTS), registry=registry)
    assert [message.partition("; ")[0] for message in elsewhere] == [
        "suite.yaml:6:44: settings[0].dataset.params.test: expected an integer in [1, 1795], found "
        "0",
        "suite.yaml:7:12: settings[0].model: unknown model 'mpl' - did you mean 'mlp'?",
        "suite.yaml:20:31: attacks[0].then: only defenses can be applied one after the other",
        "suite.yaml:21:10: floors[0]: 'none' is not a floor",
    ]


MERGES = "m0: &m0 {a: 1}\n" + "".join(
    f"m{i + 1}: &m{i + 1} {{<<: [*m{i}, *m{i}]}}\n" for i in range(60)
)

EMPTY = "1:1: the file is empty, expected a suite (`fedbench list suites` shows examples)"
NO_SUITE = {
    "empty": ("", EMPTY),
    "only a comment": ("# only a comment\n", EMPTY),
    "a list": (
        "- a\n",
        "1:1: expected a mapping with schema, name, seeds, settings, defenses, attacks, found a "
        "list",
    ),
    "latin-1": ("schema: 1\nname: \xe9\n".encode("latin-1"), "2:7: not UTF-8 text (byte 0xe9)"),
    "large": (b"#" * (MAX_BYTES + 1), " larger than 1 MiB, which no suite is"),
    "deep": ("[" * 1_000, "1:1: nested too deeply"),
    "merge keys": (
        MERGES,
        "15:6: not valid YAML: a mapping of more than 10,000 fields",
    ),
    "duplicate key": (
        edited(("      rounds: 10", "      rounds: 10\n      clients: 5")),
        '11:7: not valid YAML: found duplicate key "clients" with value "5" (original value: "4"), '
        "while constructing a mapping",
    ),
    "number as a key": (
        edited(("every: 5", "7: 5")),
        "13:16: settings[0].audit[7]: a key must be text (put it in quotes)",
    ),
    "list as a key": (
        edited(("every: 5", "[a]: 5")),
        "13:12: settings[0].audit: a key must be text (put it in quotes)",
    ),
    "alias of itself": (
        edited(("seeds: [0, 1]", "seeds: &s [0, *s]")),
        "3:8: seeds[1]: expected an integer in [0, 9223372036854775807], found a list",
    ),
    "tab": (
        edited(("    partition: iid", "\tpartition: iid")),
        "7:1: not valid YAML: found character '\\t' that cannot start any token, while scanning "
        "for the next token (indent with "
        "spaces, not tabs)",
    ),
    "open list": (
        edited(("seeds: [0, 1]", "seeds: [0, 1")),
        "4:9: not valid YAML: expected ',' or ']', but got ':', while parsing a flow sequence",
    ),
    "unknown alias": (
        edited(("seeds: [0, 1]", "seeds: *s")),
        "3:8: not valid YAML: found undefined alias 's'",
    ),
    "two documents": (
        edited(("defenses:", "---\ndefenses:")),
        "15:1: not valid YAML: but found another document, expected a single document in the "
        "stream",
    ),
    "Python object": (
        edited(("name: small", "name: !!python/object:os.system x")),
        "2:7: not valid YAML: could not determine a constructor for the tag "
        "'tag:yaml.org,2002:python/object:os.system'",
    ),
    "control character": (
        edited(("name: small", "name: sm\x01all")),
        "2:9: not valid YAML: the character U+0001 is not allowed",
    ),
}


@pytest.mark.parametrize(("content", "expected"), NO_SUITE.values(), ids=NO_SUITE)
def test_a_file_that_is_no_suite_is_refused_with_the_place(tmp_path, content, expected):
    assert mistakes(tmp_path, content) == [f"suite.yaml:{expected}"]


def test_a_path_that_is_no_file_is_refused(tmp_path):
    expected = {
        "absent.yaml": "No such file or directory",
        "": "Is a directory",
        "x" * 5000 + ".yaml": "File name too long",
    }
    said = {}
    for name in expected:
        with pytest.raises(UserError) as caught:
            load_suite(tmp_path / name)
        said[name] = str(caught.value).removeprefix(f"{tmp_path / name}: cannot be read: ")
    assert said == expected


def test_shipped_suites_are_found_by_name_and_a_near_miss_is_named(tmp_path, monkeypatch):
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "x.yaml").write_text(GOOD)
    monkeypatch.setattr("fedbench.suites.files", lambda package: tmp_path)
    assert load_suite("papers/x").spec.name == "small"
    said = {}
    for ref in ("papers/y", "no/such"):
        with pytest.raises(UserError) as caught:
            load_suite(ref)
        said[ref] = str(caught.value)
    assert said == {
        "papers/y": "unknown suite 'papers/y' - did you mean 'papers/x'?; the shipped suites are "
        "papers/x",
        "no/such": "unknown suite 'no/such'; the shipped suites are papers/x",
    }


# --set


def test_overrides_reach_every_part_and_one_place_alone(tmp_path):
    shared = edited(
        ("    audit: {every: 5}\n", "  - {name: other, dataset: digits, federation: *f}\n"),
        ("    federation:", "    federation: &f"),
    )
    loaded = load_suite(
        write(tmp_path, shared),
        [
            "seeds=[7]",
            "settings.digits.federation.rounds=5",
            "settings.0.dataset.params.test=3",
            "settings.1.audit.every=2",
            "defenses.grad-noise.params.sigma=1e-3",
            "limits.memory_gb=2",
            "attacks.loss-series.label=mine",
            "settings.0.partition.name=dirichlet",
            "settings.0.partition.beta=.inf",
        ],
    )
    spec, (setting, other) = loaded.spec, loaded.spec.settings
    assert (spec.seeds, setting.federation.rounds, other.federation.rounds, other.audit.every) == (
        [7],
        5,
        10,
        2,
    )
    assert (setting.dataset.name, setting.dataset.params, setting.partition.beta) == (
        "digits",
        {"test": 3},
        math.inf,
    )
    assert spec.defenses[1].params == {"sigma": 0.001} and spec.limits.memory_gb == 2
    assert spec.attacks[0].label == "mine" and loaded.text == shared


FORM = "expected PATH=VALUE, such as settings.0.federation.rounds=5"
OVERRIDES = {
    "seeds": FORM,
    "a..b=1": FORM,
    "settings.digit.name=a": "settings has no element 'digit' - did you mean 'digits'?",
    "settings.3.name=a": "settings has no element '3'; it has 1: digits",
    "name.x=1": "name is a single value, it has no field 'x'",
    "seeds=[0": "value:1:3: not valid YAML: expected ',' or ']', but got '<stream end>', while "
    "parsing a flow sequence",
    "coalitions.pair.name=a": "coalitions has several elements 'pair': use an index, from 0",
}


def test_bad_overrides_are_all_named(tmp_path):
    text = edited(("pair, half", "pair, pair"))
    assert mistakes(tmp_path, text, *OVERRIDES) == [
        f"suite.yaml: --set {given}: {said}" for given, said in OVERRIDES.items()
    ]
    given = ("seeds=[0, x]", "settings.digits.federation.rounds=0", "settings.0.federation.round=1")
    assert mistakes(tmp_path, GOOD, *given) == [
        f"suite.yaml: --set {given[0]}: seeds[1]: {SEED} the text 'x'",
        f"suite.yaml: --set {given[2]}: settings[0].federation.round: unknown field - did you mean "
        "'rounds'?",
        f"suite.yaml: --set {given[1]}: settings[0].federation.rounds: {ROUNDS} 0",
    ]


# what comes out


def test_resolved_uses_hold_every_parameter_and_expand_grids(tmp_path, registry):
    again = "\n  - {name: grad-noise, label: again, params: *p}"
    grid = "{name: grad-noise, label: gn, grid: {sigma: [0.01, 0.1]}, params: &p {}}" + again
    text = edited(
        ("{name: grad-noise, params: {sigma: 0.01}}", grid),
        ("- none", "- {name: none, then: [{name: grad-noise, params: {sigma: 1}}]}"),
    )
    loaded, resolved = load_and_check(write(tmp_path, text), registry)
    labels = ["none+grad-noise", "gn[sigma=0.01]", "gn[sigma=0.1]", "again"]
    assert [d.label for d in resolved.defenses] == labels
    assert [d.params.get("sigma") for d in resolved.defenses] == [None, 0.01, 0.1, 0.01]
    assert [(d.name, d.params) for d in resolved.defenses[0].then] == [
        ("grad-noise", {"sigma": 1.0})
    ]
    assert [d.params.sigma for d in resolved.defenses[2].make()] == [0.1]
    assert resolved.defenses[1].distribution == f"{DISTRIBUTION} {metadata.version(DISTRIBUTION)}"
    assert [resolved.positions["defense", label] for label in labels] == [
        (16, 5),
        (17, 5),
        (17, 5),
        (18, 5),
    ]
    setting = resolved.settings[0]
    assert setting.dataset.params == setting.dataset.load().Params().model_dump(mode="json")
    assert setting.model.name == setting.dataset.load().default_model
    assert [c.name for c in setting.coalitions] == ["pair", "half"]
    assert loaded.spec.n_cells(0) == 2 * 4 * 2 and resolved.floors == frozenset()


def test_floors_and_analyses_are_those_of_fedbench_where_a_suite_names_none(tmp_path, registry):
    both = load_and_check(write(tmp_path, edited(("floors: []\n", ""))), registry)[1]
    assert (
        both.floors == {"free-rider", "placebo"} <= {d.label for d in both.defenses}
        and both.analyses
    )
    named = load_and_check(
        write(tmp_path, edited(("floors: []", "floors: [placebo]\nanalyses: []"))), registry
    )[1]
    assert named.floors == {"placebo"} and named.analyses == () and len(named.defenses) == 3


@given(st.integers(2, 50), st.floats(0.001, 1))
@settings(max_examples=30)
def test_members_of_coalitions(clients, fraction):
    named = {name: resolve_coalition(Coalition(name=name), clients) for name in NAMED}
    assert named == {
        "none": [],
        "pair": [0, 1],
        "half": list(range(clients // 2)),
        "uniform": list(range(clients)),
    }
    share = resolve_coalition(Coalition(name="mine", fraction=fraction), clients)
    assert share == list(range(max(1, round(fraction * clients))))
    assert resolve_coalition(Coalition(name="mine", clients=[3, 0]), 5) == [0, 3]


def test_a_plan_of_millions_of_cells_is_refused_with_its_count(tmp_path):
    seeds = ("seeds: [0, 1]", f"seeds: {list(range(1000))}")
    grid = ("params: {sigma: 0.01}", f"grid: {{sigma: {[i / 1000 for i in range(1000)]}}}")
    (message,) = mistakes(tmp_path, edited(seeds, grid))
    assert (
        "the suite has 2,002,000 cells (settings x coalitions x defenses x attacks x seeds), at "
        "most 1,000,000 can" in message
    )


# clients, rounds, local epochs, batch size, share drawn; rule, rate, momentum, schedule; batches,
# shares, weights
RECIPES = {
    "cofedmid": "10 100 1 100 1.0 sgd 0.1 0.9 exponential None own 0.0 0.0 size",
    "fedmia": "10 300 1 100 1.0 sgd 0.1 0.9 exponential None own 0.0 0.0 size",
    "fedmia-released": "10 300 1 100 1.0 sgd 0.1 0.9 cosine None own 0.0 0.0 size",
    "fedpoisonmia": "10 800 1 64 0.8 adam 0.01 0.0 constant 1 own 0.0 0.0 size",
    "fedpoisonmia-released": "10 800 1 64 0.8 adam 0.001 0.0 constant None own 0.0 0.0 size",
    "membershield": "5 10 50 200 1.0 sgd 0.001 0.99 constant None own 0.1 0.2 size",
    "membershield-released": "5 10 50 200 1.0 sgd 0.001 0.99 constant None nonmembers 0.0 0.2 "
    "equal",
}


def test_recipes_are_the_papers_federations_and_given_fields_win_one_by_one():
    fields = (
        "clients",
        "rounds",
        "local_epochs",
        "batch_size",
        "participation",
        "optimizer.name",
        "optimizer.lr",
        "optimizer.momentum",
        "optimizer.schedule.name",
        "local_batches",
        "validation_on",
        "validation",
        "test",
        "weights",
    )

    def stated(**given) -> str:
        made = FederationSpec.model_validate(given)
        return " ".join(str(attrgetter(field)(made)) for field in fields)

    assert {name: stated(recipe=name) for name in recipe_names()} == RECIPES
    changed = stated(recipe="fedmia", rounds=7, optimizer={"lr": 0.5, "schedule": "constant"})
    assert changed == "10 7 1 100 1.0 sgd 0.5 0.9 constant None own 0.0 0.0 size"
    assert FederationSpec.model_validate({"recipe": "fedpoisonmia"}).optimizer.keep_state
