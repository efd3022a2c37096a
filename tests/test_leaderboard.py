"""The board from small synthetic results folders: what is shown, what is refused, and that it is always the same."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedbench.core import UserError
from fedbench.core.metrics import auc, combined_interval, score_groups, t_interval
from fedbench.core.metrics.decision import decision_report
from fedbench.core.population.audit import HONEST
from fedbench.core.store.files import npz_bytes
from fedbench.core.store.reading import load_records
from fedbench.core.store.record import (
    SCHEMA_VERSION,
    DecisionScores,
    GroupFacts,
    Measured,
    Record,
    RoundRow,
    Society,
    TargetScores,
    Utility,
    Violations,
)
from fedbench.leaderboard.board import write_board
from fedbench.leaderboard.collect import build_tables
from fedbench.leaderboard.compare import compare
from fedbench.leaderboard.decision_plot import decision_figure
from fedbench.leaderboard.decisions import accuracy_se, attack_accuracy, null_of_best
from fedbench.leaderboard.plots import mean_roc, roc_figure, table_plots
from fedbench.leaderboard.render import render_board, summary_table
from fedbench.leaderboard.society import GAPS, of_group, violated, whose
from fedbench.leaderboard.society_plot import society_figure
from fedbench.leaderboard.text import escape

CLIENTS, MEMBERS = (0, 1, 2, 3), (1, 2)
N_MEMBERS, N_OFL, N_IFL, N_TEST = 40, 60, 100, 400


def use(label, name=None):
    return {"name": name or label, "label": label, "params": {}, "distribution": "fedbench 0.1.0", "digest": "ab"}


PROVENANCE = {
    "fedbench": "0.1.0", "python": "3.11.7", "torch": "2.11.0", "numpy": "2.2.0", "git_commit": "0123456789abcdef",
    "git_dirty": True, "platform": "Linux", "cpu": "A CPU", "device": "cpu", "dtype": "float32", "threads": 1,
    "deterministic": True,
}  # fmt: skip


class Folder:
    """A results folder under construction."""

    def __init__(self, root: Path, leak: dict[str, float], attacks=("fedmia-ii", "loss-series"), n_ofl=N_OFL) -> None:
        self.root, self.leak, self.attacks, self.n_ofl = root, leak, attacks, n_ofl
        (root / "records").mkdir(parents=True)

    def fill(self, seeds=(0, 1, 2), **more) -> Folder:
        for seed in seeds:
            for defense in self.leak:
                for attack in self.attacks:
                    self.add(defense, attack, seed, **more)
        return self

    def whose(self, defense):
        """(coalition, members, targets) of a row."""
        return ("none", (), CLIENTS) if defense == "none" else ("pair", MEMBERS, MEMBERS)

    def add(self, defense, attack, seed, outcome="ok", stem=None, ids_from=0, arrays=None, **change) -> Path:
        coalition, members, targets = self.whose(defense)
        fields = {
            "key": f"{defense}/{attack}/{seed}", "run_key": f"{defense}/{seed}", "outcome": outcome, "suite": "demo",
            "setting": "iid", "coalition": coalition, "members": list(members),
            "seed": seed, "defense": use(defense), "attack": use(attack), "view": "server",
            "facts": {"dataset": {"name": "gauss", "params": {"dim": 8}}, "federation": {"clients": 4, "rounds": 30}},
            "history": [RoundRow(round=r, accuracy=0.5, train_loss=None) for r in (10, 20, 30)],
            "provenance": PROVENANCE, "digests": {"data": "d" * 64, "split": "e" * 64},
            "measured": Measured(
                started=f"2026-03-0{1 + seed % 9}T10:00:00+00:00", wall_s=2, cpu_s=2, attack_cpu_s=0, signals_cpu_s=0,
                train_cpu_s=1.0 if defense == "none" else 1.5, peak_memory_mb=9,
            ),
        }  # fmt: skip
        path = self.root / "records" / f"{stem or '-'.join(map(escape_stem, (defense, attack, str(seed))))}.json"
        if outcome == "ok":
            made, scored, correct = self._measured(defense, attack, seed, targets, ids_from)
            content = npz_bytes({**made, **(arrays or {})})
            path.with_suffix(".npz").write_bytes(content)
            fields |= {"targets": scored, "utility": Utility(accuracy=float(correct.mean()), n_test=len(correct))}
            fields["digests"]["scores"] = hashlib.sha256(content).hexdigest()
        path.write_text(Record(**{**fields, **change}).model_dump_json(indent=1))
        return path

    def _measured(self, defense, attack, seed, targets, ids_from):
        kind = np.repeat([0, 1, 2], (N_MEMBERS, self.n_ofl, N_IFL)).astype(np.int8)
        arrays, scored = {}, []
        for t in targets:
            common = np.random.default_rng([seed, abs(t)]).normal(size=len(kind))  # what a sample's score has everywhere
            own = np.random.default_rng([seed, abs(t), *attack.encode(), *defense.encode()]).normal(size=len(kind))
            shift = self.leak[defense] * (1 + 0.1 * len(attack))
            scores = (common + 0.4 * own + shift * (kind == 0)).astype(np.float64)
            canary = np.arange(len(kind)) % 20 == 0
            ids = np.arange(len(kind)) + 1000 * abs(t) + ids_from
            arrays |= {f"t{t}_scores": scores, f"t{t}_kind": kind, f"t{t}_ids": ids, f"t{t}_canary": canary}
            groups = score_groups(scores, kind, canary, np.random.default_rng(0))
            scored.append(TargetScores(target=t, groups=groups))
        luck = np.random.default_rng(seed).random(N_TEST)
        correct = luck < (0.8 if defense == "none" else 0.75)
        return {**arrays, "test_correct": correct}, scored, correct


def escape_stem(name):
    return re.sub(r"[^a-z0-9]", "_", name.lower())


LEAK = {"none": 1.0, "mixup": 0.8, "cofedmid": 0.0, "grad-sparse": 0.4}


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return Folder(tmp_path_factory.mktemp("template") / "results", LEAK).fill()


@pytest.fixture
def folder(tmp_path, template):
    """A fresh copy of one folder: 4 defenses, 2 attacks, 3 seeds, all complete."""
    copy = Folder(tmp_path / "results", LEAK)
    shutil.copytree(template.root, copy.root, dirs_exist_ok=True)
    return copy


def board(folder, **more):
    return render_board(load_records(folder.root), "Demo", **more)


def rows_of(text, after):
    """Cells of the first Markdown table after a line that starts with ``after``."""
    lines = text[re.search(rf"^{re.escape(after)}", text, re.M).start() :].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    found = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        found.append([c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]])
    return [dict(zip(found[0], row, strict=True)) for row in found[2:]]


# ---------------------------------------------------------------- what the board says


def test_rows_are_ranked_by_worst_case_and_the_undefended_one_takes_part(folder):
    rows = rows_of(board(folder), "**AUC**")
    assert [r["defense"] for r in rows] == ["cofedmid", "grad-sparse", "mixup", "none (undefended)"]
    assert [r["#"] for r in rows] == ["1", "2", "3", "4"]
    assert all(r["worst case"].endswith("loss-series") for r in rows[1:])  # it leaks most in this folder
    worst = [float(r["worst case"].split()[0]) for r in rows]
    assert worst == sorted(worst)


def test_the_lowest_cell_of_each_column_is_bold_and_no_other(folder):
    rows = rows_of(board(folder), "**AUC**")
    for attack in folder.attacks:
        values = {r["defense"]: float(r[attack].strip("*").split(" ±")[0]) for r in rows}
        bold = [r["defense"] for r in rows if r[attack].startswith("**")]
        assert bold == [min(values, key=values.get)]


def test_intervals_are_over_seeds_and_targets_and_paired_figures_against_undefended(folder):
    records = load_records(folder.root)
    (table,) = build_tables(records)
    row = next(r for r in table.rows if r.label == "mixup")
    units = row.cells["fedmia-ii"].units("mix")
    assert list(units) == [(s, t) for s in (0, 1, 2) for t in MEMBERS]
    expected = combined_interval([s.auc for s in units.values()], [s.auc_se for s in units.values()])
    assert row.cells["fedmia-ii"].interval("auc") == expected and expected.between
    shown = rows_of(board(folder), "**AUC**")[2]["fedmia-ii"]
    assert shown == f"{expected.mean:.3f} ± {expected.half_width:.3f}"
    compared = compare(table)["mixup"]
    assert compared.runtime == 1.5
    differences = []
    for seed, t in units:
        arms = [np.mean([table_row.cells[a].units("mix")[seed, t].auc for a in folder.attacks])
                for table_row in (row, table.base)]
        differences.append(arms[0] - arms[1])
    assert compared.difference.mean == pytest.approx(np.mean(differences)) and compared.difference.n == 6
    # pairing removes what the samples have in common
    assert compared.difference.half_width < 0.7 * np.hypot(compared.mean_auc.half_width, compared.mean_auc.half_width)
    luck = [np.random.default_rng(seed).random(N_TEST) for seed in (0, 1, 2)]
    assert compared.delta_accuracy.mean == pytest.approx(-np.mean([(u >= 0.75) & (u < 0.8) for u in luck]))


def test_the_undefended_row_counts_only_the_targets_of_the_coalition(folder):
    (table,) = build_tables(load_records(folder.root))
    base = table.base
    assert {t for _, t in base.cells["fedmia-ii"].units("mix")} == set(MEMBERS)
    everyone = [t.groups["mix"].auc for r in load_records(folder.root) if r.record.defense.name == "none"
                and r.record.attack.name == "fedmia-ii" for t in r.record.targets if t.target in MEMBERS]
    assert base.means("auc")["fedmia-ii"] == pytest.approx(np.mean(everyone))
    assert "Targets: clients 1, 2." in board(folder)


def test_with_undefended_records_only_every_client_is_a_target(tmp_path):
    text = board(Folder(tmp_path / "r", {"none": 1.0}).fill(seeds=(0,)))
    assert "### Coalition none, server view" in text and "Targets: clients 0, 1, 2, 3." in text
    assert "n = 4 a cell (1 seed x targets)" in text
    assert "Mean AUC minus undefended" not in text


def test_fewer_than_five_values_are_said_to_hold_no_training_variance(folder):
    assert "Fewer than 5 seeds x targets" not in board(folder)
    for path in (folder.root / "records").glob("*-2.*"):
        path.unlink()
    assert "Fewer than 5 seeds x targets" in board(folder)


def test_failed_and_missing_cells_are_visible_and_cost_the_row_its_rank(folder):
    folder.add("cofedmid", "fedmia-ii", 1, "failed", reason="exploded | <b>badly</b>\nat once")
    folder.add("grad-sparse", "fedmia-ii", 0, "timeout", reason="over 10 s")
    for suffix in (".json", ".npz"):
        (folder.root / "records" / f"mixup-loss_series-2{suffix}").unlink()
    text = board(folder)
    rows = {r["defense"]: r for r in rows_of(text, "**AUC**")}
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
    rows = {r["defense"]: r for r in rows_of(text, "**AUC**")}
    assert rows["cofedmid"]["fedmia-ii"] == "skipped (3/3)" and rows["cofedmid"]["#"] == "1"
    assert rows["mixup"]["fedmia-ii"] == "diverged (3/3)" and rows["mixup"]["#"] == "–"  # noqa: RUF001
    assert "client view" not in text  # a cell that never knew its view does not open a second table


def test_tf01_is_not_applicable_below_a_thousand_nonmembers_and_a_number_from_there_on(tmp_path, folder):
    assert {r["loss-series"] for r in rows_of(board(folder), "**TF01")} == {"n/a"}
    rich = Folder(tmp_path / "rich", {"none": 3.0, "mixup": 0.1}, n_ofl=1000).fill(seeds=(0,))
    rows = rows_of(board(rich), "**TF01")
    values = [float(r["loss-series"].strip("*").split()[0]) for r in rows]
    assert rows[0]["defense"] == "mixup" and values[0] < 5 < values[1] <= 100
    assert "worst TF01 / 100" in board(rich)


def test_groups_pareto_and_provenance_are_there(folder):
    text = board(folder)
    groups = rows_of(text, "**AUC by group")
    assert [k for k in groups[0] if k.endswith("mean")] == [
        "ofl (outside) mean", "ifl (other clients) mean", "canary (mislabelled) mean",
    ]  # fmt: skip
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
    assert "blackbox" not in rows_of(text, "**AUC**")[0].keys() - {"blackbox"}
    assert {t.view: t.attacks for t in build_tables(load_records(folder.root))} == {
        "external": ("blackbox",), "server": ("fedmia-ii", "loss-series"),
    }  # fmt: skip


def test_accuracy_with_an_active_adversary_is_kept_apart(folder):
    for seed in range(3):
        for defense in LEAK:
            folder.add(defense, "fedpoisonmia", seed, run_key=f"{defense}/{seed}/poisoned",
                       utility=Utility(accuracy=0.25, n_test=N_TEST))
    text = board(folder)
    assert rows_of(text, "**Accuracy (%) with the active adversary")[0]["fedpoisonmia"] == "25.0"
    assert all(float(r["accuracy (%)"].split()[0]) > 60 for r in rows_of(text, "**AUC**"))


def test_an_inverted_attack_is_pointed_out(tmp_path):
    text = board(Folder(tmp_path / "r", {"none": 1.0, "flip": -1.0}).fill())
    assert "inverted, the scores would leak): flip / fedmia-ii, flip / loss-series." in text


def test_runtime_is_not_compared_across_machines(folder):
    for seed in range(3):
        for attack in folder.attacks:
            folder.add("mixup", attack, seed, provenance={**PROVENANCE, "cpu": "another"})
    rows = {r["defense"]: r["runtime"] for r in rows_of(board(folder), "**AUC**")}
    assert rows["mixup"] == "n/a" and rows["cofedmid"] == "1.50x" and rows["none (undefended)"] == "1"


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
    (table,) = build_tables(load_records(folder.root))
    with_outliers = compare(table)["mixup"].difference.mean
    scores[:5] = -1e6
    for attack in folder.attacks:
        folder.add("mixup", attack, 0, arrays={"t1_kind": kind, "t1_scores": scores})
    assert compare(build_tables(load_records(folder.root))[0])["mixup"].difference.mean == with_outliers


def test_records_whose_candidates_differ_are_not_paired(folder):
    folder.add("mixup", "fedmia-ii", 0, ids_from=7)
    with pytest.raises(UserError, match=r"mixup-fedmia_ii-0\.json and .*other candidates"):
        board(folder)


# ---------------------------------------------------------------- other people's files


def test_markup_from_records_is_inert(tmp_path):
    evil = "<script>x</script>|a\n# b `c` [d](javascript:e) *f*"
    folder = Folder(tmp_path / "r", {"none": 1.0, evil: 0.5}, attacks=("a|b",)).fill(
        seeds=(0,), setting="s\n\n# <img src=x>", facts={"dataset|": "<i>\n|"}
    )
    text = board(folder)
    assert "<script" not in text and "<img" not in text and "<i>" not in text
    assert not re.search(r"^# (b|<|&lt;)", text, re.M)
    assert r"&lt;script&gt;x&lt;/script&gt;\|a \# b \`c\` \[d\](javascript:e) \*f\*" in text
    assert len({len(r) for r in rows_of(text, "**AUC**")}) == 1  # no cell broke its row
    names = [name for files in table_plots(load_records(folder.root)).values() for name in files]
    assert len(names) == 4 and all(re.fullmatch(r"[a-z0-9-]+\.(png|svg)", name) for name in names)


def test_escape_cuts_and_keeps_ordinary_names():
    assert escape("fedmia-ii") == "fedmia-ii"
    assert len(escape("x" * 999)) == 200
    assert escape("a\x1b[31m\u202eb\u2028c") == "a \\[31m b c"


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
    assert "BadZipFile" in found["mixup-fedmia_ii-1.npz"] and "missing, though" in found["mixup-fedmia_ii-2.npz"]
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
    assert render_board(records, "Demo") == render_board(records[::-1], "Demo")
    assert table_plots(records) == table_plots(records[::-1])


def test_write_board_links_the_plots_it_writes(folder):
    path = write_board(folder.root)
    assert path == folder.root / "leaderboard" / "board.md"
    links = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", path.read_text())
    assert len(links) == 2 and all((path.parent / link).read_bytes()[:4] == b"\x89PNG" for link in links)
    assert all((path.parent / link).with_suffix(".svg").read_bytes()[:5] == b"<?xml" for link in links)
    assert sorted(p.suffix for p in path.parent.iterdir()) == [".md", ".png", ".png", ".svg", ".svg"]


def test_write_board_shows_the_last_plan_only(folder):
    records = load_records(folder.root)
    plan = [r.path.stem for r in records if r.record.defense.name != "mixup"]
    marker = {"schema_version": 1, "suite": "demo", "cells": plan}
    (folder.root / "fedbench.json").write_text(json.dumps(marker))
    text = write_board(folder.root).read_text()
    assert "mixup" not in text and "6 records of earlier code, parameters or plans are not shown." in text


def test_nothing_is_written_for_a_folder_that_cannot_be_read(folder):
    (folder.root / "records" / "zz.json").write_text("{}")
    with pytest.raises(UserError, match=r"zz\.json"):
        write_board(folder.root)
    assert not (folder.root / "leaderboard").exists()


def test_the_roc_curves_rise_and_meet_the_table(tmp_path):
    folder = Folder(tmp_path / "r", {"none": 2.0, "mixup": 0.5}, n_ofl=1000).fill(seeds=(0, 1))
    (table,) = build_tables(load_records(folder.root))
    grid = np.union1d(np.geomspace(1e-3, 1, 100), [0.001])
    for row in table.rows:
        for cell in row.cells.values():
            tpr = mean_roc(cell, grid)
            assert (np.diff(tpr) >= 0).all() and tpr[-1] == 1
            assert 100 * tpr[grid == 0.001][0] == pytest.approx(cell.interval("tf01").mean)
    assert len(roc_figure(table).axes) == 2


def test_summary_for_the_terminal_follows_the_board(folder):
    folder.add("mixup", "fedmia-ii", 0, "failed", reason="x")
    headers, rows = summary_table(load_records(folder.root))
    table = [dict(zip(headers, row, strict=True)) for row in rows]
    assert [r["defense"] for r in table] == ["cofedmid", "grad-sparse", "none", "mixup"]
    assert table[3]["cells"] == "1 failed, 5 ok" and table[3]["#"] == "-" and table[0]["cells"] == "6 ok"


def test_the_stored_auc_is_the_one_of_the_stored_scores(folder):
    loaded = load_records(folder.root)[0]
    target = loaded.record.targets[0]
    c = loaded.candidates(target.target)
    assert target.groups["mix"].auc == auc(c.scores, c.kind == 0)


# ---------------------------------------------------------------- server's rules and attacks from inside


RULES = ("none", "median", "atm")
ACTIVE = ("gradient-ascent", "fedpoisonmia")
ACCURACY = {None: 0.8, "gradient-ascent": 0.7, "fedpoisonmia": 0.6}  # of the undefended federation; a rule loses 0.1


class Poisoned(Folder):
    """A folder of a poisoning suite: rules that no client takes part in, one passive run and one of each active attack."""

    def __init__(self, root, attacks=("passive", *ACTIVE), rules=RULES, rounds=6):
        self.rounds = rounds
        super().__init__(root, dict.fromkeys(rules, 0.8), attacks)

    def whose(self, defense):
        return ("pair", MEMBERS, (HONEST,)) if defense == "mixup" else ("none", (), (HONEST,))

    def add(self, defense, attack, seed, outcome="ok", **change):
        inside = attack if attack in ACTIVE else None
        facts = {"adversary": inside, "insider": {"malicious": 1, "knowledge": "honest"}, "audit": {"targets": "honest"}}
        own = {"run_key": f"{defense}/{inside}/{seed}", "facts": facts, "view": "client"}
        return super().add(defense, attack, seed, outcome, **{**own, **change})

    def _measured(self, defense, attack, seed, targets, ids_from):
        arrays, scored, _ = super()._measured(defense, attack, seed, targets, ids_from)
        rng = np.random.default_rng([seed, *defense.encode(), *attack.encode()])
        for t in scored:
            member = arrays[f"t{t.target}_kind"] == 0
            shift = {"atm": 0.3}.get(defense, 1.0) * np.where(member, 1, -1)
            by_round = rng.normal(size=(self.rounds, len(member))) + shift
            facts = {k: v for k, v in vars(decision_report(by_round, member, 0.0, rng)).items() if k != "best_index"}
            t.decision = DecisionScores(best_round=10, **facts)
        accuracy = ACCURACY[attack if attack in ACTIVE else None] - 0.1 * (defense != "none")
        correct = np.random.default_rng(seed).random(N_TEST) < accuracy
        return {**arrays, "test_correct": correct}, scored, correct


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
    (table,) = build_tables(load_records(poisoned.root))
    assert table.coalition == "none" and {r.label for r in table.rows} == set(RULES)
    assert all(r.complete for r in table.rows) and table.base.label == "none"
    text = board(poisoned)
    assert "Targets: all honest clients together." in text and "clients -3" not in text
    assert "- active attacks: fedpoisonmia / gradient-ascent" in text
    assert "- adversary inside the federation: malicious 1, knowledge honest" in text


def test_a_rule_is_a_row_of_every_coalition_as_the_undefended_federation_is(poisoned):
    poisoned.leak["mixup"] = 0.5
    for attack in poisoned.attacks:
        for seed in range(3):
            poisoned.add("mixup", attack, seed)
    (table,) = build_tables(load_records(poisoned.root))
    assert table.coalition == "pair" and {r.label for r in table.rows} == {*RULES, "mixup"}
    for suffix in (".json", ".npz"):
        (poisoned.root / "records" / f"median-passive-1{suffix}").unlink()
    missing = {(r["defense"], r["coalition"], r["outcome"]) for r in rows_of(board(poisoned), "## Cells without a score")}
    assert missing == {("median", "none", "missing")}


def test_a_defense_trained_in_coalition_none_and_in_another_keeps_its_own_tables(folder):
    folder.leak = {**LEAK, "median": 0.5}
    for attack in folder.attacks:
        folder.add("median", attack, 0, coalition="none", members=[])
        folder.add("mixup", attack, 0, coalition="none", members=[], stem=f"mixup-none-{attack}")
    tables = {t.coalition: {r.label for r in t.rows} for t in build_tables(load_records(folder.root))}
    assert tables == {"none": {"none", "mixup", "median"}, "pair": {"none", "median", *LEAK}}


def test_accuracy_and_its_loss_are_those_of_the_passive_runs(poisoned):
    (table,) = build_tables(load_records(poisoned.root))
    compared = compare(table)
    shares = {d: np.mean([np.random.default_rng(s).random(N_TEST) < 0.8 - 0.1 * (d != "none") for s in range(3)]) for d in RULES}
    for defense in RULES:  # the first attack by name is an active one, and as many attacks judged its run
        assert compared[defense].accuracy.mean == pytest.approx(shares[defense])
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
    (table,) = build_tables(load_records(poisoned.root))
    luck = [np.random.default_rng(s).random(N_TEST) for s in range(3)]
    under = {shift: np.mean([u < ACCURACY["fedpoisonmia"] - shift for u in luck]) for shift in (0, 0.1)}
    compared = compare(table)["median"]
    assert compared.accuracy.mean == pytest.approx(under[0.1])
    assert compared.delta_accuracy.mean == pytest.approx(under[0.1] - under[0])
    text = board(poisoned)
    assert "compared with the undefended run under the same attack: median (fedpoisonmia)." in text


def test_attack_accuracy_is_the_last_rounds_with_an_interval_from_the_candidates(poisoned):
    (table,) = build_tables(load_records(poisoned.root))
    cell = next(r for r in table.rows if r.label == "atm").cells["fedpoisonmia"]
    said = [r.record.targets[0].decision for r in cell.records.values()]
    found = attack_accuracy(cell)
    assert found.mean == pytest.approx(np.mean([d.last_accuracy for d in said])) and not found.between
    ses = [accuracy_se(d.last_accuracy, d.last_recall, N_MEMBERS, N_OFL + N_IFL) for d in said]
    assert found.half_width == pytest.approx(1.96 * np.sqrt(np.sum(np.square(ses))) / 3, rel=1e-3)
    rows = {r["defense"]: r for r in rows_of(board(poisoned), "**Attack accuracy**")}
    assert rows["atm"]["fedpoisonmia"] == f"**{found.mean:.3f} ± {found.half_width:.3f}**"  # the best rule of the three
    assert float(rows["none (undefended)"]["worst"].split()[0]) == max(
        float(rows["none (undefended)"][a].split(" ±")[0]) for a in poisoned.attacks
    )
    long = {(r["defense"], r["attack"]): r for r in rows_of(board(poisoned), "**Accuracy, precision and recall by round**")}
    assert len(long) == 9
    mine = long["atm", "fedpoisonmia"]
    assert mine["best_round accuracy"] == f"{np.mean([d.best_accuracy for d in said]):.3f}"
    assert mine["null of best"] == f"{null_of_best(cell):.3f}" and 0.5 < null_of_best(cell) < 0.6
    assert mine["last precision"] == f"{np.mean([d.last_precision for d in said]):.3f}"


def test_with_five_seeds_the_interval_is_students_and_never_narrower_than_the_candidates(tmp_path):
    folder = Poisoned(tmp_path / "r", attacks=("passive",), rules=("none",)).fill(seeds=range(5))
    (table,) = build_tables(load_records(folder.root))
    cell = table.rows[0].cells["passive"]
    said = [r.record.targets[0].decision for r in cell.records.values()]
    ses = [accuracy_se(d.last_accuracy, d.last_recall, N_MEMBERS, N_OFL + N_IFL) for d in said]
    found = attack_accuracy(cell)
    within = 1.96 * np.sqrt(np.sum(np.square(ses))) / 5
    assert found.between and found.half_width == pytest.approx(
        max(t_interval([d.last_accuracy for d in said]).half_width, within), rel=1e-3
    )


def test_the_error_of_an_attack_accuracy_is_the_binomial_one_and_not_zero_at_the_ends():
    rng = np.random.default_rng(0)
    right = (rng.binomial(150, 0.9, 20_000) / 150 + rng.binomial(100, 0.6, 20_000) / 100) / 2
    assert accuracy_se(0.75, 0.9, 150, 100) == pytest.approx(right.std(), rel=0.03)
    assert 0 < accuracy_se(1.0, 1.0, 150, 150) < 0.01


def test_decisions_of_failed_cells_are_not_invented_and_other_boards_have_no_such_section(poisoned, template):
    poisoned.add("atm", "passive", 1, "failed", reason="boom")
    for seed in range(3):
        poisoned.add("median", "passive", seed, "diverged", reason="NaN")
    rows = {r["defense"]: r for r in rows_of(board(poisoned), "**Attack accuracy**")}
    assert rows["atm"]["passive"].endswith("(n=2), failed (1/3)") and rows["median"]["passive"] == "diverged (3/3)"
    assert "Attack accuracy" not in board(template)


def test_the_figure_shows_every_rule_and_attack(poisoned):
    records = load_records(poisoned.root)
    (table,) = build_tables(records)
    axis = decision_figure(table).axes[0]
    assert [t.get_text() for t in axis.get_xticklabels()] == [r.label for r in table.rows]
    drawn = {c.get_label(): c.lines[0].get_ydata(orig=False) for c in axis.containers}
    assert set(drawn) == set(poisoned.attacks)
    for attack, values in drawn.items():
        np.testing.assert_allclose(values, [attack_accuracy(r.cells[attack]).mean for r in table.rows])
    (names,) = table_plots(records).values()
    linked = board(poisoned, plots={("demo", "iid", "none", "client"): list(names)})
    assert "![Attack accuracy by defense: iid, coalition none, client view](accuracy-" in linked


# ---------------------------------------------------------------- groups of clients


GROUPS = {"majority": 3, "minority": 1}  # clients
CLUSTERED = {"none": 0.2, "ifca": 0.5, "local-only": 1.0}


def society_of(defense, seed):
    rng = np.random.default_rng([seed, *defense.encode()])
    facts = [GroupFacts(name=n, clients=k, accuracy=rng.uniform(0.7, 0.9), n_test=100 * k) for n, k in GROUPS.items()]
    gaps = {kind: rng.uniform(0.02, 0.2) for kind in GAPS}
    return Society(groups=facts, **gaps, **{f"{kind}_se": 0.01 for kind in GAPS})


class Clustered(Folder):
    """A folder of a clustered federation: an attack that decides and one that does not, asked about two groups."""

    def __init__(self, root, attacks=("rmia", "shadow"), targets=(-10, -11)):
        self.targets = targets
        super().__init__(root, dict(CLUSTERED), attacks)

    def whose(self, defense):
        return ("none", (), self.targets) if defense == "none" else ("uniform", CLIENTS, self.targets)

    def add(self, defense, attack, seed, outcome="ok", **change):
        groups = [{"name": n, "fraction": None, "rotation": [0.0, 25.0], "brightness": None} for n in GROUPS]
        own = {"view": "external", "facts": {"groups": groups, "thresholds": [0.5, 0.8]}}
        if outcome == "ok":
            own |= {"society": society_of(defense, seed), "history": self.history(defense, seed)}
            if attack == "shadow":
                models = {"none": 1, "local-only": 200}.get(defense, 2)
                own["violations"] = Violations(violated=10 * seed, clients=200, accuracy_of_model=[0.512345] * models)
        return super().add(defense, attack, seed, outcome, **{**own, **change})

    def history(self, defense, seed):
        more = {"clusters": [3, 1] if seed % 2 else [1, 3], "moved": 0} if defense == "ifca" else {}
        rows = [
            RoundRow(round=r, accuracy=0.5, train_loss=None, group_accuracy=[0.5 + r / 100, 0.4], **more) for r in (10, 20, 30)
        ]  # fmt: skip
        return [*rows[:2], rows[2].model_copy(update={"moved": seed} if more else {})]

    def _measured(self, defense, attack, seed, targets, ids_from):
        arrays, scored, correct = super()._measured(defense, attack, seed, targets, ids_from)
        for t in scored if attack == "shadow" else ():
            member = arrays[f"t{t.target}_kind"] == 0
            rng = np.random.default_rng([seed, abs(t.target), *defense.encode()])
            shift = {-11: 1.5}.get(t.target, 0.3) * np.where(member, 1, -1)
            report = decision_report(rng.normal(size=(1, len(member))) + shift, member, 0.0, rng)
            facts = {k: v for k, v in vars(report).items() if k != "best_index"}
            t.decision = DecisionScores(best_round=30, **facts)
        return arrays, scored, correct


@pytest.fixture(scope="module")
def clustered(tmp_path_factory):
    return Clustered(tmp_path_factory.mktemp("clustered") / "results").fill(seeds=range(5))


def shown(interval, digits, scale=1):
    return f"{interval.mean * scale:.{digits}f} ± {interval.half_width * scale:.{digits}f}"


def test_groups_stand_side_by_side_with_intervals_over_seeds(clustered):
    rows = {r["defense"]: r for r in rows_of(board(clustered), "**Groups of clients**")}
    assert set(rows) == {"none (undefended)", "ifca", "local-only"}
    for defense, label in (("none", "none (undefended)"), ("ifca", "ifca")):
        every = [society_of(defense, seed) for seed in range(5)]
        for g, name in enumerate(GROUPS):
            values = [s.groups[g].accuracy for s in every]
            ses = [np.sqrt(v * (1 - v) / (100 * GROUPS[name])) for v in values]
            expected = combined_interval(values, ses)
            assert expected.between and rows[label][f"accuracy {name}"] == shown(expected, 1, 100)
        for kind, title in GAPS.items():
            expected = combined_interval([getattr(s, kind) for s in every], [0.01] * 5)
            assert rows[label][title] == shown(expected, 3)


def test_clusters_are_sorted_since_models_have_no_name_over_seeds_and_moves_are_summed(clustered):
    rows = {r["defense"]: r for r in rows_of(board(clustered), "**Groups of clients**")}
    assert rows["ifca"]["clients of each model"] == "3 / 1" and rows["ifca"]["moves"] == "2.0"  # (0+1+2+3+4)/5
    assert rows["none (undefended)"]["clients of each model"] == rows["none (undefended)"]["moves"] == "n/a"


def test_many_clusters_are_counted_not_listed(tmp_path):
    folder = Clustered(tmp_path / "r")
    rows = [RoundRow(round=30, accuracy=0.5, train_loss=None, clusters=[5, 40, *[7] * 18], moved=0)]
    folder.add("ifca", "shadow", 0, history=rows)
    assert rows_of(board(folder), "**Groups of clients**")[0]["clients of each model"] == "20 models of 40 to 5"


def test_mia_accuracy_is_that_of_each_group_and_violations_have_an_interval(clustered):
    text = board(clustered)
    rows = {r["defense"]: r for r in rows_of(text, "**MIA accuracy by group**")}
    assert set(rows["ifca"]) == {"defense", "shadow: majority", "shadow: minority", "shadow: violations"}
    (table,) = build_tables(load_records(clustered.root))
    cell = next(r for r in table.rows if r.label == "ifca").cells["shadow"]
    for target, name in ((-10, "majority"), (-11, "minority")):
        said = [t.decision for r in cell.records.values() for t in r.record.targets if t.target == target]
        ses = [accuracy_se(d.last_accuracy, d.last_recall, N_MEMBERS, N_OFL + N_IFL) for d in said]
        expected = combined_interval([d.last_accuracy for d in said], ses)
        assert len(said) == 5 and rows["ifca"][f"shadow: {name}"] == shown(expected, 3)
    assert rows["ifca"]["shadow: minority"] > rows["ifca"]["shadow: majority"]
    spread = t_interval([10.0 * seed for seed in range(5)]).half_width
    assert rows["ifca"]["shadow: violations"] == f"20.0 ± {spread:.1f} of 200"
    assert "0.512345" not in text and "0.512" not in rows["local-only"].values()


def test_no_violation_in_any_seed_is_not_none_for_certain():
    never = [Violations(violated=0, clients=200, accuracy_of_model=[0.5])] * 5
    assert violated([]) is None and violated(never).mean == 0 and 0.5 < violated(never).half_width < 2
    some = violated([Violations(violated=60, clients=200, accuracy_of_model=[None])])
    assert some.half_width == pytest.approx(1.96 * np.sqrt(200 * 0.3 * 0.7), rel=0.02)  # binomial


def test_auc_of_every_attack_is_shown_by_group(clustered):
    rows = {r["defense"]: r for r in rows_of(board(clustered), "**AUC by group of clients**")}
    assert list(rows["ifca"])[1:] == ["rmia: majority", "rmia: minority", "shadow: majority", "shadow: minority"]
    (table,) = build_tables(load_records(clustered.root))
    cell = next(r for r in table.rows if r.label == "ifca").cells["rmia"]
    mine = [s for (_, target), s in cell.units("mix").items() if target == -11]
    assert rows["ifca"]["rmia: minority"] == shown(combined_interval([s.auc for s in mine], [s.auc_se for s in mine]), 3)


def test_clients_that_are_targets_count_for_the_group_of_their_block_of_ids(tmp_path):
    folder = Clustered(tmp_path / "r", attacks=("fedmia-ii",), targets=(0, 2, 3)).fill(seeds=(0, 1))
    (table,) = build_tables(load_records(folder.root))
    cell, groups = table.rows[0].cells["fedmia-ii"], society_of("ifca", 0).groups
    assert [of_group(cell, groups, g).targets for g in (0, 1)] == [{0: (0, 2), 1: (0, 2)}, {0: (3,), 1: (3,)}]
    text = board(folder)
    assert "Targets: clients 0, 2, 3." in text and "MIA accuracy by group" not in text
    assert list(rows_of(text, "**AUC by group of clients**")[0]) == ["defense", "fedmia-ii: majority", "fedmia-ii: minority"]


def test_groups_are_called_by_their_names(clustered):
    text = board(clustered)
    assert "Targets: group majority, group minority." in text and "-10" not in text and "-11" not in text
    assert "- groups of clients: majority: rotation 0.0 to 25.0; minority: rotation 0.0 to 25.0" in text
    assert "- range of the MIA accuracy that clients tolerate: \\[0.5, 0.8\\]" in text
    assert whose((-11, -10), ["a", "b|c"]) == "group a, group b\\|c" and whose((-12,), ["a", "b"]) == "group 2"
    assert whose((HONEST,), []) == "all honest clients together" and whose(range(30), []).endswith("19, … (30)")


def test_failed_seeds_are_left_out_and_boards_without_groups_have_no_such_section(tmp_path, template):
    folder = Clustered(tmp_path / "r").fill(seeds=(0, 1, 2))
    for attack in folder.attacks:
        folder.add("ifca", attack, 1, "failed", reason="boom")
        for seed in range(3):
            folder.add("local-only", attack, seed, "diverged", reason="NaN")
    text = board(folder)
    rows = {r["defense"]: r for r in rows_of(text, "**Groups of clients**")}
    assert rows["ifca"]["moves"] == "1.0" and set(rows["local-only"].values()) == {"local-only", "n/a"}
    attacked = {r["defense"]: r for r in rows_of(text, "**MIA accuracy by group**")}
    assert attacked["ifca"]["shadow: violations"].startswith("10.0 ± ") and attacked["local-only"]["shadow: violations"] == "n/a"
    assert "Groups of clients" not in board(template) and "by group of clients" not in board(template)


def test_the_figure_of_groups_shows_every_group_and_the_rounds(clustered, template):
    records = load_records(clustered.root)
    (table,) = build_tables(records)
    bars, accuracy, moved = society_figure(table).axes
    groups = society_of("ifca", 0).groups
    drawn = {c.get_label(): [0.5 + p.get_height() for p in c] for c in bars.containers if hasattr(c, "patches")}
    assert set(drawn) == set(GROUPS)
    for g, name in enumerate(GROUPS):
        expected = [attack_accuracy(of_group(r.cells["shadow"], groups, g)).mean for r in table.rows]
        np.testing.assert_allclose(drawn[name], expected)
    assert {line.get_label(): list(line.get_ydata()) for line in moved.lines} == {"ifca": [0, 0, 2]}
    assert {line.get_label() for line in accuracy.lines if not line.get_label().startswith("_")} == set(CLUSTERED)
    assert list(accuracy.lines[0].get_ydata()) == pytest.approx([60, 70, 80]) and accuracy.lines[0].get_linestyle() == "-"
    second = accuracy.lines[len(CLUSTERED)]  # the other group, dashed
    assert list(second.get_ydata()) == pytest.approx([40, 40, 40]) and second.get_linestyle() == "--"
    assert society_figure(build_tables(load_records(template.root))[0]) is None
    (names,) = table_plots(records).values()
    linked = board(clustered, plots={("demo", "iid", "uniform", "external"): list(names)})
    assert "![Groups of clients: iid, coalition uniform, external view](groups-" in linked


# ---------------------------------------------------------------- migration


class Migrating(Clustered):
    """IFCA beside a defense under which client 3 ends with the other model and is exposed less."""

    def __init__(self, root):
        super().__init__(root)
        self.leak["ifca-mir"] = 0.5

    def history(self, defense, seed):
        return super().history("ifca" if defense.startswith("ifca") else defense, seed)

    def _measured(self, defense, attack, seed, targets, ids_from):
        arrays, scored, correct = super()._measured(defense, attack, seed, targets, ids_from)
        for t in targets:
            member = arrays[f"t{t}_kind"] == 0
            clients = {-10: [0, 1, 2], -11: [3]}[t]
            owner = np.where(member, np.resize(clients, len(member)), -1).astype(np.int32)
            if defense == "ifca-mir":
                arrays[f"t{t}_scores"] = arrays[f"t{t}_scores"] - 0.8 * (owner == 3)
            arrays[f"t{t}_owner"] = owner
        models = [0, 0, 1, 0] if defense == "ifca-mir" else [0, 0, 1, 1]
        return {**arrays, "assignment": np.array(models, np.int32)}, scored, correct


def naive_exposure(folder, defense, attack, seed, client):
    with np.load(folder.root / "records" / f"{escape_stem(defense)}-{attack}-{seed}.npz") as a:
        t = -11 if client == 3 else -10
        scores, kind, owner = (a[f"t{t}_{part}"] for part in ("scores", "kind", "owner"))
    wins = [float(x > y) + 0.5 * float(x == y) for x in scores[(kind == 0) & (owner == client)] for y in scores[kind > 0][::7]]
    return np.mean(wins)


def test_migration_shows_the_exposure_of_those_who_move_and_of_those_who_stay(tmp_path):
    folder = Migrating(tmp_path / "r")
    folder.add("none", "shadow", 0)
    for seed in (0, 1):
        for defense in ("ifca", "ifca-mir"):
            folder.add(defense, "shadow", seed, violations=None)
    (row,) = rows_of(board(folder), "**Does migration lower the risk")
    assert (row["defense"], row["attack"], row["moved clients"], row["others"]) == ("ifca-mir", "shadow", "2", "6")
    before = np.mean([naive_exposure(folder, "ifca", "shadow", s, 3) for s in (0, 1)])
    after = np.mean([naive_exposure(folder, "ifca-mir", "shadow", s, 3) for s in (0, 1)])
    lines = [[c.strip() for c in line.strip("|").split("|")] for line in board(folder).splitlines()]
    cells = next(c for c in lines if c[:3] == ["ifca-mir", "shadow", "2"])
    assert float(cells[3]) == pytest.approx(before, abs=0.05) and float(cells[4]) == pytest.approx(after, abs=0.05)
    assert float(cells[4]) < float(cells[3]) - 0.1  # client 3 is exposed less


def test_a_board_without_ifca_says_nothing_of_migration(clustered):
    assert "Does migration" not in board(clustered)
