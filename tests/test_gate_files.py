"""A baseline file: what it looks like in git, what it refuses, and the two commands around it on a real results folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boards import LEAK, Folder
from click.testing import CliRunner
from gates import moved, snapshot
from running import invoke, suite

from fedbench.core.cli.main import cli
from fedbench.core.contract.errors import UserError
from fedbench.core.metrics import auc
from fedbench.core.store.integrity import digest_of
from fedbench.core.store.reading import load_records
from fedbench.core.store.results import Results
from fedbench.leaderboard.gate.file import MAX_BYTES, read_baseline, write_baseline
from fedbench.leaderboard.gate.measures import values_of
from fedbench.leaderboard.gate.report import Gate, as_json, markdown
from fedbench.leaderboard.gate.snapshot import Key, snapshot_of
from fedbench.leaderboard.gate.verdict import compare


def fedbench(*args: object, status: int = 0) -> str:
    """Everything that a command prints."""
    result = CliRunner().invoke(cli, [str(a) for a in args], prog_name="fedbench")
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert result.exit_code == status, result.output
    return result.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two defenses, two attacks and three seeds of a federation of a second."""
    work = tmp_path_factory.mktemp("gate")
    made = suite(work, seeds=[0, 1, 2], defenses=["none", "grad-noise"], attacks=["loss-series", "fta-l"])
    invoke(made, "--results", work / "results")
    return work / "results"


@pytest.fixture(scope="module")
def baseline(folder: Path) -> Path:
    """The baseline of that folder."""
    fedbench("baseline", folder, "-o", folder.parent / "baseline.json")
    return folder.parent / "baseline.json"


# -- the file ----------------------------------------------------------------------------------------------------------


def test_a_file_holds_the_snapshot_and_the_same_one_gives_the_same_bytes(tmp_path):
    made = snapshot(noise=0.01)
    for name in ("a.json", "b.json"):
        write_baseline(tmp_path / name, made)
    assert read_baseline(tmp_path / "a.json") == made
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_a_change_of_one_cell_is_a_change_of_one_line_beside_the_digest(tmp_path):
    write_baseline(tmp_path / "a.json", snapshot())
    write_baseline(tmp_path / "b.json", moved(snapshot(), 0.1))
    old, new = ((tmp_path / name).read_text().splitlines() for name in ("a.json", "b.json"))
    different = [b for a, b in zip(old, new, strict=True) if a != b]
    assert [line.split(":")[0] for line in different] == ['"digest"', '{"setting"'] and len(old) > 20


def test_an_existing_file_stays_unless_forced(folder, baseline, tmp_path):
    copy = tmp_path / "mine.json"
    copy.write_text("mine")
    said = fedbench("baseline", folder, "-o", copy, status=2)
    assert f"{copy}: exists already; nothing was written - give --force" in said and copy.read_text() == "mine"
    fedbench("baseline", folder, "-o", copy, "--force")
    assert copy.read_bytes() == baseline.read_bytes()


def spoilt(content: dict[str, Any], change: Callable[[dict[str, Any]], object]) -> bytes:
    """The file after a change, with a digest of its own."""
    change(content)
    return json.dumps({**content, "digest": digest_of(content)}).encode()


def _value(name: str, value: Any) -> Callable[[dict[str, Any]], object]:
    return lambda c: c["cells"][1]["values"].update({name: {"0": value}})


