"""The regression gate: what counts as a change, how sure it must be, baseline files, and the two
commands.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from edits import put
from scipy import stats

from fedbench.core import UserError
from fedbench.core.metrics import auc
from fedbench.core.store.integrity import digest_of
from fedbench.core.store.reading import load_records
from fedbench.leaderboard.comparison.cells import Cell, Key, Snapshot
from fedbench.leaderboard.comparison.compare import FALSE_ALARMS, compare
from fedbench.leaderboard.comparison.intervals import Pairing, half_widths
from fedbench.leaderboard.comparison.measures import ACCURACY, Value
from fedbench.leaderboard.gate.file import read_baseline, snapshot_in, write_baseline
from fedbench.leaderboard.gate.junit import junit
from fedbench.leaderboard.gate.report import Gate, as_json, markdown

DEFENSES, SEEDS = ("mixup", "none"), (0, 1, 2, 3, 4)
SIGNAL_OF = {"fta": "confidence", "yeom": "loss"}  # the attacks
NUMBERS = 2 * (2 * 3 + 1)  # defenses x (attacks x measures + accuracy)
KEY = Key("iid", "pair", "mixup", "fta", "server")


def use(name, **params):
    """A component as records name it."""
    return {
        "name": name,
        "params": params,
        "target": f"p.{name}:C",
        "distribution": "p 1.0",
        "digest": f"code of {name}",
    }


def identity(defense, attack, seed):
    """What a cell is made of, in the form of a record's identity."""
    run = {
        "setting": {"federation": {"rounds": 20}},
        "members": [0, 1],
        "targets": [0, 1],
        "seed": seed,
        "attacker": None,
        "dataset": use("digits"),
        "model": use("mlp"),
        "defense": use(defense, rate=0.2),
        "device": "cpu",
        "contract": 2,
        "digests": {
            "data": f"data {seed}",
            "split": f"split {seed}",
            "engine": "code of the engine",
        },
        "provenance": {"torch": "2.11", "dtype": "float32"},
    }
    return {"run": run} | (
        {"attack": use(attack), "signals": {SIGNAL_OF[attack]: use(SIGNAL_OF[attack])}}
        if attack
        else {}
    )


def snapshot(seeds=SEEDS, noise=0.0, draw=0, suite="demo"):
    """An AUC of .6 outside, .55 inside, a TF01 of 1 % and an accuracy of .9, each with normal
    ``noise`` times its scale.
    """
    rng = np.random.default_rng(draw)

    def values(mean, scale, error):
        return {
            s: Value((round(mean + scale * noise * rng.standard_normal(), 5),), error)
            for s in seeds
        }

    cells = {}
    for defense in DEFENSES:
        for attack in ("", *SIGNAL_OF):
            key = Key("iid", "pair", defense, attack, "server" if attack else "")
            found = {
                "auc:ofl": values(0.6, 1, 0.03),
                "auc:ifl": values(0.55, 1, 0.03),
                "tf01:ofl": values(1.0, 10, None),
            }
            own = found if attack else {ACCURACY: values(0.9, 1, 0.01)}
            cells[key] = Cell(
                key,
                {s: identity(defense, attack, s) for s in seeds},
                dict.fromkeys(seeds, "bits"),
                own,
            )
    return Snapshot(suite=suite, made={"torch": ["2.11"]}, cells=cells)


def made_of(path, value):
    """The snapshot with a value put into every identity that has such a place."""
    made = snapshot()
    for cell in made.cells.values():
        for one in cell.identities.values():
            with contextlib.suppress(KeyError):
                put(one, path, value)
    return made


def moved(made, by, measure="auc:ofl", key=KEY):
    """With one measure of one cell moved."""
    values = {
        s: Value(tuple(p + by for p in v.parts), v.error)
        for s, v in made.cells[key].values[measure].items()
    }
    cell = replace(made.cells[key], values={**made.cells[key].values, measure: values})
    return replace(made, cells={**made.cells, key: cell})


