"""What is planned of a suite: groups of members, tuning seeds, parts of clients' data, the part
that `--only` asks for.
"""

from __future__ import annotations

from functools import cache

import pytest
from fake_packages import install
from good_suite import edited, write
from running import changed, invoke, loaded, settings_of, suite

from fedbench.core import UserError
from fedbench.core.run.declarations import declaration_mistake
from fedbench.core.run.expand import Expansion
from fedbench.core.run.job import identity
from fedbench.core.run.plan import settings_of_parts
from fedbench.core.spec.resolve import load_and_check
from fedbench.plugins.defenses.uploads import NoDefense

# -- several coalitions at once --------------------------------------------------------------------

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
            remarks = [f"{size} clients in a <b>group</b>", f"it drew {self.plan:.6f}"]
            return {"plan": self.plan, "size": size, "remarks": remarks}

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
PAIRS = {"name": "two-pairs", "groups": [[3, 2], [0, 1]]}


@pytest.fixture
def package(site):
    """A defense of several members and an attack on their mean, installed."""
    return install(site, "allied", PACKAGE)


def test_records_and_boards_say_which_coalition_each_member_belongs_to(package, tmp_path, words_of):
    audit = {"audit": {"every": 4, "nonmembers": 80, "targets": [0, 1, 2, 3]}}
    others = {"name": "others", "groups": [[2, 3], [1]]}  # client 0 is in neither
    path = changed(
        tmp_path,
        audit,
        coalitions=[PAIRS, others],
        defenses=["together"],
        attacks=["of-mean", "loss-series"],
    )
    invoke(path, "--results", tmp_path / "r", "--workers", "1")
    read = [r.record.model_dump(mode="json") for r in loaded(tmp_path / "r")]
    found = {(r["coalition"], r["attack"]["name"]): r for r in read}
    record = found["two-pairs", "loss-series"]
    targets = [target["target"] for target in record["targets"]]
    assert record["members"] == targets == [0, 1, 2, 3]
    assert record["described"]["coalitions"] == {"two-pairs": [[0, 1], [2, 3]]}
    assert record["identity"]["run"]["coalitions"] == [[0, 1], [2, 3]]
    first, second = record["facts"]["group 1: plan"], record["facts"]["group 2: plan"]
    assert first != second == found["others", "loss-series"]["facts"]["group 2: plan"]
    assert record["facts"]["size"] == 2
    remarks = ["2 clients in a <b>group</b>", f"it drew {first:.6f}", f"it drew {second:.6f}"]
    assert record["facts"]["remarks"] == remarks
    assert found["two-pairs", "of-mean"]["outcome"] == "ok"
    skipped = found["others", "of-mean"]
    assert skipped["outcome"] == "skipped"
    assert "client 0, which is in none of them" in skipped["reason"]
    shown = words_of("show", tmp_path / "r", record["key"][:12])
    assert "coalition two-pairs [[0, 1], [2, 3]], seed 0" in shown
    words_of("leaderboard", tmp_path / "r", "--full", "--no-plots")
    board = (tmp_path / "r" / "leaderboard" / "full.md").read_text()
    assert "two-pairs: \\[\\[0, 1\\], \\[2, 3\\]\\]" in board
    assert "together: 2 clients in a &lt;b&gt;group&lt;/b&gt;\n" in board
    assert f"together: it drew {second:.6f}\n" in board


SOLO = {"name": "cofedmid", "params": {"m_max": 1.0, "val_min": 10, "min_assigned": 1}}
FREE = {**SOLO, "params": {**SOLO["params"], "mode": "independent"}}
FOUR = {"clients": 4, "rounds": 2, "batch_size": 50, "optimizer": {"lr": 0.2}}
SHARES = {"federation": {**FOUR, "validation": 0.5, "test": 0.4999}}
FEW = {
    "federation": {**FOUR, "validation": 0.9},
    "partition": {"name": "dirichlet-sizes", "beta": 0.5},
}
TWIN = {"name": "again", "groups": [[0, 1], [2, 3]]}