@pytest.mark.parametrize(("change", "message"), [
    (lambda c: c.update(schema=2), "a baseline of schema 2, this fedbench reads 1; upgrade fedbench"),
    (lambda c: c.update(schema="1"), "a baseline of schema '1', this fedbench reads 1; make it anew"),
    (lambda c: c.update(kind="fedbench record"), "not a baseline of fedbench; `fedbench baseline RESULTS -o FILE` writes one"),
    (lambda c: c.update(cells=[]), "holds no cell, so there is nothing to compare with; make it anew"),
    (lambda c: c["cells"].append(c["cells"][2]), "cell 7: iid/pair mixup vs yeom (server) stands there twice; make it anew"),
    (_value("f1", [[0.5], None]), "cell 2 (iid/pair mixup vs fta (server)): the measure 'f1' is unknown to this fedbench"),
    (_value("auc:ofl", [[1.5], None]), "mixup vs fta (server)): 'auc:ofl' has a value that is not between 0 and 1"),
    (_value("auc:ofl", [[], None]), "'auc:ofl' has a value that is not between 0 and 1, or none"),
    (_value("auc:ofl", [[0.5], -1]), "'auc:ofl' has an error that is not between 0 and 1"),
    (_value("auc:ofl", ["x", None]), "not a valid baseline (cells.1.values.auc:ofl.0.0: Input should be a valid list)"),
    (lambda c: c["cells"][1]["values"].update({"auc:ofl": {"9": [[0.5], None]}}), "'auc:ofl' has a seed that the cell has not"),
    (lambda c: c["cells"][1]["seeds"].update({"01": "engine"}), "'01' is no seed"),
    (lambda c: c["cells"][1]["seeds"].update({"1": c["cells"][1]["seeds"]["0"]}), "seed 1 is made of the part of another seed"),
    (lambda c: c["parts"].pop("engine"), "its part 'engine' is not in the file"),
    (lambda c: c["parts"].update(engine={}), "its parts are not what a cell is made of (KeyError("),
    (lambda c: c.update(more=1), "not a valid baseline (more: Extra inputs are not permitted)"),
    (lambda c: c.pop("made"), "not a valid baseline (made: Field required)"),
])  # fmt: skip
def test_a_file_that_is_of_no_use_is_refused_with_place_reason_and_remedy(tmp_path, change, message):
    path = tmp_path / "b.json"
    write_baseline(path, snapshot())
    path.write_bytes(spoilt(json.loads(path.read_text()), change))
    with pytest.raises(UserError) as error:
        read_baseline(path)
    assert str(error.value).startswith(f"{path}: ") and message in str(error.value)


@pytest.mark.parametrize(("content", "message"), [
    (lambda text: text.replace("0.6", "0.4", 1), "damaged or changed since fedbench wrote it"),
    (lambda text: text[:-30], "unreadable, not a complete JSON file"),
    (lambda text: text.replace("0.6", "NaN", 1), "NaN is not a JSON number"),
    (lambda text: text.replace("0.6", "1e999", 1), "out of range"),
    (lambda text: "[]", "not a baseline of fedbench"),
    (lambda text: text + " " * MAX_BYTES, "larger than 4 MiB"),
])  # fmt: skip
def test_a_damaged_file_is_refused(tmp_path, content, message):
    path = tmp_path / "b.json"
    write_baseline(path, snapshot())
    path.write_text(content(path.read_text()))
    with pytest.raises(UserError) as error:
        read_baseline(path)
    assert str(error.value).startswith(f"{path}: ") and message in str(error.value)
    assert "`fedbench baseline RESULTS -o FILE" in str(error.value)


def test_a_file_that_is_not_there_is_a_message(folder, tmp_path):
    assert "gone.json: no such file; `fedbench baseline" in fedbench("compare", folder, tmp_path / "gone.json", status=2)


@pytest.mark.parametrize("option", ["--output", "--json"])
def test_what_is_compared_is_not_overwritten(folder, baseline, tmp_path, option):
    before = baseline.read_bytes()
    (tmp_path / "link.json").symlink_to(baseline)
    for path in (baseline, tmp_path / "link.json", next((folder / "records").iterdir())):
        assert f"{path}: is what is compared" in fedbench("compare", folder, baseline, option, path, status=2)
    assert baseline.read_bytes() == before and fedbench("compare", folder, baseline)
    twice = fedbench("compare", folder, baseline, "--output", tmp_path / "x", "--json", tmp_path / "x", status=2)
    assert "written twice" in twice and not (tmp_path / "x").exists()


# -- what is measured --------------------------------------------------------------------------------------------------