def verdicts(found):
    """(verdict, attack, measure) of every row that is neither identical nor the same."""
    rows = (r for r in found.rows if r.verdict not in ("identical", "same"))
    return {(r.verdict, r.key.attack, r.measure.name if r.measure else None) for r in rows}


def row(found):
    """The row of one AUC."""
    return next(r for r in found.rows if r.measure and r.measure.name == "auc:ofl" and r.key == KEY)


def values(numbers, error=None):
    return [Value((float(x),), error) for x in numbers]


# --- verdicts -------------------------------------------------------------------------------------


def test_an_unchanged_tree_has_no_change():
    found = compare(snapshot(noise=0.02), snapshot(noise=0.02))
    assert found.counts == {"identical": NUMBERS}
    assert {r.change for r in found.rows} == {0.0}
    assert (found.compared, found.level) == (NUMBERS, FALSE_ALARMS / NUMBERS)
    assert not found.failing(())


@pytest.mark.parametrize(
    ("measure", "attack", "by", "defenses", "attacks"),
    [
        ("auc:ofl", "fta", 0.05, "worse", "better"),
        ("tf01:ofl", "fta", -5.0, "better", "worse"),
        ("accuracy", "", -0.05, "worse", "worse"),
    ],
)
def test_the_metric_and_the_side_decide_what_is_worse(measure, attack, by, defenses, attacks):
    old = snapshot(noise=0.001)
    new = moved(old, by, measure, KEY._replace(attack=attack, view="server" if attack else ""))
    assert verdicts(compare(new, old)) == {(defenses, attack, measure)}
    assert verdicts(compare(new, old, side="attack")) == {(attacks, attack, measure)}


def test_a_change_counts_beyond_its_floor_and_its_interval():
    old, worse = snapshot(), {("worse", "fta", "auc:ofl")}
    assert compare(old, old).floors == {
        "auc": 0.01,
        "tf01": 1.0,
        "accuracy": 0.01,
        "loss": 0.001,
        "utility": 0.001,
    }
    within = {("moved", "fta", "auc:ofl")}
    assert verdicts(compare(moved(old, 0.0099), old)) == within
    assert verdicts(compare(moved(old, 0.0101), old)) == worse
    assert verdicts(compare(moved(old, 0.0101), old, floors={"auc": 0.02})) == within
    old, new = snapshot(noise=0.02), snapshot(noise=0.02, draw=1)
    found = row(compare(new, old))
    assert found.tolerance == found.half_width > 0.03
    assert row(compare(moved(new, 1.01 * found.half_width - found.change), old)).verdict == "worse"
    assert row(compare(moved(new, 0.99 * found.half_width - found.change), old)).verdict == "moved"


def test_scores_with_other_bits_are_moved_though_no_number_is():
    old = snapshot()
    new = replace(
        old,
        cells={
            **old.cells,
            KEY: replace(old.cells[KEY], digests={**old.cells[KEY].digests, 2: "other"}),
        },
    )
    found = compare(new, old)
    assert verdicts(found) == {
        ("moved", "fta", name) for name in ("auc:ofl", "auc:ifl", "tf01:ofl")
    }
    assert found.failing(("moved",)) and not found.failing(
        ("worse", "better", "missing", "not-comparable", "new")
    )


def test_cells_and_seeds_that_are_gone_or_new_are_named():
    old = snapshot()
    fewer = replace(old, cells={key: cell for key, cell in old.cells.items() if key != KEY})
    assert verdicts(compare(fewer, old)) == {("missing", "fta", None)}
    assert verdicts(compare(old, fewer)) == {("new", "fta", None)}
    lost = snapshot(seeds=(0, 1, 2, 4)).cells[KEY]
    new = replace(
        old, cells={**old.cells, KEY: lost}, unscored={KEY: {3: "diverged: loss is not finite"}}
    )
    found = compare(new, old)
    assert verdicts(found) == {("missing", "fta", None)}
    assert found.rows[0].reasons == ("seed 3 diverged: loss is not finite",)
    assert row(found).seeds == 4