# how a suite is changed, words of what `fedbench validate` says of it, and whether it refuses
VALIDATED = {
    "the same clients together and in groups": (
        {},
        {"coalitions": [PAIRS, "uniform"]},
        ": ok: ",
        False,
    ),
    "the same groups twice": (
        {},
        {"coalitions": [PAIRS, TWIN]},
        "the coalitions 'two-pairs' and 'again' hold the same clients [0, 1] and [2, 3]: remove "
        "one",
        True,
    ),
    "a malicious member": (
        {"adversary": {"clients": 1}},
        {"coalitions": [PAIRS], "attacks": ["passive"]},
        "the coalition 'two-pairs' names client 3, which is malicious",
        True,
    ),
    "one member of a defense for two": (
        {},
        {"coalitions": [{"name": "solo", "clients": [2]}], "defenses": [SOLO]},
        " takes 2 clients or more, and in the coalition 'solo' client 2 is alone: add clients to "
        "it",
        True,
    ),
    "one member in a group": (
        {},
        {
            "coalitions": [{"name": "solo", "groups": [[0], [1, 2]]}],
            "defenses": [{**SOLO, "then": [{"name": "grad-noise"}]}],
        },
        "in the coalition 'solo' client 0 is alone",
        True,
    ),
    "one member of a mode for one": (
        {},
        {"coalitions": [{"name": "solo", "clients": [2]}], "defenses": [FREE]},
        ": ok: ",
        False,
    ),
    "no data to train on": (
        SHARES,
        {"attacks": ["loss-series", "avg-cosine"]},
        "its training part would be empty (what federation.validation and federation.test leave; 4 "
        "of 4 clients, seed 0): use "
        "smaller shares",
        True,
    ),
    "one client without data": (
        FEW,
        {},
        "its validation part would be empty (federation.validation: 0.9; 1 of 4 clients, seed 0)",
        True,
    ),
}


@pytest.mark.parametrize(("setting", "more", "said", "refused"), VALIDATED.values(), ids=VALIDATED)
def test_validate_knows_what_depends_on_coalitions_and_data(
    package, words_of, tmp_path, setting, more, said, refused
):
    path = changed(tmp_path, setting, **{"defenses": ["together"], **more})
    text = words_of("validate", path, status=2 * refused)
    assert said in text
    if refused:
        assert text.count("error") <= 1 and text.count("setting 'digits': ") <= 1


def test_the_number_of_clients_that_a_defense_needs_is_checked():
    made, said = NoDefense(), []
    for made.least_members in (0, 1.5, True, None, 1):
        said.append(declaration_mistake(made))
    assert said == [
        f"least_members is {value!r}, expected an integer >= 1" for value in (0, 1.5, True, None)
    ] + [""]


# -- tuning seeds ----------------------------------------------------------------------------------

TUNED = ("floors: []\n", "floors: []\nanalyses: [tuned]\n")
PAIR = ("coalitions: [pair, half]", "coalitions: [pair]")  # of four clients a half is a pair
GRID = ("params: {sigma: 0.01}}", "grid: {sigma: [0.01, 0.1]}}\n  - mixup")


def seeds(tuning, reported="[0, 1]"):
    return "seeds: [0, 1]\n", f"seeds: {reported}\ntuning_seeds: {tuning}\n"


@pytest.fixture
def planned(tmp_path, registry):
    """The plan of the small suite with these edits."""

    @cache
    def plan(*edits):
        checked = load_and_check(write(tmp_path, edited(PAIR, *edits)), registry)
        return Expansion(*checked, registry, tmp_path / "results", "cpu").plan()

    return plan


def test_an_analysis_that_tunes_needs_seeds_for_it(tmp_path, planned):
    with pytest.raises(UserError, match="add for example `tuning_seeds:") as caught:
        planned(TUNED)
    assert caught.value.messages[0].startswith(f"{tmp_path}/suite.yaml:21:12: analysis 'tuned': ")
    noted = [
        [n for n in planned(seeds("[100]"), *more).notes if "tuning_seeds" in n]
        for more in ((), (TUNED,))
    ]
    assert noted == [["tuning_seeds: no analysis of the suite reads their runs; `tuned` does"], []]