def test_the_values_are_those_of_the_scores(folder):
    made = snapshot_of(folder)
    assert made.seeds == [0, 1, 2] and len(made.cells) == 2 * (2 + 1)
    own = [r for r in load_records(folder) if (r.record.defense.label, r.record.attack.label) == ("none", "fta-l")]
    records = {r.record.seed: r for r in own}
    cell = made.cells[Key("digits", "none", "none", "fta-l", "server")]
    for group, kind in (("auc:ofl", 1), ("auc:ifl", 2)):
        for seed, loaded in records.items():
            for target, value in zip(loaded.record.targets, cell.values[group][seed].parts, strict=True):
                c = loaded.candidates(target.target)
                chosen = (c.kind == 0) | (c.kind == kind)
                assert value == pytest.approx(auc(c.scores[chosen], c.kind[chosen] == 0), abs=1e-5)
    run = made.cells[Key("digits", "none", "none", "", "")]
    said = {s: r.record.utility.accuracy for s, r in records.items()}
    assert {s: v.mean for s, v in run.values["accuracy"].items()} == pytest.approx(said, abs=1e-5)
    assert "tf01:ofl" not in cell.values  # too few non-members


def test_tf01_is_there_where_all_seeds_together_have_the_nonmembers_for_it(tmp_path):
    made = {n: Folder(tmp_path / str(n), {"none": 1.0}, attacks=("fta",), n_ofl=n).fill() for n in (150, 400)}
    by_seed = {n: {r.record.seed: r for r in load_records(f.root)} for n, f in made.items()}
    assert "tf01:ofl" not in values_of(by_seed[150])  # 1,800 together, but 150 each
    found = values_of(by_seed[400])["tf01:ofl"]
    assert list(found) == [0, 1, 2] and all(0 <= v.mean <= 100 for v in found.values())


def test_records_that_do_not_say_what_they_are_made_of_are_refused(tmp_path):
    made = Folder(tmp_path / "old", LEAK).fill()
    Results(made.root)._write_marker({"suite": "demo", "cells": []})
    said = fedbench("baseline", made.root, "-o", tmp_path / "b.json", status=2)
    assert "a record of schema 3, which does not say what it was made of" in said and not (tmp_path / "b.json").exists()


def test_a_number_that_its_scores_do_not_give_makes_no_baseline(folder, tmp_path):
    copy = tmp_path / "results"
    shutil.copytree(folder, copy)
    path = next((copy / "records").glob("*fta-l*.json"))
    content = json.loads(path.read_text())
    content["utility"]["accuracy"] += 0.01
    path.write_text(json.dumps({**content, "digest": digest_of(content)}))
    said = fedbench("baseline", copy, "-o", tmp_path / "b.json", status=2)
    assert "test accuracy is" in said and not (tmp_path / "b.json").exists()


def test_cells_that_failed_make_no_baseline(folder, tmp_path):
    copy = tmp_path / "results"
    shutil.copytree(folder, copy)
    path = next((copy / "records").glob("*grad-noise--fta-l--s1*.json"))
    content = {**json.loads(path.read_text()), "outcome": "failed", "reason": "ValueError: no", "targets": [], "pooled": {}}
    path.write_text(json.dumps({**content, "digest": digest_of(content)}))
    said = fedbench("baseline", copy, "-o", tmp_path / "b.json", status=2)
    assert "digits/pair grad-noise vs fta-l (server) seed 1 failed: ValueError: no; a baseline needs its scores" in said
    assert not (tmp_path / "b.json").exists()


# -- the commands ------------------------------------------------------------------------------------------------------


def test_the_same_results_are_the_same(folder, baseline):
    said = fedbench("compare", folder, baseline, "--fail-on", "any-change")
    assert said.splitlines()[2].startswith("The gate **passed**: 10 same, read for the defense; fails on worse, better,")


def test_other_results_exit_with_one_and_write_what_they_found(folder, baseline, tmp_path):
    work = suite(tmp_path, seeds=[0, 1, 2], defenses=["none", "grad-noise"], attacks=["loss-series"])
    invoke(work, "--results", tmp_path / "results")
    out = tmp_path / "gate.md", tmp_path / "gate.json"
    said = fedbench("compare", tmp_path / "results", baseline, "--output", out[0], "--json", out[1], status=1)
    assert "The gate **failed**: 2 missing, 6 same" in said and out[0].read_text() == said
    found = json.loads(out[1].read_text())
    assert found["failed"] and found["counts"]["missing"] == 2 and [r["attack"] for r in found["rows"][:2]] == ["fta-l", "fta-l"]
    fedbench("compare", tmp_path / "results", baseline, "--fail-on", "worse")