def test_a_seed_that_failed_in_every_cell_is_missing():
    old = snapshot()
    failed = {key: {4: "failed: killed"} for key in old.cells}
    found = compare(replace(snapshot((0, 1, 2, 3)), unscored=failed), old)
    missing = [r for r in found.rows if r.verdict == "missing"]
    assert {r.key for r in missing} == old.cells.keys()
    assert {r.reasons for r in missing} == {("seed 4 failed: killed",)}
    assert found.failing(("missing",))


def test_shared_seeds_are_compared_in_pairs_and_others_not_at_all():
    found = compare(snapshot((1, 3)), snapshot())
    assert (found.counts, row(found).seeds) == ({"identical": NUMBERS}, 2)
    found = compare(snapshot((10, 11)), snapshot())
    assert {r.reasons for r in found.rows} == {("no seed in common",)}
    assert found.compared == 0


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("run/setting/federation/rounds", 30, "federation.rounds 20 -> 30"),
        ("run/digests/data", "other", "the digest of the data changed"),
        ("run/digests/split", "other", "the digest of the split changed"),
        ("run/defense/params/rate", 0.3, "rate 0.2 -> 0.3"),
        ("run/provenance/dtype", "float64", "dtype float32 -> float64"),
        ("run/attacker", use("insider"), "attacker null -> insider"),
    ],
)
def test_another_protocol_is_not_comparable_and_fails_the_gate(path, value, reason):
    found = compare(made_of(path, value), snapshot())
    assert found.counts == {"not-comparable": 6}
    assert all(reason in r.reasons[0] for r in found.rows if r.key.defense == "mixup")
    assert found.failing(())


@pytest.mark.parametrize(
    ("path", "said", "cells"),
    [
        ("run/digests/engine", "the engine's code changed", 6),
        ("attack/digest", "the code of attack", 4),
        ("signals/loss/digest", "the code of signals.loss changed", 2),
    ],
)
def test_changed_code_is_compared_and_named(path, said, cells):
    found = compare(made_of(path, "new"), snapshot())
    touched = {r.key for r in found.rows if any(said in what for what in r.changed)}
    assert found.counts == {"identical": NUMBERS}
    assert len(touched) == cells


def test_another_machine_is_compared_and_another_suite_is_not():
    old = snapshot()
    found = compare(
        replace(moved(made_of("run/device", "cuda"), 0.001), made={"torch": ["2.12"]}), old
    )
    assert (found.counts, found.machines) == (
        {"identical": NUMBERS - 1, "same": 1},
        ("torch 2.11 -> 2.12",),
    )
    assert "Bits cannot agree" in markdown(Gate(comparison=found, fail_on=()))
    two = {"torch": ["2.11", "2.12"]}
    assert not compare(replace(old, made=two), replace(old, made=two)).by_bits
    other = compare(replace(old, made={**old.made, "fedbench": ["2"]}), old)
    assert (other.by_bits, other.machines) == (True, ("fedbench none -> 2",))
    with pytest.raises(UserError, match="of suite 'other', the baseline is of 'demo'"):
        compare(snapshot(suite="other"), old)


# --- intervals ------------------------------------------------------------------------------------


def test_the_interval_of_one_cell_is_students():
    rng = np.random.default_rng(0)
    old, new = rng.normal(size=5), rng.normal(size=5)
    for change in (0.01 * new, 9 * new):  # the narrower of two intervals, each at half the level
        either = stats.ttest_rel(old + change, old), stats.ttest_ind(old + change, old)
        ends = [test.confidence_interval(0.995) for test in either]
        (width,) = half_widths([Pairing(old=values(old), new=values(old + change))], 0.01)
        assert width == pytest.approx(min((e.high - e.low) / 2 for e in ends))


