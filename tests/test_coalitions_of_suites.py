"""Several coalitions at once, and coalitions of one, from a suite through every command to records and boards."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner
from fake_packages import install
from running import changed, invoke, records, suite

from fedbench.core import Defense, UserError
from fedbench.core.cli.main import cli
from fedbench.core.cli.validate import command as validate
from fedbench.core.execution.plugin_checks import declaration_mistake
from fedbench.core.store.files import read_npz
from fedbench.core.store.integrity import sealed
from fedbench.core.store.reading import load_records
from fedbench.leaderboard.board import MarkdownBoard

PAIRS = {"name": "two-pairs", "groups": [[3, 2], [0, 1]]}
PACKAGE = """
    import numpy as np
    from fedbench.core import Attack, Component, Defense, hookimpl

    class Together(Defense):
        def begin(self, ctx):
            self.plan = float(ctx.rng.uniform())
        def coordinate(self, updates, ctx):
            return updates + self.plan * ctx.randn_like(updates)
        def report(self, ctx):
            size = len(ctx.members)
            return {"plan": self.plan, "size": size, "remarks": [f"{size} clients in a <b>group</b>", f"it drew {self.plan:.6f}"]}

    class OfMean(Attack):
        needs, view = frozenset({"loss"}), "coalition"
        def score(self, observations, audit):
            return -observations.of_target("loss")[-1].astype(np.float64)

    @hookimpl
    def fedbench_defenses():
        yield Component("together", "allied:Together", "noise that does not cancel")

    @hookimpl
    def fedbench_attacks():
        yield Component("of-mean", "allied:OfMean", "loss of the coalition's mean")
"""


@pytest.fixture(autouse=True)
def package(site):
    """The package, installed."""
    return install(site, "allied", PACKAGE)


def validated(path, *more):
    """(exit status, what `fedbench validate` says)."""
    result = CliRunner().invoke(validate, [str(path), *more])
    if isinstance(result.exception, UserError):
        return 1, "\n".join(result.exception.messages)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_several_coalitions_run_and_say_who_belongs_to_which(tmp_path):
    path = suite(tmp_path, coalitions=[PAIRS], defenses=["none", "together"], attacks=["of-mean", "loss-series"])
    status, said = validated(path)
    assert status == 0 and "coalition 'two-pairs': [0, 1] and [2, 3]" in said
    assert "coalition two-pairs of digits: [0, 1] and [2, 3]" in invoke(path, "--dry-run", "--results", tmp_path / "r")
    invoke(path, "--results", tmp_path / "r")
    found = records(tmp_path / "r")
    record, undefended = found["together", "loss-series", 0], found["none", "loss-series", 0]
    assert record["members"] == [0, 1, 2, 3] and [t["target"] for t in record["targets"]] == [0, 1, 2, 3]
    assert record["described"]["coalitions"] == {"two-pairs": [[0, 1], [2, 3]]}
    assert record["identity"]["run"]["coalitions"] == [[0, 1], [2, 3]]
    assert "coalitions" not in undefended["described"] and "coalitions" not in undefended["identity"]["run"]
    first, second = record["facts"]["group 1: plan"], record["facts"]["group 2: plan"]
    assert first != second and record["facts"]["size"] == 2
    assert record["facts"]["remarks"] == [
        "2 clients in a <b>group</b>", f"it drew {first:.6f}", f"it drew {second:.6f}"
    ]  # fmt: skip
    shown = CliRunner().invoke(cli, ["show", str(tmp_path / "r"), record["key"][:12]]).output
    assert "coalition two-pairs [[0, 1], [2, 3]], seed 0" in shown
    board = MarkdownBoard().write(tmp_path / "r", plots=False).read_text()
    assert "several coalitions at once: two-pairs \\[\\[0, 1\\], \\[2, 3\\]\\]" in board
    assert "together: 2 clients in a &lt;b&gt;group&lt;/b&gt;\n" in board and f"together: it drew {second:.6f}\n" in board
    assert board.count("it drew") == 2 * board.count("**Ranking**") == 4  # not among the facts a second time
    assert "group 1: plan" in board


def test_a_coalition_draws_the_same_whoever_else_defends(tmp_path):
    """The plan of clients 2 and 3, with others, with nobody, and in a list of ids."""
    plans = {}
    for i, groups in enumerate(([[0, 1], [2, 3]], [[2, 3], [1]], None)):
        coalition = {"name": "c", "groups": groups} if groups else {"name": "c", "clients": [2, 3]}
        invoke(suite(tmp_path, coalitions=[coalition], defenses=["together"]), "--results", tmp_path / str(i))
        facts = records(tmp_path / str(i))["together", "loss-series", 0]["facts"]
        plans[i] = [facts.get(f"group {g}: plan", facts.get("plan")) for g in (1, 2)]
    assert plans[0][1] == plans[1][1] == plans[2][0] != plans[0][0]


def test_targets_are_followed_through_the_mean_of_their_own_coalition(tmp_path):
    """Where all are one coalition every target's candidates have the loss of one model; two groups have two."""
    scores = {}
    for name, coalition in (("one", "uniform"), ("two", PAIRS)):
        path = suite(tmp_path, coalitions=[coalition], defenses=["together"], attacks=["of-mean"])
        invoke(path, "--results", tmp_path / name)
        (file,) = (tmp_path / name / "records").glob("*.npz")
        arrays = read_npz(file)
        scores[name] = {t: dict(zip(arrays[f"t{t}_ids"].tolist(), arrays[f"t{t}_scores"], strict=True)) for t in range(4)}

    def alike(name, a, b):
        one, other = scores[name][a], scores[name][b]
        common = sorted(set(one) & set(other))
        assert len(common) > 20
        return np.array_equal([one[i] for i in common], [other[i] for i in common])

    assert alike("one", 0, 2) and alike("one", 0, 1)
    assert alike("two", 0, 1) and alike("two", 2, 3) and not alike("two", 0, 2) and not alike("two", 1, 3)


