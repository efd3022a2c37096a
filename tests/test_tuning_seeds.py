"""Tuning seeds in a suite: who may be one, what its runs' records say, and which mistakes are refused before anything trains."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from good_suite import edited, write
from running import invoke, suite

from fedbench.core import UserError
from fedbench.core.execution.plan import check_plan, make_plan
from fedbench.core.execution.plugin_checks import declaration_mistake
from fedbench.core.registry.components import Registry
from fedbench.core.spec.resolve import load_and_check
from fedbench.core.spec.written import written_out
from fedbench.core.store.integrity import disagreements
from fedbench.core.store.reading import load_records
from fedbench.leaderboard.statistics.build import build_sections
from fedbench.plugins.analyses.tuned import Tuned

TUNED = ("floors: []\n", "floors: []\nanalyses: [tuned]\n")
PAIR = ("coalitions: [pair, half]", "coalitions: [pair]")  # of four clients a half is a pair


def seeds(tuning, reported="[0, 1]"):
    return "seeds: [0, 1]\n", f"seeds: {reported}\ntuning_seeds: {tuning}\n"


def refused(tmp_path, *edits):
    with pytest.raises(UserError) as caught:
        check_plan(*load_and_check(write(tmp_path, edited(PAIR, *edits)), Registry.discover()))
    return caught.value.messages


def planned(tmp_path, *edits):
    registry = Registry.discover()
    return make_plan(*load_and_check(write(tmp_path, edited(PAIR, *edits)), registry), registry, tmp_path / "results", "cpu")


@pytest.mark.parametrize(
    ("tuning", "reported", "place", "said"),
    [
        ("[1, 100]", "[0, 1]", "4:16", "the seed 1 is already given in line 3"),
        ("[0, 1]", "[0, 1]", "4:16", "the seed 0 is already given in line 3"),
        ("[100, 100]", "[0, 1]", "4:21", "the seed 100 is already given in line 4"),
        ("[-1]", "[0, 1]", "4:16", "expected an integer in [0, 9223372036854775807], found -1"),
        ("100", "[0, 1]", "4:1", "expected a list, found 100"),
        ("[100]", "[]", "3:8", "seeds: must not be empty"),
    ],
)
def test_a_seed_is_either_reported_or_of_tuning(tmp_path, tuning, reported, place, said):
    """Named in both lists, all of them or one, it would be chosen by and reported at once."""
    messages = refused(tmp_path, seeds(tuning, reported), TUNED)
    assert f"suite.yaml:{place}" in messages[0] and said in messages[0], messages


def test_an_analysis_that_tunes_needs_seeds_for_it(tmp_path):
    (message,) = refused(tmp_path, TUNED)
    assert message.startswith(f"{tmp_path}/suite.yaml:21:12: analysis 'tuned': ")
    assert "the suite names no seeds for them: add for example `tuning_seeds: [100, 101]`" in message


def test_tuning_seeds_that_nobody_reads_are_noted(tmp_path):
    (note,) = (n for n in planned(tmp_path, seeds("[100]")).notes if "tuning_seeds" in n)
    assert note == "tuning_seeds: no analysis of the suite reads their runs; `tuned` does"
    assert not [n for n in planned(tmp_path, seeds("[100]"), TUNED).notes if "tuning_seeds" in n]


def test_what_an_analysis_says_of_its_needs_is_a_bool():
    made = Tuned()
    made.needs_tuning_seeds = "yes"
    assert declaration_mistake(made) == "needs_tuning_seeds is 'yes', expected True or False"


def test_every_row_runs_on_the_tuning_seeds_too_and_their_jobs_say_so(tmp_path):
    jobs = planned(tmp_path, seeds("[100, 101]"), TUNED).jobs
    assert {(j.seed, j.tuning) for j in jobs} == {(0, False), (1, False), (100, True), (101, True)}
    rows = {seed: sorted((j.coalition, j.defense.label) for j in jobs if j.seed == seed) for seed in (0, 1, 100, 101)}
    assert len({tuple(of) for of in rows.values()}) == 1 and len(rows[0]) == 2


def test_a_suite_counts_the_cells_of_its_tuning_seeds(tmp_path):
    loaded, resolved = load_and_check(write(tmp_path, edited(PAIR, seeds("[100]"), TUNED)), Registry.discover())
    assert loaded.spec.all_seeds == [0, 1, 100] and loaded.spec.n_cells(0) == 2 * 3
    again = load_and_check(write(tmp_path, written_out(loaded, resolved)), Registry.discover())[0]
    assert again.spec.tuning_seeds == [100]


def test_a_setting_names_all_strengths_of_a_defense_by_one_label(tmp_path):
    grid = ("params: {sigma: 0.01}}", "grid: {sigma: [0.01, 0.1]}}\n  - mixup")
    named = ("    audit: {every: 5}", "    audit: {every: 5}\n    defenses: [none, grad-noise]")
    labels = [job.defense.label for job in planned(tmp_path, grid, named).jobs if job.seed == 0]
    assert labels == ["none", "grad-noise[sigma=0.01]", "grad-noise[sigma=0.1]"]
    one = (named[0], named[1].replace("grad-noise", "'grad-noise[sigma=0.1]'"))
    assert [job.defense.label for job in planned(tmp_path, grid, one).jobs if job.seed == 0] == ["none", "grad-noise[sigma=0.1]"]
    (message,) = refused(tmp_path, grid, (named[0], named[1].replace("grad-noise", "grad-nose")))
    assert "unknown label 'grad-nose' - did you mean 'grad-noise'?; the suite's are none, grad-noise, mixup, grad" in message


def test_a_seed_that_changes_sides_is_another_cell(tmp_path):
    """Else a record made for tuning would be taken for a reported one, and say the wrong thing of itself."""
    sides = [planned(tmp_path, seeds("[100]", reported), TUNED).jobs for reported in ("[0, 1]", "[0, 1, 2]")]
    moved = planned(tmp_path, seeds("[101]", "[0, 100]"), TUNED).jobs
    keys = [{j.run_key for j in jobs if j.seed == 100} for jobs in (*sides, moved)]
    assert keys[0] == keys[1] and not keys[0] & keys[2]


def test_a_suite_without_tuning_seeds_has_the_keys_it_had(tmp_path):
    (first, *_) = planned(tmp_path).jobs
    assert "tuning" not in first.cells[0].identity["run"] and "tuning" not in first.described()
    assert {j.run_key for j in planned(tmp_path).jobs} < {j.run_key for j in planned(tmp_path, seeds("[100]"), TUNED).jobs}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of a sweep with one tuning seed and two reported ones."""
    root = tmp_path_factory.mktemp("run")
    grid = {"name": "grad-noise", "grid": {"sigma": [0.01, 0.3]}}
    tuned = {"name": "tuned", "params": {"within": 5.0, "compared": "grad-noise"}}
    invoke(
        suite(root, seeds=[0, 1], tuning_seeds=[100], defenses=["none", grid, "mixup"], analyses=[tuned]),
        "--results", root / "results",
    )  # fmt: skip
    return root / "results"