def test_a_family_shares_its_variance_and_the_degrees_of_freedom_of_its_independent_residuals():
    a, b = np.array([1.0, -1, 0, 0]), np.array([0.0, 0, 1, -1])

    def widths(*changes):
        pairs = [Pairing(old=values(-x / 2), new=values(x / 2)) for x in changes]
        return half_widths(pairs, 0.02)

    pooled = np.sqrt(1 / 6 / 2)
    assert widths(a, b) == pytest.approx([stats.t(12).ppf(0.995) * pooled] * 2)
    assert widths(a, a) == pytest.approx([stats.t(6).ppf(0.995) * pooled] * 2)
    # a cell that varies more keeps its own variance
    t = stats.t(6 * 1.01**2 / (1 + 0.01**2)).ppf(0.995)
    assert widths(a, 0.1 * b)[0] == pytest.approx(t * pooled)
    old = np.array([0.5, 0.6, 0.7, 0.8])
    quiet, loud = half_widths(
        [Pairing(old=values(old), new=values(old + x)) for x in (0.001 * a, 0.01 * b)], 0.01
    )
    assert loud == pytest.approx(10 * quiet)  # pairs of one defense say nothing of another


# --- the file -------------------------------------------------------------------------------------


def test_a_baseline_holds_the_snapshot_and_a_change_of_one_cell_is_one_line(tmp_path):
    for name, made in {"a": snapshot(), "again": snapshot(), "b": moved(snapshot(), 0.1)}.items():
        write_baseline(tmp_path / name, made)
        assert read_baseline(tmp_path / name) == made
    assert (tmp_path / "a").read_bytes() == (tmp_path / "again").read_bytes()
    old, new = ((tmp_path / name).read_text().splitlines() for name in "ab")
    different = [b for a, b in zip(old, new, strict=True) if a != b]
    assert [line.split(":")[0] for line in different] == ['"digest"', '{"setting"']
    (tmp_path / "b").write_text((tmp_path / "b").read_text().replace("0.6", "0.4", 1))
    with pytest.raises(UserError, match="damaged or changed since fedbench wrote it"):
        read_baseline(tmp_path / "b")


def rewritten(path, place, value):
    """A baseline with a value put into it, and its digest made anew."""
    content = json.loads(path.read_text())
    put(content, place, value)
    path.write_text(json.dumps({**content, "digest": digest_of(content)}))


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("schema", 5, "a baseline of schema 5, this fedbench reads 4; upgrade fedbench"),
        ("schema", 3, "a baseline of schema 3, this fedbench reads 4; make it anew"),
        (
            "kind",
            "fedbench record",
            "not a baseline of fedbench; `fedbench baseline RESULTS -o FILE` writes one",
        ),
        (
            "cells/1/values/auc:ofl/0/0/0",
            None,
            "cells.1.values.auc:ofl.0.0.0: Input should be a valid number",
        ),
        ("runs", {}, "a part is missing"),
        ("more", 1, "(more: Extra inputs are not permitted)"),
    ],
)
def test_a_baseline_with_a_mistake_is_refused_with_place_and_reason(
    tmp_path, place, value, message
):
    path = tmp_path / "b.json"
    write_baseline(path, snapshot())
    rewritten(path, place, value)
    with pytest.raises(UserError, match=re.escape(message)) as error:
        read_baseline(path)
    assert str(error.value).startswith(f"{path}: ")


# --- the commands ---------------------------------------------------------------------------------


@pytest.fixture
def baseline(finished, tmp_path, words_of):
    """The baseline of the shared results."""
    words_of("baseline", finished, "-o", tmp_path / "baseline.json")
    return tmp_path / "baseline.json"


def test_the_values_are_those_of_the_scores(finished):
    cells = snapshot_in(finished).cells
    assert len(cells) == 2 * (2 + 1)
    for loaded in load_records(finished):
        record = loaded.record
        key = Key(
            "digits", record.coalition, record.defense.label, record.attack.label, record.view
        )
        assert set(cells[key].values) == {"auc:ofl", "auc:ifl"}  # too few non-members for a TF01
        for group, kind in (("auc:ofl", 1), ("auc:ifl", 2)):
            for target, value in zip(
                record.targets, cells[key].values[group][0].parts, strict=True
            ):
                c = loaded.candidates(target.target)
                chosen = (c.kind == 0) | (c.kind == kind)
                assert value == pytest.approx(auc(c.scores[chosen], c.kind[chosen] == 0), abs=1e-5)
        run = cells[key._replace(attack="", view="")]
        assert run.values["accuracy"][0].mean == pytest.approx(record.accuracy, abs=1e-5)


