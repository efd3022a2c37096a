"""Published numbers beside ours: the right cells, what was not run, and the summary; sweeps and hypervolumes."""

from __future__ import annotations

import numpy as np
import pytest
from boards import Clustered, Folder, Poisoned, board, row_of, sections_of
from scipy import stats

from fedbench.core import UserError
from fedbench.core.metrics import hypervolume
from fedbench.core.store.record import Found
from fedbench.leaderboard.markdown.render import render
from fedbench.leaderboard.statistics.agreement import agreement
from fedbench.leaderboard.statistics.papers import plain, published, same
from fedbench.leaderboard.statistics.published import match
from fedbench.leaderboard.statistics.rounds import decision_mean
from fedbench.leaderboard.statistics.sweeps import family
from fedbench.leaderboard.tables.published import match_blocks

ENTRY = {"source": "cofedmid", "setting": "iid", "where": {"table": "Table 1", "dataset": "cifar100", "model": "resnet18"}}
GRID = ("grad-noise[sigma=0.01]", "grad-noise[sigma=0.1]")
PAPERS_OWN = {"dataset": {"name": "cifar100", "params": {}}, "model": {"name": "resnet18", "params": {}}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    leak = {"none": 1.0, "grad-sparse": 0.8, "cofedmid": 0.1} | dict(zip(GRID, (0.6, 0.5), strict=True))
    return Folder(tmp_path_factory.mktemp("papers") / "results", leak).fill(seeds=(0, 1), described=PAPERS_OWN)


@pytest.fixture(scope="module")
def sections(folder):
    return sections_of(folder)


@pytest.fixture(scope="module")
def pair(sections):
    return next(m for m in match(ENTRY, sections) if m.coalition == "pair")


def ends(found):
    return found.mean, found.half_width


def ours(pair):
    return pair.ours.value, pair.ours.half_width


def test_every_published_cell_stands_beside_ours_run_or_not(sections, pair):
    row, done = row_of(sections[0], "cofedmid"), {(p.quantity, p.defense, p.attack): p for p in pair.pairs if p.ours is not None}
    assert len(pair.pairs) == 72 and {plain(d) for _, d, _ in done} == {"none", "gradsparse", "cofedmid", *map(plain, GRID)}
    mine, delta = done["auc", "cofedmid", "fedmia_ii"], done["delta_acc", "cofedmid", ""]
    assert (ours(mine), mine.paper) == (ends(row.entries["fedmia-ii"].interval("auc")), 0.57)
    assert mine.difference == pytest.approx(mine.ours.value - 0.57)
    assert (ours(delta), delta.paper) == (ends(sections[0].compared["cofedmid"].delta_accuracy), -0.01)
    assert {done["auc", label, "fedmia_ii"].paper for label in GRID} == {0.83}  # both strengths beside the paper's one row


def test_the_summary_counts_cells_and_correlates(pair):
    aucs, text = pair.of("auc"), render(match_blocks(pair))
    mine, paper = np.array([(p.ours.value, p.paper) for p in aucs if p.ours is not None]).T
    found = agreement(aucs)
    assert len(mine) == 10 and (found.done, found.asked) == (8, 56)  # a published cell counts once
    assert found.rank_correlation == pytest.approx(stats.spearmanr(mine, paper).statistic)
    assert found.mean_difference == pytest.approx(np.abs(mine - paper).mean()) and agreement(aucs[:2]).mean_difference is None
    assert f"AUC: 8 of 56 published cells run; rank correlation {found.rank_correlation:.2f}" in text


@pytest.mark.parametrize(("table", "metric", "case", "defense", "mean", "printed"), [
    ("Table 2", "tf01", "half", "hamp", 8.49, 5.46), ("Table 1", "auc", "pair", "cofedmid", 0.537, 0.52),
])  # fmt: skip
def test_a_papers_average_is_that_of_its_cells(table, metric, case, defense, mean, printed):
    (found,) = (m for m in match({**ENTRY, "where": {**ENTRY["where"], "table": table}}, []) if m.coalition == case)
    (average,) = (a for a in found.averages(metric) if a.defense == defense)
    assert average.paper == pytest.approx(mean, abs=0.0051 if metric == "tf01" else 0.0006)
    assert (average.printed, average.run, average.attacks, average.ours, average.difference) == (printed, 0, 7, None, None)


@pytest.mark.parametrize(("change", "message"), [
    ({"where": {"table": "Table 99"}}, "no rows where"),
    ({"source": "nobody"}, "no reference numbers of 'nobody'; there are cofedmid, fedmia, fedpoisonmia"),
])  # fmt: skip
def test_an_entry_that_fits_no_paper_is_refused_and_costs_no_board(folder, sections, change, message):
    with pytest.raises(UserError, match=message):
        match({**ENTRY, **change}, sections)
    text = board(folder, published=[{**ENTRY, **change}, ENTRY, {**ENTRY, "setting": "away"}])
    assert message.split(";")[0] in text.replace("\\", "") and "- not run: cofedmid Table 1, away" in text
    assert "AUC: 8 of 56 published cells run; rank correlation 0." in text and "Not the paper's setting" not in text


@pytest.mark.parametrize(("dataset", "model", "clause"), [
    ("location30", "resnet18", "the paper's data set is cifar100, ours location30:"),
    ("digits", "mlp", "the paper's data set is cifar100, ours digits; the paper's model is resnet18, ours mlp:"),
])  # fmt: skip
def test_no_rank_correlation_where_data_or_model_are_not_the_papers(tmp_path, dataset, model, clause):
    described = {"dataset": {"name": dataset, "params": {}}, "model": {"name": model, "params": {}}}
    folder = Folder(tmp_path / "r", {"none": 1.0, "mixup": 0.8, "cofedmid": 0.1}).fill((0,), described=described)
    beside = board(folder, published=[{**ENTRY, "differs": "30 rounds in place of 100 <b>"}]).partition("## Beside the paper")[2]
    assert f"Not the paper's setting: {clause} in what order" in beside and "What differs: 30 rounds" in beside
    assert "AUC: 6 of 56 published cells run; mean absolute difference 0." in beside and "<b>" not in beside


@pytest.mark.parametrize(("theirs", "own", "expected"), [
    ("cnn2", "membershield-cnn2", True), ("fc", "mlp-512-128", True), ("wrn16_4", "wrn-16-4", True), ("vgg19", "vgg16", False),
])  # fmt: skip
def test_a_component_is_the_papers_model_under_the_papers_name_of_it(theirs, own, expected):
    assert same(theirs, own) == expected


def test_a_poisoning_papers_accuracy_stands_beside_our_best_round_our_last_and_the_null(tmp_path):
    sections = sections_of(Poisoned(tmp_path / "results", rules=("none", "trimmed-mean", "atm")).fill(seeds=(0, 1)))
    where = {"table": "Table 2", "dataset": "texas100", "partition": "iid"}
    renamed = {"gradient-ascent": "ga", "adaptive-atm": "adaptive"}
    (found,) = match({"source": "fedpoisonmia", "setting": "iid", "where": where, "attacks": renamed}, sections)
    assert found.coalition == "none" and len(found.pairs) == 30  # six rules, five attacks
    done = {(plain(p.defense), p.attack): p for p in found.pairs if p.ours is not None}
    assert {d for d, _ in done} == {"trimmedmean", "atm"} and len(done) == 6
    mine, entry = done["atm", "gradient-ascent"], row_of(sections[0], "atm").entries["gradient-ascent"]
    assert (ours(mine), mine.paper) == (ends(entry.attack_accuracy(best=True)), 0.766)
    assert (mine.ours.last, mine.ours.null) == (entry.attack_accuracy().mean, decision_mean(entry, "null_best_accuracy"))
    assert mine.ours.last < mine.ours.value and "attack accuracy: 6 of 30 published cells" in render(match_blocks(found))


def test_mia_accuracy_of_each_group_stands_beside_the_papers(tmp_path):
    sections = sections_of(Clustered(tmp_path / "results").fill((0, 1)))
    (found,) = match({"source": "ifca_mir", "setting": "iid", "where": {"dataset": "mnist"}}, sections)
    assert found.coalition == "uniform" and len(found.pairs) == 6  # two defenses: accuracy, majority, minority
    row, done = row_of(sections[0], "ifca"), {p.group: p for p in found.pairs if p.ours is not None}
    expected = {"": (ends(row.accuracy), 0.816)} | {
        name: (ends(row.entries["shadow"].of_group(sections[0].groups, g).attack_accuracy()), paper)
        for g, (name, paper) in enumerate((("majority", 0.521), ("minority", 0.761)))
    }
    assert {name: (ours(p), p.paper) for name, p in done.items()} == expected
    assert "- MIA accuracy in the last round: 2 of 4 published cells run" in render(match_blocks(found))


def test_tf01_of_a_client_and_a_class_is_counted_over_all_seeds(tmp_path):
    folder = Folder(tmp_path / "r", {"none": 1.0, "cofedmid": 0.1}, attacks=("seqmia",)).fill((0, 1))
    for seed, hits in ((0, [2, 0, 1, np.nan]), (1, [0, 1, 1, 3])):
        counted = {"client": [0, 0, 4, 4], "class": [0, 3, 0, 3], "members": [20] * 4, "found": hits}
        arrays = {f"mine:{name}": np.array(v, float) for name, v in counted.items()}
        said = {"analyses": {"mine": Found(arrays=dict.fromkeys(counted, ""))}, "arrays": arrays}
        folder.add("cofedmid", "seqmia", seed, coalition="half", **said)
    entry = {"source": "cofedmid", "setting": "iid", "where": {"table": "Table 12"}}
    (found,) = match(entry, sections_of(folder))
    done = {p.group: (*ours(p), p.paper) for p in found.pairs if p.ours is not None}
    assert len(found.pairs) == 22 and done == {
        "client0:class0": (5.0, None, 0.12), "client0:class3": (2.5, None, 0.0), "client0:all": (3.75, None, 0.4),
        "client4:class0": (5.0, None, 0.0),
    }  # fmt: skip


@pytest.mark.parametrize(("source", "cell", "value"), [
    ("cofedmid", "Table 3, cifar100, iid, uniform, hamp, seqmia, tf01", "59.7"),
    ("cofedmid", "Table 12, cifar10, iid, half, cofedmid, seqmia:client4:class7, tf01_by_class", "1.27"),
    ("fedpoisonmia", "Table 4, texas100, iid, none, fedavg, fedpoisonmia:mask=random, attack_accuracy", "0.771"),
    ("ifca_mir", "Table 2, femnist, rotation, uniform, ifca_mir, shadow:majority, mia_accuracy", "0.525"),
])  # fmt: skip
def test_published_numbers(source, cell, value):
    columns = ("table", "dataset", "partition", "case", "defense", "attack", "metric")
    assert {r["mean"] for r in published(source) if ", ".join(r[c] for c in columns) == cell} == {value}


# ---------------------------------------------------------------- sweeps


@pytest.mark.parametrize(("label", "expected"), [
    ("grad-noise[sigma=0.1]", "grad-noise"), ("grad-noise-0.5", "grad-noise"), ("fedmia-ii", "fedmia-ii"), ("a+b-3", "a+b"),
])  # fmt: skip
def test_a_family_is_what_a_sweep_shares(label, expected):
    assert family(label) == expected


def test_hypervolume_of_a_sweep_includes_the_undefended_point(tmp_path):
    leak = {"none": 1.0, "mixup-1": 0.8, "mixup-2": 0.3, "cofedmid": 0.0}
    (section,) = sections_of(Folder(tmp_path / "results", leak, n_ofl=1000).fill(seeds=(0,)))
    rows = [row_of(section, name) for name in ("none", "mixup-1", "mixup-2")]
    points = [(section.contest.tf01(row.label, "fedmia-ii").mean / 100, 1 - row.accuracy.mean) for row in rows]
    (sweep,) = section.sweeps()
    assert sweep.labels == ("mixup-2", "mixup-1")
    assert sweep.hypervolume("fedmia-ii") == pytest.approx(hypervolume(np.array(points)))