def test_other_seeds_and_another_protocol(folder, baseline, tmp_path):
    own = {"defenses": ["none", "grad-noise"], "attacks": ["loss-series", "fta-l"], "seeds": [5, 6, 7]}
    invoke(suite(tmp_path, **own), "--results", tmp_path / "seeds")
    said = fedbench("compare", tmp_path / "seeds", baseline)
    assert "no seed in common, so that intervals are unpaired" in said and "3 and 3 other seeds" in said
    invoke(suite(tmp_path, **{**own, "seeds": [0]}), "--results", tmp_path / "rounds", "--set", "settings.0.federation.rounds=6")
    said = fedbench("compare", tmp_path / "rounds", baseline, status=1)
    assert "No number could be compared" in said and said.count("federation.rounds 4 -") == 6


@pytest.mark.parametrize(("arguments", "message"), [
    (("--fail-on", "wrose"), "'wrose' is none of worse, better, missing, not-comparable, new, any-change, nothing"),
    (("--fail-on", ""), "names no verdict; a gate that only prints is --fail-on nothing"),
    (("--fail-on", " ,"), "names no verdict"),
    (("--fail-on", "nothing,worse"), "nothing goes with no other verdict"),
    (("--floor", "auc"), "'auc' is not NAME=NUMBER, like auc=0.02"), (("--floor", "auc=-1"), "a floor is 0 or more"),
    (("--floor", "auc=nan"), "a floor is 0 or more"), (("--floor", "acu=1"), "the gate has no such metric - did you mean 'auc'?"),
    (("--for", "me"), "'me' is not one of 'defense', 'attack'"),
])  # fmt: skip
def test_a_mistaken_option_is_a_message(folder, baseline, arguments, message):
    assert message in fedbench("compare", folder, baseline, *arguments, status=2)


def test_a_folder_of_another_suite_is_a_message(baseline, tmp_path):
    invoke(suite(tmp_path, name="other"), "--results", tmp_path / "results")
    said = fedbench("compare", tmp_path / "results", baseline, status=2)
    assert said == (
        "the results are of suite 'other', the baseline is of 'tiny'; name the results of 'tiny', or make a baseline of these\n"
    )


# -- the table ---------------------------------------------------------------------------------------------------------


def gate(new, old=None, fail_on=("worse", "missing")):
    return Gate(comparison=compare(new, old or snapshot()), fail_on=fail_on)


def test_what_fails_comes_first_and_what_is_the_same_is_folded():
    text = markdown(gate(moved(moved(snapshot(), 0.1), -0.1, attack="yeom")))
    order = ("The gate **failed**: 1 worse, 1 better, 12 same", "**These fail the gate**", "| worse",
             "**These do not**", "| better", "<details><summary>12 same</summary>", "</details>",
             "14 numbers compared on 5 paired seeds")  # fmt: skip
    places = [text.index(what) for what in order]
    assert places == sorted(places) and text.index("| same") > text.index("<details>")
    assert "AUC, outside" in text and "0.600 | 0.700 | +0.100 ± 0.000 |       0.010 |" in text


def test_a_hostile_name_stays_text():
    name = "<img src=x>|[a](b)\n# `x`"
    made = snapshot()
    cells = {key._replace(defense=name) if key.defense == "mixup" else key: cell for key, cell in made.cells.items()}
    hostile = replace(made, cells={key: replace(cell, key=key) for key, cell in cells.items()}, suite="demo")
    text = markdown(Gate(comparison=compare(hostile, hostile), fail_on=()))
    assert "<img" not in text and "&lt;img src=x&gt;\\|\\[a\\](b) \\# \\`x\\`" in text


def test_the_json_says_every_row_with_its_numbers():
    found = json.loads(as_json(gate(moved(snapshot(), 0.1))))
    assert found["kind"] == "fedbench comparison" and found["schema"] == 1 and found["counts"]["worse"] == 1
    first = found["rows"][0]
    assert (first["verdict"], first["attack"], first["measure"], first["seeds"]) == ("worse", "fta", "auc:ofl", [5, 5])
    assert np.allclose([first[n] for n in ("old", "new", "change", "tolerance")], [0.6, 0.7, 0.1, 0.01])
    assert len(found["rows"]) == 14
