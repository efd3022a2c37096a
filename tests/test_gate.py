"""The regression gate's numbers: what counts as a change, how sure it must be, and what is not compared at all."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from gates import DEFENSES, SEEDS, made_of, moved, snapshot, use, without
from scipy import stats

from fedbench.core.contract.errors import UserError
from fedbench.leaderboard.gate.measures import MEASURES, Value, definitions
from fedbench.leaderboard.gate.noise import Pairing, half_widths
from fedbench.leaderboard.gate.snapshot import Key
from fedbench.leaderboard.gate.verdict import FALSE_ALARMS, compare

KEY = Key("iid", "pair", "mixup", "fta", "server")
NUMBERS = 2 * (2 * 3 + 1)  # defenses x (attacks x measures + accuracy)


def verdicts(found):
    """(verdict, defense, attack, measure) of every row that is not the same."""
    return {
        (r.verdict, r.key.defense, r.key.attack, r.measure.name if r.measure else None) for r in found.rows if r.verdict != "same"
    }


def row(found, measure="auc:ofl", attack="fta", defense="mixup"):
    """The row of one number."""
    compared = [r for r in found.rows if r.measure and r.measure.name == measure]
    return next(r for r in compared if (r.key.attack, r.key.defense) == (attack, defense))


def values(numbers, error=None):
    return [Value((float(x),), error) for x in numbers]


# -- verdicts ----------------------------------------------------------------------------------------------------------


def test_an_unchanged_tree_differs_by_exactly_nothing():
    found = compare(snapshot(noise=0.02), snapshot(noise=0.02))
    assert found.counts == {"same": NUMBERS} and {r.change for r in found.rows} == {0.0} and found.compared == NUMBERS


@pytest.mark.parametrize(("measure", "attack", "by", "defenses", "attacks"), [
    ("auc:ofl", "fta", 0.05, "worse", "better"), ("auc:ofl", "fta", -0.05, "better", "worse"),
    ("auc:ifl", "yeom", 0.05, "worse", "better"), ("tf01:ofl", "fta", 5.0, "worse", "better"),
    ("accuracy", "", -0.05, "worse", "worse"), ("accuracy", "", 0.05, "better", "better"),
])  # fmt: skip
def test_what_is_worse_comes_from_the_metric_and_from_who_asks(measure, attack, by, defenses, attacks):
    old = snapshot(noise=0.001)
    new = moved(old, by, measure, attack)
    assert verdicts(compare(new, old)) == {(defenses, "mixup", attack, measure)}
    assert verdicts(compare(new, old, side="attack")) == {(attacks, "mixup", attack, measure)}


def test_a_change_counts_beyond_the_floor_of_its_metric_alone():
    old = snapshot()
    assert verdicts(compare(moved(old, 0.0099), old)) == set()
    assert verdicts(compare(moved(old, 0.0101), old)) == {("worse", "mixup", "fta", "auc:ofl")}
    assert verdicts(compare(moved(old, 0.0101), old, floors={"auc": 0.02})) == set()
    assert verdicts(compare(moved(old, 0.0001), old, floors={"auc": 0.0})) == {("worse", "mixup", "fta", "auc:ofl")}
    assert compare(old, old).floors == {"auc": 0.01, "tf01": 1.0, "accuracy": 0.01}


def test_a_change_counts_beyond_its_interval_alone():
    old, new = snapshot(noise=0.02), snapshot(noise=0.02, draw=1)
    width = row(compare(new, old)).half_width
    assert width > 0.03 and row(compare(new, old)).tolerance == width
    assert row(compare(moved(new, 3 * width), old)).verdict == "worse"
    assert row(compare(moved(new, 0.5 * width - row(compare(new, old)).change), old)).verdict == "same"


def test_cells_that_are_gone_or_there_for_the_first_time():
    old = snapshot()
    assert verdicts(compare(without(old, KEY), old)) == {("missing", "mixup", "fta", None)}
    assert verdicts(compare(old, without(old, KEY))) == {("new", "mixup", "fta", None)}


def test_a_cell_that_lost_a_seed_is_missing_and_says_why():
    old = snapshot()
    cells = dict(old.cells)
    cells[KEY] = replace(
        cells[KEY], identities={s: i for s, i in cells[KEY].identities.items() if s != 3},
        values={m: {s: v for s, v in found.items() if s != 3} for m, found in cells[KEY].values.items()},
    )  # fmt: skip
    found = compare(replace(old, cells=cells, unscored={KEY: {3: "diverged: loss is not finite"}}), old)
    assert verdicts(found) == {("missing", "mixup", "fta", None)}
    assert found.rows[0].reasons == ("seed 3 diverged: loss is not finite",) and row(found).seeds == (4, 4)


def test_a_folder_of_fewer_seeds_is_compared_on_those():
    found = compare(snapshot(seeds=(1, 3)), snapshot())
    assert found.counts == {"same": NUMBERS} and row(found).seeds == (2, 2) and row(found).paired


def test_seeds_of_which_none_is_shared_are_compared_unpaired():
    found = compare(snapshot(seeds=(10, 11, 12), noise=0.01), snapshot(noise=0.01))
    assert found.compared == NUMBERS and not row(found).paired and row(found).seeds == (5, 3)


def test_another_suite_is_refused():
    with pytest.raises(UserError, match="of suite 'other', the baseline is of 'demo'; name the results of 'demo'"):
        compare(snapshot(suite="other"), snapshot())


def test_where_nothing_can_be_compared_the_gate_fails_whatever_is_asked():
    found = compare(made_of(snapshot(), lambda i: i["run"]["setting"]["federation"].update(rounds=30)), snapshot())
    assert found.compared == 0 and found.failing(()) and not compare(snapshot(), snapshot()).failing(())


# -- what is comparable ------------------------------------------------------------------------------------------------


def _run(name, value):
    return lambda i: i["run"].update({name: value})


@pytest.mark.parametrize(("change", "reason"), [
    (lambda i: i["run"]["setting"]["federation"].update(rounds=30), "federation.rounds 20 -> 30"),
    (lambda i: i["run"]["setting"]["audit"].update(nonmembers=9), "audit.nonmembers null -> 9"),
    (lambda i: i["run"]["digests"].update(data="other"), "the data of 'digits' changed"),
    (lambda i: i["run"]["digests"].update(split="other"), "who holds which samples, or who is asked about"),
    (lambda i: i["run"]["dataset"]["params"].update(test=99), "dataset 'digits': test 100 -> 99"),
    (lambda i: i["run"]["defense"]["params"].update(rate=0.3), "rate 0.2 -> 0.3"),
    (lambda i: i["run"]["provenance"].update(dtype="float64"), "dtype float32 -> float64"),
    (_run("members", [0, 2]), "members [0,1] -> [0,2]"), (_run("targets", [0]), "targets [0,1] -> [0]"),
    (_run("model", use("cnn")), "model 'mlp' -> 'cnn'"),
    (_run("attacker", use("insider")), "adversary's attack none -> 'insider'"),
])  # fmt: skip
def test_another_protocol_or_other_data_are_not_comparable_and_the_row_says_which(change, reason):
    found = compare(made_of(snapshot(), change), snapshot())
    assert found.counts == {"not-comparable": 6}
    assert all(reason in r.reasons[0] for r in found.rows if r.key.defense == "mixup")


@pytest.mark.parametrize(("change", "whose", "cells"), [
    (lambda i: i["run"]["digests"].update(engine="new"), "the engine's code changed", 6),
    (lambda i: i["run"].update(contract=3), "contract 2 -> 3", 6),
    (lambda i: i["run"]["defense"].update(digest="new"), "the code of defense", 6),
    (lambda i: i["run"]["model"].update(distribution="p 2.0"), "the package of model 'mlp': p 1.0 -> 2.0", 6),
    (lambda i: i.get("attack", {}).update(digest="new"), "the code of attack", 4),
    (lambda i: i.get("signals", {}).get("loss", {}).update(digest="new"), "the code of signal 'loss' changed", 2),
])  # fmt: skip
def test_changed_code_is_compared_and_named_unless_it_must_be_the_same(change, whose, cells):
    new = made_of(snapshot(), change)
    found = compare(new, snapshot())
    touched = {r.key for r in found.rows if any(whose in what for what in r.changed)}
    assert found.counts == {"same": NUMBERS} and len(touched) == cells
    strict = compare(new, snapshot(), same_code=True)
    assert {r.key for r in strict.rows if r.verdict == "not-comparable"} == touched
    assert all(whose in r.reasons[0] for r in strict.rows if r.key in touched)


def test_another_machine_is_compared_and_said():
    new = made_of(snapshot(), lambda i: i["run"].update(device="cuda", provenance={"torch": "2.12", "dtype": "float32"}))
    found = compare(replace(new, made={**new.made, "torch": ["2.12"]}), snapshot())
    assert found.counts == {"same": NUMBERS} and found.machines == ("torch 2.11 -> 2.12",) and found.rows[0].changed == ()


def test_without_a_shared_seed_what_a_seed_decides_is_not_compared_but_the_protocol_is():
    other = snapshot(seeds=(7, 8))
    assert compare(other, snapshot()).compared == NUMBERS
    assert compare(made_of(other, lambda i: i["run"]["model"]["params"].update(hidden=9)), snapshot()).compared == 0


def test_a_metric_that_became_another_one_is_not_compared():
    old = replace(snapshot(), definitions={**definitions(), "auc:ofl": "lower 0.5"})
    found = compare(snapshot(), old)
    assert found.counts == {"not-comparable": 4, "same": NUMBERS - 4}
    assert found.rows[0].reasons[0].startswith("definition of auc:ofl lower 0.5 -> lower 0.8")


def test_the_definition_of_a_metric_is_what_it_makes_of_a_sample(monkeypatch):
    before = definitions()
    monkeypatch.setattr("fedbench.leaderboard.gate.measures.auc", lambda scores, member: 0.75)
    assert {name for name, said in definitions().items() if said != before[name]} == {"auc:ofl", "auc:ifl"}


# -- how sure ----------------------------------------------------------------------------------------------------------


def test_the_interval_of_one_cell_is_students():
    rng = np.random.default_rng(0)
    old, new = rng.normal(size=5), rng.normal(size=5)
    (unpaired,) = half_widths([Pairing(old=values(old), new=values(new[:4]), paired=False)], 0.01)
    low, high = stats.ttest_ind(new[:4], old).confidence_interval(0.99)
    assert unpaired == pytest.approx((high - low) / 2)


def test_pairs_have_the_narrower_of_both_intervals_each_at_half_the_level():
    rng = np.random.default_rng(0)
    old, small, large = rng.normal(size=5), 0.01 * rng.normal(size=5), 9 * rng.normal(size=5)
    (close,) = half_widths([Pairing(old=values(old), new=values(old + small), paired=True)], 0.01)
    low, high = stats.ttest_rel(old + small, old).confidence_interval(0.995)
    assert close == pytest.approx((high - low) / 2)
    (far,) = half_widths([Pairing(old=values(old), new=values(large), paired=True)], 0.01)
    low, high = stats.ttest_ind(large, old).confidence_interval(0.995)
    assert far == pytest.approx((high - low) / 2)


def test_a_family_shares_its_variance_and_the_degrees_of_freedom_of_what_is_independent():
    a, b = np.array([1.0, -1, 0, 0]), np.array([0.0, 0, 1, -1])  # residuals that have nothing to do with each other
    zero, t = values(np.zeros(4)), stats.t(12).ppf(0.995)
    one, two = half_widths([Pairing(old=zero, new=values(x), paired=False) for x in (a, b)], 0.01)
    assert one == two == pytest.approx(t * np.sqrt(2 / 6 / 2))
    same = half_widths([Pairing(old=zero, new=values(a), paired=False)] * 2, 0.01)
    assert same == pytest.approx([stats.t(6).ppf(0.995) * np.sqrt(2 / 6 / 2)] * 2)


def test_a_cell_that_varies_more_than_its_family_keeps_its_own_variance():
    zero = values(np.zeros(4))
    loud, quiet = np.array([1.0, -1, 0, 0]), np.array([0.0, 0, 0.1, -0.1])
    wide, narrow = half_widths([Pairing(old=zero, new=values(x), paired=False) for x in (loud, quiet)], 0.01)
    t = stats.t(6 * 2.02**2 / (2**2 + 0.02**2)).ppf(0.995)
    assert wide == pytest.approx(t * np.sqrt(2 / 6 / 2)) and narrow == pytest.approx(t * np.sqrt(2.02 / 2 / 6 / 2))


def test_pairs_of_one_defense_say_nothing_of_another():
    """Rounding alone moved members of one defense ten times as far: pooled, its cells were false alarms."""
    old, quiet, loud = np.array([0.5, 0.6, 0.7, 0.8]), 0.001 * np.array([1, -1, 0, 0]), 0.01 * np.array([0, 0, 1, -1])
    widths = half_widths([Pairing(old=values(old), new=values(old + x), paired=True) for x in (quiet, loud)], 0.01)
    assert widths[1] == pytest.approx(10 * widths[0])


def test_other_candidates_are_never_surer_than_their_errors():
    old, new = values([0.6, 0.6, 0.6], 0.03), values([0.61, 0.61, 0.61], 0.04)
    (unpaired,) = half_widths([Pairing(old=old, new=new, paired=False)], 0.05)
    assert unpaired == pytest.approx(1.959964 * np.sqrt((0.03**2 + 0.04**2) / 3))
    assert half_widths([Pairing(old=old, new=new, paired=True)], 0.05) == [pytest.approx(0, abs=1e-12)]


def test_one_seed_a_side_has_its_candidates_errors_or_none():
    assert half_widths([Pairing(old=values([0.6], 0.03), new=values([0.7], 0.04), paired=True)], 0.05) == [
        pytest.approx(1.959964 * 0.05)
    ]
    assert half_widths([Pairing(old=values([1.0]), new=values([2.0]), paired=True)], 0.05) == [None]
    found = compare(moved(snapshot(seeds=(0,)), 3.0, "tf01:ofl"), snapshot(seeds=(0,)))
    assert verdicts(found) == {("not-comparable", "mixup", "fta", "tf01:ofl")}


def test_the_level_is_shared_by_all_numbers():
    assert compare(snapshot(), snapshot()).level == FALSE_ALARMS / NUMBERS


@pytest.mark.parametrize("seeds", [SEEDS, (5, 6, 7, 8, 9)])
def test_noise_alone_seldom_stops_the_gate_and_often_would_without_the_correction(seeds):
    alarms = Counter()
    for i in range(100):
        old, new = snapshot(noise=0.03, draw=2 * i), snapshot(seeds=seeds, noise=0.03, draw=2 * i + 1)
        alarms["corrected"] += set(compare(new, old).counts) != {"same"}
        alarms["not"] += set(compare(new, old, false_alarms=0.05 * NUMBERS).counts) != {"same"}
    assert alarms["corrected"] <= 2 and alarms["not"] >= 20


def test_a_leak_of_twice_the_noise_in_one_attack_is_found_and_nobody_else_blamed():
    for i in range(10):
        old, new = snapshot(noise=0.02, draw=2 * i), snapshot(noise=0.02, draw=2 * i + 1)
        for defense in DEFENSES:
            new = moved(new, 0.25, defense=defense)
        assert verdicts(compare(new, old)) == {("worse", defense, "fta", "auc:ofl") for defense in DEFENSES}


def test_every_measure_of_the_registry_keeps_its_direction():
    assert {name: (m.direction, m.flips) for name, m in MEASURES.items()} == {
        "auc:ofl": ("lower", True), "auc:ifl": ("lower", True), "tf01:ofl": ("lower", True), "accuracy": ("higher", False),
    }  # fmt: skip