def test_a_target_in_none_of_several_coalitions_has_no_mean_to_follow(tmp_path):
    three = {"name": "c", "groups": [[0], [1, 2]]}
    audit = {"every": 4, "nonmembers": 80, "targets": [1, 3]}
    path = changed(tmp_path, {"audit": audit}, coalitions=[three], attacks=["of-mean"], defenses=["together"])
    invoke(path, "--results", tmp_path / "r")
    (record,) = records(tmp_path / "r").values()
    assert record["outcome"] == "skipped" and "client 3, which is in none of them" in record["reason"]


def test_a_record_that_says_other_coalitions_than_its_keys_is_refused(tmp_path):
    invoke(suite(tmp_path, coalitions=[PAIRS], defenses=["together"]), "--results", tmp_path / "r")
    (path,) = (tmp_path / "r" / "records").glob("*.json")
    content = json.loads(path.read_text())
    for coalitions in ({"two-pairs": [[0, 2], [1, 3]]}, {}):
        path.write_bytes(sealed({**content, "described": {**content["described"], "coalitions": coalitions}}))
        with pytest.raises(UserError, match=r"described\.coalitions is .*, but \[\[\[0,1\],\[2,3\]\]\] in its identity"):
            load_records(tmp_path / "r")


def test_the_order_in_which_groups_are_named_decides_nothing_and_a_twin_is_refused(tmp_path):
    twin = {"name": "again", "groups": [[0, 1], [2, 3]]}
    status, said = validated(suite(tmp_path, coalitions=[PAIRS, twin], defenses=["together"]))
    assert status == 1 and "the coalitions 'two-pairs' and 'again' hold the same clients [0, 1] and [2, 3]: remove one" in said
    status, _ = validated(suite(tmp_path, coalitions=[PAIRS, "uniform"], defenses=["together"]))
    assert status == 0  # the same clients, but not together


def test_groups_can_be_given_on_the_command_line(tmp_path):
    path = suite(tmp_path, coalitions=[{"name": "two-pairs", "clients": [0]}], defenses=["together"])
    change = ("--set", "coalitions.0={name: two-pairs, groups: [[0, 1], [1, 2]]}")
    status, said = validated(path, *change)
    assert status == 1 and "client 1 belongs to group 1 [0, 1] and to group 2 [1, 2]: coalitions do not overlap" in said
    assert validated(path, "--set", "coalitions.0={name: two-pairs, groups: [[0, 1], [2, 3]]}")[0] == 0