def test_a_worse_cell_fails_the_gate_and_is_written_for_programs(
    finished, baseline, tmp_path, words_of
):
    words = words_of("compare", finished, baseline, "--fail-on", "any-change")
    assert "The gate **passed**: 10 identical" in words
    cells = json.loads(baseline.read_text())["cells"]
    at = next(
        i
        for i, c in enumerate(cells)
        if (c["defense"], c["attack"]) == ("grad-noise", "loss-series")
    )
    parts, error = cells[at]["values"]["auc:ofl"]["0"]
    rewritten(baseline, f"cells/{at}/values/auc:ofl/0", [[p - 0.3 for p in parts], error])
    files = ("--json", tmp_path / "gate.json", "--output", tmp_path / "gate.md")
    words = words_of("compare", finished, baseline, *files, status=1)
    assert "The gate **failed**: 1 worse, 9 identical" in words
    assert "1 worse, 9 identical" in (tmp_path / "gate.md").read_text()
    first = json.loads((tmp_path / "gate.json").read_text())["rows"][0]
    named = [first[name] for name in ("verdict", "defense", "attack", "measure")]
    assert named == ["worse", "grad-noise", "loss-series", "auc:ofl"]
    assert first["new"] - first["old"] == pytest.approx(0.3) == first["change"]
    assert first["unit"] == ""
    words = words_of("compare", finished, baseline, "--json", status=1)
    assert json.loads(words) == json.loads((tmp_path / "gate.json").read_text())
    words_of("compare", finished, baseline, "--for", "attack")
    words_of("compare", finished, baseline, "--floor", "auc=0.5", "--floor", "loss=0.1")


@pytest.mark.parametrize(
    ("measure", "attack", "by", "unit", "said"),
    [
        (ACCURACY, "", -0.2, "fraction", "90 % -> 70 %, tolerance 1 %"),
        ("tf01:ofl", "fta", 20.0, "%", "1 % -> 21 %, tolerance 1 %"),
        ("auc:ofl", "fta", 0.2, "", "0.6 -> 0.8, tolerance 0.0"),
    ],
)
def test_numbers_of_each_measure_have_their_unit(measure, attack, by, unit, said):
    old = snapshot()
    new = moved(old, by, measure, KEY._replace(attack=attack, view="server" if attack else ""))
    gate = Gate(comparison=compare(new, old), fail_on=("worse",))
    (line,) = (r for r in json.loads(as_json(gate))["rows"] if r["verdict"] == "worse")
    assert (line["measure"], line["unit"]) == (measure, unit)
    assert line["new"] - line["old"] == pytest.approx(by)
    (failure,) = ElementTree.fromstring(junit(gate)).iter("failure")
    assert said in failure.get("message")


def test_a_defense_with_another_default_fails_the_gate(finished, baseline, words_of):
    parts = json.loads(baseline.read_text())["parts"]
    (part,) = (
        n
        for n, part in parts.items()
        if isinstance(part, dict) and part.get("name") == "grad-noise"
    )
    rewritten(baseline, f"parts/{part}/params/sigma", 0.5)
    words = words_of("compare", finished, baseline, status=1)
    assert "The gate **failed**: 3 not comparable, 5 identical" in words
    assert "sigma 0.5 -" in words


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--fail-on", "wrose", "'wrose' is none of refuted, worse, better"),
        ("--floor", "auc=nan", "expected 0 or more"),
        ("--json", "baseline.json", "is what is compared"),
    ],
)
def test_a_mistaken_option_is_explained(
    finished, baseline, option, value, message, words_of, monkeypatch
):
    monkeypatch.chdir(baseline.parent)
    before = baseline.read_bytes()
    assert message in words_of("compare", finished, baseline, option, value, status=2)
    words_of("baseline", finished, "-o", baseline, status=2)
    assert baseline.read_bytes() == before