def test_a_run_ends_in_a_board_of_the_reported_seeds_with_the_choices_of_the_others(folder):
    text = (folder / "leaderboard" / "board.md").read_text()
    assert "seeds: 0, 1\n" in text and "tuning seeds: 100: " in text and "n = 4 a cell (2 seeds x targets)" in text
    assert "**Tuned defenses at their best**" in text and "**Strengths on the tuning seeds** (100)" in text
    (section,) = build_sections(load_records(folder))
    assert section.seeds == (0, 1) and section.tuning.seeds == (100,)


def test_the_records_of_a_tuning_seed_say_so_and_cannot_say_otherwise(folder):
    loaded = load_records(folder)
    assert {r.record.seed: r.record.described.get("tuning", False) for r in loaded} == {0: False, 1: False, 100: True}
    one = next(r.record for r in loaded if r.record.seed == 100)
    lied = one.model_copy(update={"described": {n: v for n, v in one.described.items() if n != "tuning"}})
    assert list(disagreements(one)) == [] and list(disagreements(lied)) == ["described.tuning is false, but true in its identity"]


def test_a_marker_that_is_lost_loses_no_seeds_role(folder, tmp_path):
    marker = json.loads((folder / "fedbench.json").read_text())
    assert "tuning" not in json.dumps({n: v for n, v in marker.items() if n not in ("analyses", "cells")})
    bare = [SimpleNamespace(record=r.record, path=r.path, candidates_of=r.candidates_of) for r in load_records(folder)]
    assert build_sections(bare)[0].seeds == (0, 1)
