"""The board from small synthetic results folders: what is shown, what is refused, and that it is always the same."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from boards import (
    ACCURACY,
    ACTIVE,
    LEAK,
    MEMBERS,
    N_IFL,
    N_MEMBERS,
    N_OFL,
    N_TEST,
    PROVENANCE,
    RULES,
    Folder,
    Poisoned,
    blocks_of,
    board,
    row_of,
    rows_of,
    sections_of,
)

from fedbench.core import Image, UserError
from fedbench.core.metrics import auc, combined_interval, t_interval
from fedbench.core.store.reading import load_records
from fedbench.core.store.record import SCHEMA_VERSION, Measured, Utility
from fedbench.leaderboard.board import MarkdownBoard
from fedbench.leaderboard.document import Source, document
from fedbench.leaderboard.figures import style
from fedbench.leaderboard.figures.decisions import decision_figure
from fedbench.leaderboard.figures.roc import roc_figure
from fedbench.leaderboard.markdown.escape import escape
from fedbench.leaderboard.markdown.render import render
from fedbench.leaderboard.statistics.intervals import accuracy_error
from fedbench.leaderboard.statistics.roc import mean_roc
from fedbench.leaderboard.statistics.rounds import decision_mean


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return Folder(tmp_path_factory.mktemp("template") / "results", LEAK).fill()


@pytest.fixture
def folder(tmp_path, template):
    """A fresh copy of one folder: 4 defenses, 2 attacks, 3 seeds, all complete."""
    copy = Folder(tmp_path / "results", LEAK)
    shutil.copytree(template.root, copy.root, dirs_exist_ok=True)
    return copy


# ---------------------------------------------------------------- what the board says


def test_rows_are_ranked_by_worst_case_and_the_undefended_one_takes_part(folder):
    rows = rows_of(board(folder), "**Ranking**")
    assert [r["defense"] for r in rows] == ["cofedmid", "grad-sparse", "mixup", "none (undefended)"]
    assert [r["#"] for r in rows] == ["1", "2", "3", "4"]  # these leaks are far apart
    assert all(r["largest of all"].endswith("loss-series") for r in rows[2:])  # it leaks most in this folder
    worst = [float(r["worst case AUC"].strip("*").split()[0]) for r in rows]
    assert worst == sorted(worst)
    assert [r["defense"] for r in rows if r["worst case AUC"].startswith("**")] == ["cofedmid"]


def test_only_a_cell_that_is_told_from_all_others_of_its_column_is_bold(folder):
    rows = rows_of(board(folder), "**AUC by attack**")
    (section,) = sections_of(folder)
    for attack in folder.attacks:
        values = {r["defense"]: float(r[attack].strip("*").split(" ±")[0]) for r in rows}
        bold = [r["defense"] for r in rows if r[attack].startswith("**")]
        leader = section.contest.leader(attack)
        assert bold == ([leader] if leader else []) and set(bold) <= {min(values, key=values.get)}
    assert section.contest.leader("fedmia-ii") == "cofedmid"


def test_intervals_are_over_seeds_and_targets_and_paired_figures_against_undefended(folder):
    (section,) = sections_of(folder)
    row = row_of(section, "mixup")
    units = row.entries["fedmia-ii"].units("ofl")
    assert list(units) == [(s, t) for s in (0, 1, 2) for t in MEMBERS]
    values, found = [s.value("auc") for s in units.values()], row.entries["fedmia-ii"].interval("auc", "ofl")
    by_seed = np.reshape(values, (3, 2)).mean(axis=1)
    widths = [combined_interval(values, [s.error("auc") for s in units.values()]).half_width, t_interval(by_seed).half_width]
    assert found.mean == pytest.approx(np.mean(values)) and found.half_width == pytest.approx(max(widths)) and found.between
    shown = rows_of(board(folder), "**AUC by attack**")[2]["fedmia-ii"]
    signed = section.contest.signed("mixup", "fedmia-ii")
    assert shown == f"{signed.mean:.3f} ± {signed.half_width:.3f}" and signed.mean == pytest.approx(found.mean)
    compared = section.compared["mixup"]
    assert compared.runtime.mean == 1.5
    differences, contest = [], section.contest
    for seed, t in units:
        aucs = [r.entries[contest.worst(r.label).picks[seed].attack].units("ofl")[seed, t].value("auc")
                for r in (row, section.base)]  # fmt: skip
        differences.append(aucs[0] - aucs[1])
    difference = contest.against("none")["mixup"].found
    assert difference.mean == pytest.approx(np.mean(differences)) and difference.n == 6
    # pairing removes what the samples have in common
    assert difference.half_width < 0.7 * np.hypot(contest.worst("mixup").found.half_width, contest.worst("none").found.half_width)
    luck = [np.random.default_rng(seed).random(N_TEST) for seed in (0, 1, 2)]
    assert compared.delta_accuracy.mean == pytest.approx(-np.mean([(u >= 0.75) & (u < 0.8) for u in luck]))


def test_the_undefended_row_counts_only_the_targets_of_the_coalition(folder):
    (section,) = sections_of(folder)
    base = section.base
    assert {t for _, t in base.entries["fedmia-ii"].units("mix")} == set(MEMBERS)
    everyone = [t.groups["mix"].value("auc") for r in load_records(folder.root) if r.record.defense.name == "none"
                and r.record.attack.name == "fedmia-ii" for t in r.record.targets if t.target in MEMBERS]
    assert base.means("auc")["fedmia-ii"] == pytest.approx(np.mean(everyone))
    assert "Targets: clients 1, 2." in board(folder)


def test_with_undefended_records_only_every_client_is_a_target(tmp_path):
    text = board(Folder(tmp_path / "r", {"none": 1.0}).fill(seeds=(0,)))
    assert "### Coalition none, server view" in text and "Targets: clients 0, 1, 2, 3." in text
    assert "n = 4 a cell (1 seed x targets)" in text
    assert "Worst case compared" not in text


def test_a_single_seed_is_said_to_hold_no_training_variance(folder):
    assert "One seed:" not in board(folder)
    for path in (folder.root / "records").glob("*-[12].*"):
        path.unlink()
    assert "One seed: intervals hold the error from the candidates, not from training" in board(folder)


def test_failed_and_missing_cells_are_visible_and_cost_the_row_its_rank(folder):
    folder.add("cofedmid", "fedmia-ii", 1, "failed", reason="exploded | <b>badly</b>\nat once")
    folder.add("grad-sparse", "fedmia-ii", 0, "timeout", reason="over 10 s")
    for suffix in (".json", ".npz"):
        (folder.root / "records" / f"mixup-loss_series-2{suffix}").unlink()
    text = board(folder)
    rows = {r["defense"]: r for r in rows_of(text, "**AUC by attack**")}
    assert rows["cofedmid"]["fedmia-ii"].endswith("(n=4), failed (1/3)")
    assert rows["grad-sparse"]["fedmia-ii"].endswith("(n=4), timeout (1/3)")
    assert rows["mixup"]["loss-series"].endswith("(n=4), missing (1/3)")
    assert next(iter(rows)) == "none (undefended)" and rows["none (undefended)"]["#"] == "1"
    assert {rows[d]["#"] for d in ("cofedmid", "grad-sparse", "mixup")} == {"–"}  # noqa: RUF001
    listed = {(r["defense"], r["outcome"]): r for r in rows_of(text, "## Cells without a score")}
    assert listed["cofedmid", "failed"]["reason"] == r"exploded \| &lt;b&gt;badly&lt;/b&gt; at once"
    assert listed["mixup", "missing"]["seeds"] == "2" and ("grad-sparse", "timeout") in listed


def test_a_cell_without_any_score_shows_its_outcome_and_a_skipped_attack_keeps_the_rank(folder):
    for seed in range(3):
        folder.add("cofedmid", "fedmia-ii", seed, "skipped", reason="does not apply")
        folder.add("mixup", "fedmia-ii", seed, "diverged", reason="NaN", view="client")
    text = board(folder)
    rows = {r["defense"]: r for r in rows_of(text, "**AUC by attack**")}
    assert rows["cofedmid"]["fedmia-ii"] == "skipped (3/3)" and rows["cofedmid"]["#"] == "1"
    assert rows["mixup"]["fedmia-ii"] == "diverged (3/3)" and rows["mixup"]["#"] == "–"  # noqa: RUF001
    assert "client view" not in text  # a cell that never knew its view does not open a second table


def test_tf01_says_how_many_nonmembers_are_missing_and_pools_targets_and_seeds_from_there_on(tmp_path, folder):
    poor = board(folder)
    assert {r["worst TF01 (%)"] for r in rows_of(poor, "**Ranking**")} == {"n/a"} and "**TF01" not in poor
    assert "6 targets and seeds have 360 outside non-members together, 639 too few" in poor
    rich = Folder(tmp_path / "rich", {"none": 1.5, "mixup": 0.1}, n_ofl=1000).fill(seeds=(0,))  # of two targets
    text = board(rich)
    rows = rows_of(text, "**TF01")
    assert "too few" not in text and "(n=" not in rows[0]["loss-series"]
    values = [float(r["loss-series"].split()[0]) for r in rows]
    assert rows[0]["defense"] == "mixup" and values[0] < 5 < values[1] <= 100
    low, high = (float(v) for v in re.search(r"\\\[(.*), (.*)\\\]", rows[1]["loss-series"]).groups())
    assert 0 <= low < values[1] < high <= 100
    assert "worst TF01 / 100" in text


def test_groups_pareto_and_provenance_are_there(folder):
    text = board(folder)
    groups = rows_of(text, "**AUC by group")
    assert list(groups[0]) == ["defense", "outside", "inside (other clients)", "mix", "canary (mislabelled)"]
    front = {r["defense"]: r for r in rows_of(text, "**Privacy against utility**")}
    assert front["none (undefended)"]["on the front"] == "yes"  # the most accurate
    assert front["cofedmid"]["on the front"] == "yes" and front["mixup"]["on the front"] == "no"
    assert "0123456789ab with uncommitted changes" in text and "last run started: 2026-03-03T10:00:00+00:00" in text
    assert "audited rounds: 10, 20, 30" in text and "sees every client's uploaded update" in text
    assert "40 members and 160 non-members, 60 from outside the federation, 100 from other clients" in text


def test_views_are_judged_apart(folder):
    for seed in range(3):
        for defense in LEAK:
            folder.add(defense, "blackbox", seed, view="external")
    text = board(folder)
    assert "### Coalition pair, external view" in text and "### Coalition pair, server view" in text
    below = {table: text[text.index(f"### Coalition pair, {table} view\n") :] for table in ("external", "server")}
    shown = {table: {k.split()[0] for k in rows_of(own, "**AUC by attack**")[0]} for table, own in below.items()}
    assert shown == {"external": {"#", "defense", "blackbox"}, "server": {"#", "defense", "fedmia-ii", "loss-series"}}
    assert {t.view: t.attacks for t in sections_of(folder)} == {
        "external": ("blackbox",), "server": ("fedmia-ii", "loss-series"),
    }  # fmt: skip


def test_accuracy_with_an_active_adversary_is_kept_apart(folder):
    for seed in range(3):
        for defense in LEAK:
            folder.add(defense, "fedpoisonmia", seed, run_key=f"{defense}/{seed}/poisoned",
                       utility=Utility(accuracy=0.25, n_test=N_TEST))
    text = board(folder)
    assert rows_of(text, "**Accuracy (%) with the active adversary")[0]["fedpoisonmia"] == "25.0"
    assert all(float(r["accuracy (%)"].split()[0]) > 60 for r in rows_of(text, "**Ranking**"))


def test_an_inverted_attack_is_a_leak_and_is_pointed_out(tmp_path):
    text = board(Folder(tmp_path / "r", {"none": 1.0, "flip": -1.0}).fill())
    (flip,) = (r for r in rows_of(text, "**AUC by attack**") if r["defense"] == "flip")
    (raw,) = (r for r in rows_of(text, "**AUC as measured**") if r["defense"] == "flip")
    for attack in ("fedmia-ii", "loss-series"):
        assert flip[attack].endswith(" turned") and float(flip[attack].split()[0]) > 0.8
        assert float(raw[attack].split()[0]) == pytest.approx(1 - float(flip[attack].split()[0]), abs=0.0011)


def test_runtime_is_not_compared_across_machines(folder):
    for seed in range(3):
        for attack in folder.attacks:
            folder.add("mixup", attack, seed, provenance={**PROVENANCE, "cpu": "another"})
    rows = {r["defense"]: r["runtime"] for r in rows_of(board(folder), "**Ranking**")}
    assert rows["mixup"] == "n/a" and rows["cofedmid"] == "1.50 ± 0.00x" and rows["none (undefended)"] == "1"


def test_only_the_latest_of_two_records_of_one_cell_counts(folder):
    folder.add("mixup", "fedmia-ii", 0, "failed", stem="older", key="old", reason="old code",
               measured=Measured(started="2020-01-01T00:00:00+00:00", wall_s=1, cpu_s=1, train_cpu_s=1, signals_cpu_s=0,
                                 attack_cpu_s=0, peak_memory_mb=1))  # fmt: skip
    text = board(folder)
    assert "failed" not in text and "1 records of earlier code, parameters or plans are not shown." in text


def test_excluded_candidates_take_no_part_in_the_paired_difference(folder):
    (plain,) = (r for r in load_records(folder.root) if r.path.stem == "mixup-fedmia_ii-0")
    before = plain.candidates(1)
    kind, scores = before.kind.copy(), before.scores.copy()
    kind[:5] = -1
    scores[:5] = 1e6
    for attack in folder.attacks:
        folder.add("mixup", attack, 0, arrays={"t1_kind": kind, "t1_scores": scores})
    (section,) = sections_of(folder)
    with_outliers = section.contest.against("none")["mixup"].found.mean
    scores[:5] = -1e6
    for attack in folder.attacks:
        folder.add("mixup", attack, 0, arrays={"t1_kind": kind, "t1_scores": scores})
    assert sections_of(folder)[0].contest.against("none")["mixup"].found.mean == with_outliers


def test_records_whose_candidates_differ_are_not_paired(folder):
    folder.add("mixup", "fedmia-ii", 0, ids_from=7)
    with pytest.raises(UserError, match=r"cofedmid-fedmia_ii-0\.json and .*mixup-fedmia_ii-0\.json: .*other candidates"):
        board(folder)


# ---------------------------------------------------------------- other people's files


def test_markup_from_records_is_inert(tmp_path):
    evil = "<script>x</script>|a\n# b `c` [d](javascript:e) *f*"
    folder = Folder(tmp_path / "r", {"none": 1.0, evil: 0.5}, attacks=("a|b",)).fill(
        seeds=(0,), setting="s\n\n# <img src=x>", described={"dataset|": "<i>\n|"}
    )
    text = board(folder)
    assert "<script" not in text and "<img" not in text and "<i>" not in text
    assert not re.search(r"^# (b|<|&lt;)", text, re.M)
    assert r"&lt;script&gt;x&lt;/script&gt;\|a \# b \`c\` \[d\](javascript:e) \*f\*" in text
    for table in ("**Ranking**", "**AUC by attack**"):
        assert len({len(r) for r in rows_of(text, table)}) == 1  # no cell broke its row
    names = [name for image in blocks_of(folder, plots=True) if isinstance(image, Image) for name in image.files]
    assert len(names) == 4 and all(re.fullmatch(r"[a-z0-9-]+\.(png|svg)", name) for name in names)


@pytest.mark.parametrize(
    ("federation", "said"),
    [
        ({"validation": 0.1, "test": 0.2, "validation_on": "own"}, "each client's samples: 70% to train on, test 20%, "
         "validation 10%; outside non-members: the target's own test part, which nobody trains on"),
        ({"validation": 0.0, "test": 0.2, "validation_on": "nonmembers"}, "each client's samples: 80% to train on, test 20%, "
         "validation the test part again; outside non-members: the target's own test part, which nobody trains on"),
        ({"validation": 0.1, "test": 0.0, "validation_on": "own"}, "each client's samples: 90% to train on, validation 10%; "
         "outside non-members: samples of the hold-out"),
    ],
)  # fmt: skip
def test_a_board_says_how_samples_are_cut_and_who_the_outsiders_are(tmp_path, federation, said):
    folder = Folder(tmp_path / "r", {"none": 1.0}, attacks=("a",)).fill(seeds=(0,), described={"federation": federation})
    assert f"- {said}\n" in board(folder).replace("\\", "")


def test_a_board_of_clients_that_train_on_all_they_hold_says_nothing_of_parts(tmp_path):
    folder = Folder(tmp_path / "r", {"none": 1.0}, attacks=("a",)).fill(seeds=(0,))
    assert "each client's samples" not in board(folder)


def test_escape_cuts_and_keeps_ordinary_names():
    assert escape("fedmia-ii") == "fedmia-ii"
    assert len(escape("x" * 999)) == 200
    assert escape("a\x1b[31m\u202eb\u2028c") == r"a\\u001b\[31m\\u202eb c"


def edited(path, **change):
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": SCHEMA_VERSION + 1}, "made by a newer fedbench .*upgrade"),
        ({"schema_version": "1"}, "is not a version"),
        ({"surprise": 1}, "not a valid record .surprise"),
        ({"utility": None}, "without utility"),
        ({"utility": {"accuracy": 7, "n_test": 5}}, "accuracy is not between 0 and 1"),
    ],
)
def test_a_record_that_cannot_be_used_names_file_and_reason(folder, change, message):
    path = folder.root / "records" / "mixup-fedmia_ii-0.json"
    edited(path, **change)
    with pytest.raises(UserError, match=rf"mixup-fedmia_ii-0\.json: .*{message}"):
        load_records(folder.root)


def test_damaged_and_foreign_files_are_all_reported_at_once(folder):
    records = folder.root / "records"
    truncated, foreign = records / "mixup-fedmia_ii-0.json", records / "zz.json"
    truncated.write_bytes(truncated.read_bytes()[:100])
    foreign.write_text("[1, 2]")
    (records / "nan.json").write_text('{"schema_version": NaN}')
    half = records / "mixup-fedmia_ii-1.npz"
    half.write_bytes(half.read_bytes()[:500])
    (records / "mixup-fedmia_ii-2.npz").unlink()
    with pytest.raises(UserError) as caught:
        load_records(folder.root)
    found = {Path(m.split(": ")[0]).name: m for m in caught.value.messages}
    assert "not a complete JSON file" in found["mixup-fedmia_ii-0.json"]
    assert "not a fedbench record" in found["zz.json"] and "NaN is not a JSON number" in found["nan.json"]
    assert "does not end as numpy's archives do" in found["mixup-fedmia_ii-1.npz"]
    assert "missing, though" in found["mixup-fedmia_ii-2.npz"]
    assert len(found) == 5 and all("\n" not in m for m in found.values())


def test_files_made_to_hurt_are_refused(folder):
    records = folder.root / "records"
    deep, renamed, pipe = (records / f"{name}.json" for name in ("deep", "x--0123456789ab", "pipe"))
    facts = '{"a":' * 900 + "1" + "}" * 900
    deep.write_text(f'{{"schema_version": 1, "facts": {facts}}}')
    renamed.write_bytes((records / "mixup-fedmia_ii-0.json").read_bytes())
    os.mkfifo(pipe)
    with pytest.raises(UserError) as caught:
        load_records(folder.root)
    found = {Path(m.split(": ")[0]).name: m for m in caught.value.messages}
    assert "nested deeper than" in found[deep.name] and "not a regular file" in found[pipe.name]
    assert "another cell's record" in found[renamed.name] and len(found) == 3


def undigested(path):
    digests = {k: v for k, v in json.loads(path.read_text())["digests"].items() if k != "scores"}
    edited(path, digests=digests)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(3, np.float64), "differ in length"),
        (np.zeros(200, np.float32), "float32, expected float64"),
        (np.zeros((100, 2), np.float64), "not a vector"),
        (np.array(["x"] * 200, dtype=object), "not a vector of plain numbers"),
    ],
)
def test_arrays_of_another_shape_or_kind_are_refused_before_they_are_read(folder, array, message):
    path = folder.root / "records" / "mixup-fedmia_ii-0.json"
    with np.load(path.with_suffix(".npz"), allow_pickle=False) as found:
        arrays = {**found, "t1_scores": array}
    np.savez(path.with_suffix(".npz"), **arrays)
    with pytest.raises(UserError, match="sha256"):
        load_records(folder.root)
    undigested(path)
    with pytest.raises(UserError, match=rf"mixup-fedmia_ii-0\.npz: .*{message}"):
        load_records(folder.root)


def test_scores_that_are_not_finite_and_unknown_kinds_are_refused_when_read(folder):
    for arrays, message in (
        ({"t1_scores": np.full(200, np.nan, np.float64)}, "not finite"),
        ({"t1_kind": np.full(200, 9, np.int8)}, "outside -1..2"),
    ):
        folder.add("mixup", "fedmia-ii", 0, arrays=arrays)
        with pytest.raises(UserError, match=rf"mixup-fedmia_ii-0\.npz: .*{message}"):
            board(folder)


def test_an_empty_folder_says_what_to_do(tmp_path):
    with pytest.raises(UserError, match="no records found; `fedbench run SUITE`"):
        load_records(tmp_path)


# ---------------------------------------------------------------- files


def test_two_renders_are_equal_and_do_not_depend_on_the_order_of_records(folder):
    records = load_records(folder.root)
    forth, back = (document(Source(records=r, title="Demo")) for r in (records, records[::-1]))
    assert forth == back and render(forth) == render(back)


def test_the_board_links_the_plots_it_writes(folder):
    path = MarkdownBoard().write(folder.root)
    assert path == folder.root / "leaderboard" / "board.md"
    links = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", path.read_text())
    assert len(links) == 2 and all((path.parent / link).read_bytes()[:4] == b"\x89PNG" for link in links)
    assert all((path.parent / link).with_suffix(".svg").read_bytes()[:5] == b"<?xml" for link in links)
    assert sorted(p.suffix for p in path.parent.iterdir()) == [".json", ".json", ".md", ".png", ".png", ".svg", ".svg"]


def test_the_board_shows_the_last_plan_only(folder):
    records = load_records(folder.root)
    plan = [r.path.stem for r in records if r.record.defense.name != "mixup"]
    marker = {"schema_version": 1, "suite": "demo", "cells": plan}
    (folder.root / "fedbench.json").write_text(json.dumps(marker))
    text = MarkdownBoard().write(folder.root).read_text()
    assert "mixup" not in text and "6 records of earlier code, parameters or plans are not shown." in text


def test_nothing_is_written_for_a_folder_that_cannot_be_read(folder):
    (folder.root / "records" / "zz.json").write_text("{}")
    with pytest.raises(UserError, match=r"zz\.json"):
        MarkdownBoard().write(folder.root)
    assert not (folder.root / "leaderboard").exists()


def test_the_roc_curves_rise_and_meet_the_table(tmp_path):
    folder = Folder(tmp_path / "r", {"none": 2.0, "mixup": 0.5}, n_ofl=1000).fill(seeds=(0, 1))
    (section,) = sections_of(folder)
    grid = np.union1d(np.geomspace(1e-3, 1, 100), [0.001])
    for row in section.rows:
        for attack, cell in row.entries.items():
            tpr = mean_roc(section, row.label, attack, grid)
            assert (np.diff(tpr) >= 0).all() and tpr[-1] == 1
            assert np.trapezoid(np.r_[0, tpr], np.r_[0, grid]) == pytest.approx(cell.interval("auc", "ofl").mean, abs=0.02)
            assert 100 * tpr[grid == 0.001][0] == pytest.approx(section.contest.tf01(row.label, attack).mean, abs=10)
    assert len(roc_figure(section).draw(style).axes) == 2


def test_summary_for_the_terminal_follows_the_board(folder):
    folder.add("mixup", "fedmia-ii", 0, "failed", reason="x")
    found = MarkdownBoard().summary(folder.root)
    table = [dict(zip(found.headers, row, strict=True)) for row in found.rows]
    assert [r["defense"] for r in table] == ["cofedmid", "grad-sparse", "none", "mixup"]
    assert table[0]["worst AUC"].startswith(".4") and table[2]["runtime"] == "n/a"
    assert table[3]["no score"] == "1 failed" and table[3]["#"] == "-" and table[0]["no score"] == ""
    assert len(set(found.headings)) == 1 and len(found.headings) == 4


def test_a_summary_has_no_column_for_failures_where_there_are_none(folder):
    assert "no score" not in MarkdownBoard().summary(folder.root).headers


def test_the_stored_auc_is_the_one_of_the_stored_scores(folder):
    loaded = load_records(folder.root)[0]
    target = loaded.record.targets[0]
    c = loaded.candidates(target.target)
    assert target.groups["mix"].value("auc") == auc(c.scores, c.kind == 0)


# ---------------------------------------------------------------- server's rules and attacks from inside


@pytest.fixture(scope="module")
def poison_template(tmp_path_factory):
    return Poisoned(tmp_path_factory.mktemp("poison") / "results").fill()


@pytest.fixture
def poisoned(tmp_path, poison_template):
    """A fresh copy of one folder: 3 rules, one passive attack and two active ones, 3 seeds, all complete."""
    copy = Poisoned(tmp_path / "results")
    shutil.copytree(poison_template.root, copy.root, dirs_exist_ok=True)
    return copy


def test_rules_alone_make_one_table_of_coalition_none_about_all_honest_clients(poisoned):
    (section,) = sections_of(poisoned)
    assert section.coalition == "none" and {r.label for r in section.rows} == set(RULES)
    assert all(r.complete for r in section.rows) and section.base.label == "none"
    text = board(poisoned)
    assert "Targets: all honest clients together." in text and "clients -3" not in text
    assert "- active attacks: fedpoisonmia / gradient-ascent" in text
    assert "- adversary inside the federation: malicious 1, knowledge honest" in text


def test_a_rule_is_a_row_of_every_coalition_as_the_undefended_federation_is(poisoned):
    poisoned.leak["mixup"] = 0.5
    for attack in poisoned.attacks:
        for seed in range(3):
            poisoned.add("mixup", attack, seed)
    (section,) = sections_of(poisoned)
    assert section.coalition == "pair" and {r.label for r in section.rows} == {*RULES, "mixup"}
    for suffix in (".json", ".npz"):
        (poisoned.root / "records" / f"median-passive-1{suffix}").unlink()
    missing = {(r["defense"], r["coalition"], r["outcome"]) for r in rows_of(board(poisoned), "## Cells without a score")}
    assert missing == {("median", "none", "missing")}


def test_a_defense_trained_in_coalition_none_and_in_another_keeps_its_own_tables(folder):
    folder.leak = {**LEAK, "median": 0.5}
    for attack in folder.attacks:
        folder.add("median", attack, 0, coalition="none", members=[])
        folder.add("mixup", attack, 0, coalition="none", members=[], stem=f"mixup-none-{attack}")
    tables = {t.coalition: {r.label for r in t.rows} for t in sections_of(folder)}
    assert tables == {"none": {"none", "mixup", "median"}, "pair": {"none", "median", *LEAK}}


def test_accuracy_and_its_loss_are_those_of_the_passive_runs(poisoned):
    (section,) = sections_of(poisoned)
    compared = section.compared
    shares = {d: np.mean([np.random.default_rng(s).random(N_TEST) < 0.8 - 0.1 * (d != "none") for s in range(3)]) for d in RULES}
    for defense in RULES:  # the first attack by name is an active one, and as many attacks judged its run
        assert row_of(section, defense).accuracy.mean == pytest.approx(shares[defense])
    assert compared["median"].delta_accuracy.mean == pytest.approx(shares["median"] - shares["none"])
    text = board(poisoned)
    under = {r["defense"]: r for r in rows_of(text, "**Accuracy (%) with the active adversary")}
    assert set(under["median"]) == {"defense", *ACTIVE} and "No passive run has scores" not in text
    for defense, attack in (("none (undefended)", "fedpoisonmia"), ("atm", "gradient-ascent")):
        expected = [np.random.default_rng(s).random(N_TEST) < ACCURACY[attack] - 0.1 * (defense == "atm") for s in range(3)]
        assert under[defense][attack] == f"{100 * np.mean(expected):.1f}"


def test_a_row_of_active_runs_only_is_compared_under_the_same_attack_and_the_board_says_which(poisoned):
    for path in (poisoned.root / "records").glob("median-passive-*"):
        path.unlink()
    (section,) = sections_of(poisoned)
    luck = [np.random.default_rng(s).random(N_TEST) for s in range(3)]
    under = {shift: np.mean([u < ACCURACY["fedpoisonmia"] - shift for u in luck]) for shift in (0, 0.1)}
    assert row_of(section, "median").accuracy.mean == pytest.approx(under[0.1])
    compared = section.compared["median"]
    assert compared.delta_accuracy.mean == pytest.approx(under[0.1] - under[0])
    text = board(poisoned)
    assert "compared with the undefended run under the same attack: median (fedpoisonmia)." in text


def test_attack_accuracy_is_the_last_rounds_with_an_interval_of_seeds_or_of_the_candidates(poisoned):
    (section,) = sections_of(poisoned)
    cell = row_of(section, "atm").entries["fedpoisonmia"]
    said = [r.record.targets[0].decision for r in cell.records.values()]
    found = cell.attack_accuracy()
    assert found.mean == pytest.approx(np.mean([d.last_accuracy for d in said])) and found.between
    ses = [accuracy_error(d.last_accuracy, d.last_recall, N_MEMBERS, N_OFL + N_IFL) for d in said]
    within, between = 1.96 * np.sqrt(np.sum(np.square(ses))) / 3, t_interval([d.last_accuracy for d in said]).half_width
    assert found.half_width == pytest.approx(max(within, between), rel=1e-3)
    rows = {r["defense"]: r for r in rows_of(board(poisoned), "**Attack accuracy**")}
    assert rows["atm"]["fedpoisonmia"] == f"{found.mean:.3f} ± {found.half_width:.3f}"
    assert float(rows["none (undefended)"]["worst"].split()[0]) == max(
        float(rows["none (undefended)"][a].split(" ±")[0]) for a in poisoned.attacks
    )
    long = {(r["defense"], r["attack"]): r for r in rows_of(board(poisoned), "**Accuracy, precision and recall by round**")}
    assert len(long) == 9
    mine = long["atm", "fedpoisonmia"]
    assert mine["best_round accuracy"] == f"{np.mean([d.best_accuracy for d in said]):.3f}"
    null = decision_mean(cell, "null_best_accuracy")
    assert mine["null of best"] == f"{null:.3f}" and 0.5 < null < 0.6
    assert mine["last precision"] == f"{np.mean([d.last_precision for d in said]):.3f}"


def test_with_five_seeds_the_interval_is_students_and_never_narrower_than_the_candidates(tmp_path):
    folder = Poisoned(tmp_path / "r", attacks=("passive",), rules=("none",)).fill(seeds=range(5))
    (section,) = sections_of(folder)
    cell = section.rows[0].entries["passive"]
    said = [r.record.targets[0].decision for r in cell.records.values()]
    ses = [accuracy_error(d.last_accuracy, d.last_recall, N_MEMBERS, N_OFL + N_IFL) for d in said]
    found = cell.attack_accuracy()
    within = 1.96 * np.sqrt(np.sum(np.square(ses))) / 5
    assert found.between and found.half_width == pytest.approx(
        max(t_interval([d.last_accuracy for d in said]).half_width, within), rel=1e-3
    )


def test_the_error_of_an_attack_accuracy_is_the_binomial_one_and_not_zero_at_the_ends():
    rng = np.random.default_rng(0)
    right = (rng.binomial(150, 0.9, 20_000) / 150 + rng.binomial(100, 0.6, 20_000) / 100) / 2
    assert accuracy_error(0.75, 0.9, 150, 100) == pytest.approx(right.std(), rel=0.03)
    assert 0 < accuracy_error(1.0, 1.0, 150, 150) < 0.01


def test_decisions_of_failed_cells_are_not_invented_and_other_boards_have_no_such_section(poisoned, template):
    poisoned.add("atm", "passive", 1, "failed", reason="boom")
    for seed in range(3):
        poisoned.add("median", "passive", seed, "diverged", reason="NaN")
    rows = {r["defense"]: r for r in rows_of(board(poisoned), "**Attack accuracy**")}
    assert rows["atm"]["passive"].endswith("(n=2), failed (1/3)") and rows["median"]["passive"] == "diverged (3/3)"
    assert "Attack accuracy" not in board(template)


def test_the_figure_shows_every_rule_and_attack(poisoned):
    (section,) = sections_of(poisoned)
    axis = decision_figure(section).draw(style).axes[0]
    assert [t.get_text() for t in axis.get_xticklabels()] == [r.label for r in section.rows]
    drawn = {c.get_label(): c.lines[0].get_ydata(orig=False) for c in axis.containers}
    assert set(drawn) == set(poisoned.attacks)
    for attack, values in drawn.items():
        np.testing.assert_allclose(values, [r.entries[attack].attack_accuracy().mean for r in section.rows])
    linked = board(poisoned, plots=True)
    assert "![Attack accuracy by defense: iid, coalition none, client view](accuracy-" in linked


def test_a_mix_of_cpus_is_said_at_the_top(folder):
    assert "several types of CPU" not in board(folder)
    folder.add("mixup", "fedmia-ii", 0, provenance={**PROVENANCE, "cpu_capability": "AVX512"})
    text = board(folder)
    assert "Records of several types of CPU" in text and text.index("several types of CPU") < text.index("## Setting")
    assert "A CPU (AVX512)" in text