def test_a_malicious_client_defends_in_no_group(tmp_path):
    path = changed(tmp_path, {"adversary": {"clients": 1}}, coalitions=[PAIRS], defenses=["together"], attacks=["passive"])
    status, said = validated(path)
    assert status == 1 and "the coalition 'two-pairs' names client 3, which is malicious" in said


# --- a coalition of one


SOLO = {"name": "cofedmid", "params": {"m_max": 1.0, "val_min": 10, "min_assigned": 1}}


@pytest.mark.parametrize("coalition", [{"clients": [2]}, {"groups": [[0], [1, 2]]}])
@pytest.mark.parametrize("then", [[], [{"name": "grad-noise"}]])
def test_a_coalition_too_small_for_its_defense_is_refused(tmp_path, coalition, then):
    path = suite(tmp_path, coalitions=[{"name": "solo", **coalition}], defenses=[{**SOLO, "then": then}, "grad-noise"])
    alone = coalition["clients"][0] if "clients" in coalition else 0
    status, said = validated(path)
    assert status == 1 and said.count("error") <= 1
    assert f" takes 2 clients or more, and in the coalition 'solo' client {alone} is alone: add clients to it" in said
    free = {**SOLO, "params": {**SOLO["params"], "mode": "independent"}, "then": then}
    assert validated(suite(tmp_path, coalitions=[{"name": "solo", **coalition}], defenses=[free]))[0] == 0


@pytest.mark.parametrize("least", [0, -1, 1.5, "two", True, None])
def test_how_many_clients_a_defense_takes_is_a_number_from_one_on(least):
    made = Defense()
    made.least_members = least
    assert declaration_mistake(made) == f"least_members is {least!r}, expected an integer >= 1"


def test_a_named_coalition_that_needs_two_clients_is_refused_where_there_is_one(tmp_path):
    alone = {"clients": 1, "rounds": 2, "batch_size": 50, "optimizer": {"lr": 0.2}}
    for name in ("pair", "half"):
        status, said = validated(changed(tmp_path, {"federation": alone}, coalitions=[name]))
        assert status == 1 and f"'{name}' needs at least 2 clients, but federation.clients is 1" in said


# --- a validation part larger than the data


def parts(**shares):
    return {"federation": {"clients": 4, "rounds": 2, "batch_size": 50, "optimizer": {"lr": 0.2}, **shares}}


@pytest.mark.parametrize("shares", [{"validation": 0.9999}, {"validation": 0.5, "test": 0.4999}])
def test_a_validation_part_that_leaves_nothing_to_train_on_is_one_error_of_the_setting(tmp_path, shares):
    path = changed(tmp_path, parts(**shares), defenses=["none", "together"], attacks=["loss-series", "avg-cosine"])
    status, said = validated(path)
    (line,) = said.strip().splitlines()
    assert status == 1 and "setting 'digits': client 0 has " in line and "its training part would be empty" in line
    assert "(what federation.validation and federation.test leave; 4 of 4 clients, seed 0): use smaller shares" in line


@pytest.mark.parametrize(("shares", "why"), [
    ({"validation": 1}, "federation.validation: expected a number in [0, 1), found 1"),
    ({"validation": 250}, "federation.validation: expected a number in [0, 1), found 250"),
    ({"validation": 0.7, "test": 0.3}, "validation 0.7 and test 0.3 leave nothing to train on: lower them"),
])  # fmt: skip
def test_a_validation_part_of_all_the_data_or_more_is_refused_with_its_place(tmp_path, shares, why):
    status, said = validated(changed(tmp_path, parts(**shares)), "--no-data")
    (line,) = said.strip().splitlines()
    assert status == 1 and "tiny.yaml:" in line and why in line


def test_a_client_too_small_for_the_shares_is_named(tmp_path):
    """By unequal shares one client has next to nothing, and the others enough."""
    few = parts(validation=0.9) | {"partition": {"name": "dirichlet-sizes", "beta": 0.5}}
    status, said = validated(changed(tmp_path, few))
    (line,) = said.strip().splitlines()
    assert status == 1 and "client 0 has 1 samples" in line and "its validation part would be empty" in line
    assert "federation.validation: 0.9; 1 of 4 clients, seed 0" in line and "a larger beta" in line