def test_every_row_runs_on_the_tuning_seeds_too_under_keys_of_their_own(
    tmp_path, registry, planned
):
    plan = planned(seeds("[100, 101]"), TUNED)
    tunes = {0: False, 1: False, 100: True, 101: True}
    assert {(j.seed, j.tuning) for j in plan.jobs} == set(tunes.items())
    rows = [
        sorted((j.coalition, j.defense.label) for j in plan.jobs if j.seed == seed)
        for seed in tunes
    ]
    assert len(rows[0]) == 2 and rows == [rows[0]] * 4

    def keys(*edits):
        return {j.run_key for j in planned(*edits, TUNED).jobs if j.seed == 100}

    first = keys(seeds("[100]"))
    assert first == keys(seeds("[100]", "[0, 1, 2]"))
    assert not first & keys(seeds("[101]", "[0, 100]"))
    plain = planned().jobs
    said = {
        (j.tuning, j.described().get("tuning", False), identity(j).get("tuning", False))
        for j in (*plan.jobs, *plain)
    }
    assert said == {(False, False, False), (True, True, True)}
    assert {j.run_key for j in plain} < {j.run_key for j in planned(seeds("[100]"), TUNED).jobs}
    path = write(tmp_path, edited(PAIR, seeds("[100]"), TUNED))
    loaded, _ = load_and_check(path, registry)
    assert loaded.spec.all_seeds == [0, 1, 100] and loaded.spec.n_cells(0) == 2 * 3


def test_a_setting_names_all_rows_of_a_grid_by_one_label(tmp_path, registry, planned):
    def labels(name):
        named = ("    audit: {every: 5}", f"    audit: {{every: 5}}\n    defenses: [none, {name}]")
        return [job.defense.label for job in planned(GRID, named).jobs if job.seed == 0]

    assert labels("grad-noise") == ["none", "grad-noise[sigma=0.01]", "grad-noise[sigma=0.1]"]
    assert labels("'grad-noise[sigma=0.1]'") == ["none", "grad-noise[sigma=0.1]"]
    with pytest.raises(UserError, match="unknown label 'grad-nose' - did you mean 'grad-noise'"):
        labels("grad-nose")


# -- parts of a suite ------------------------------------------------------------------------------


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """A suite of two settings; the data of one is not on this machine."""
    monkeypatch.setenv("FEDBENCH_DATA", str(tmp_path / "nothing"))
    settings = settings_of(
        tmp_path,
        {"name": "here", "coalitions": ["pair"]},
        {
            "name": "away",
            "dataset": {"name": "dermnet"},
            "coalitions": ["half"],
            "defenses": ["none", "kd"],
            "attacks": ["fta-l"],
        },
    )
    return suite(
        tmp_path,
        settings=settings,
        defenses=["none", {"name": "mixup", "label": "mixed"}, "kd"],
        attacks=["loss-series", "fta-l"],
    )


def test_the_settings_in_which_something_of_a_part_runs(parts, registry):
    _, resolved = load_and_check(parts, registry)

    def asked(**only):
        return settings_of_parts(
            resolved, {kind: set(names.split()) for kind, names in only.items()}
        )

    for kind, name in (
        ("setting", "here"),
        ("defense", "mixed"),
        ("defense", "mixup"),
        ("attack", "loss-series"),
    ):
        assert asked(**{kind: name}) == {"here"}
    assert asked(attack="fta-l", coalition="pair", seed="0") == {"here"}
    assert asked(coalition="half") == {"away"}
    assert asked() is asked(coalition="none") is asked(defense="kd") is None  # some of each setting
    said = "--only defense=mixupp: the suite has no such defense - did you mean 'mixup'"
    with pytest.raises(UserError, match=said):
        asked(defense="mixupp")
    with pytest.raises(UserError, match="no such coalition; it has half, none, pair"):
        asked(coalition="xyz")


def test_a_run_of_a_part_needs_the_data_of_that_part_alone(parts, tmp_path, words_of):
    for only in ("setting=away", "defense=kd"):
        said = words_of("run", parts, "--results", tmp_path / "r", "--only", only, status=2)
        assert "setting 'away'" in said and "dermnet is not in" in said
        assert not (tmp_path / "r").exists()
    absent = "; data not checked: dermnet not on this machine"
    assert words_of("validate", parts).endswith(absent)
    words = ("--only", "coalition=pair,attack=loss-series", "--dry-run")
    said = words_of("run", parts, "--results", tmp_path / "r", *words)
    assert "tiny: 3 runs, 3 cells" in said and "away" not in said
