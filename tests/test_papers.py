"""Published numbers beside ours, and sweeps: the right cells, what was not run, and the summary."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from boards import Clustered, Folder, Poisoned, board, row_of, sections_of, table_of
from scipy import stats

from fedbench.core import UserError
from fedbench.core.metrics import hypervolume
from fedbench.core.store.record import Found
from fedbench.leaderboard.figures import style
from fedbench.leaderboard.markdown.render import render
from fedbench.leaderboard.statistics.agreement import agreement
from fedbench.leaderboard.statistics.by_class import tf01_of_class
from fedbench.leaderboard.statistics.papers import plain, published, same
from fedbench.leaderboard.statistics.published import _pairs, match
from fedbench.leaderboard.statistics.rounds import decision_mean
from fedbench.leaderboard.statistics.sweeps import family
from fedbench.leaderboard.tables.published import match_blocks
from fedbench.plugins.analyses.sweep_figure import sweep_figure

ENTRY = {"source": "cofedmid", "setting": "iid", "where": {"table": "Table 1", "dataset": "cifar100", "model": "resnet18"}}

PAPERS_OWN = {"dataset": {"name": "cifar100", "params": {}}, "model": {"name": "resnet18", "params": {}}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    leak = {"none": 1.0, "grad-sparse": 0.8, "cofedmid": 0.1}
    return Folder(tmp_path_factory.mktemp("papers") / "results", leak, n_ofl=2000).fill(seeds=(0, 1), described=PAPERS_OWN)


@pytest.fixture(scope="module")
def sections(folder):
    return sections_of(folder)


def test_names_are_the_same_without_punctuation():
    assert plain("fedmia-ii") == plain("fedmia_ii") and plain("dp-sgd") == plain("dpsgd") and plain("a") != plain("b")


def test_every_published_cell_of_the_coalition_is_there_run_or_not(sections):
    pair, half = sorted(match(ENTRY, sections), key=lambda m: m.coalition != "pair")
    rows = [
        r for r in published("cofedmid")
        if r["table"] == "Table 1" and r["case"] in ("pair", "none")
        and (r["metric"] in ("test_acc", "delta_acc") or (r["metric"] == "auc" and r["attack"] not in ("", "avg")))
    ]  # fmt: skip
    assert len(pair.pairs) == len(rows) and all(p.ours is None for p in half.pairs)  # we ran no half
    done = {(p.defense, p.attack): p for p in pair.pairs if p.ours is not None and p.quantity == "auc"}
    assert {plain(d) for d, _ in done} == {"none", "gradsparse", "cofedmid"} and len(done) == 6
    row = row_of(next(s for s in sections if s.coalition == "pair"), "cofedmid")
    mine = done["cofedmid", "fedmia_ii"]
    assert mine.ours.value == row.entries["fedmia-ii"].interval("auc").mean and mine.paper == 0.57
    assert mine.difference == pytest.approx(mine.ours.value - 0.57)


def test_the_summary_counts_and_correlates(sections):
    pair = next(m for m in match(ENTRY, sections) if m.coalition == "pair")
    text = render(match_blocks(pair))
    aucs = pair.of("auc")
    ours, paper = np.array([(p.ours.value, p.paper) for p in aucs if p.ours is not None]).T
    rank = stats.spearmanr(ours, paper).statistic
    found = agreement(aucs)
    assert (found.done, found.asked, found.rank_correlation) == (6, len(aucs), pytest.approx(rank))
    assert found.mean_difference == pytest.approx(np.abs(ours - paper).mean())
    assert f"AUC: 6 of {len(aucs)} published cells run; rank correlation {rank:.2f}" in text
    assert f"mean absolute difference {np.abs(ours - paper).mean():.3f}" in text
    absent = [d for d in ("dpsgd", "gradnoise", "hamp", "mixup", "relaxloss") if d in {p.defense for p in aucs}]
    assert text.count("not run") == len(aucs) - 6 + 2 * len(absent) == 60  # AUC, and of each defense its average and accuracy
    assert "test accuracy: 1 of 1 published cells run" in text


def test_an_entry_that_fits_no_paper_is_said_and_costs_no_board(folder, sections):
    with pytest.raises(UserError, match="no rows where"):
        match({**ENTRY, "where": {"table": "Table 99"}}, sections)
    with pytest.raises(UserError, match="no reference numbers of 'nobody'; there are cofedmid, fedmia, fedpoisonmia"):
        match({**ENTRY, "source": "nobody"}, sections)
    text = board(folder, published=[{**ENTRY, "where": {"table": "Table 99"}}, ENTRY])
    assert "has no rows where" in text and "cofedmid Table 1" in text


@pytest.mark.parametrize(
    ("label", "expected"),
    [("grad-noise[sigma=0.1]", "grad-noise"), ("grad-noise-0.5", "grad-noise"), ("fedmia-ii", "fedmia-ii"), ("a+b-3", "a+b")],
)
def test_a_family_is_what_a_sweep_shares(label, expected):
    assert family(label) == expected


def test_hypervolume_of_a_sweep_includes_the_undefended_point(tmp_path):
    leak = {"none": 1.0, "mixup-1": 0.8, "mixup-2": 0.3, "cofedmid": 0.0}
    folder = Folder(tmp_path / "results", leak, n_ofl=2000).fill(seeds=(0,))
    (section,) = sections_of(folder)
    (sweep,) = section.sweeps()
    assert sweep.family == "mixup" and set(sweep.labels) == {"mixup-1", "mixup-2"}
    rows = [row_of(section, name) for name in ("none", "mixup-1", "mixup-2")]
    points = [(section.contest.tf01(row.label, "fedmia-ii").mean / 100, 1 - row.accuracy.mean) for row in rows]
    expected = hypervolume(np.array(points))
    assert sweep.hypervolume("fedmia-ii") == pytest.approx(expected)
    (line,) = table_of(folder, "Hypervolume over the sweep of a defense's strength").rows
    assert line[0] == "mixup" and line[1].mean == 2 and line[2].mean == pytest.approx(expected)


def test_the_sweep_figure_draws_every_strength(tmp_path):
    leak = {"none": 1.0, "mixup-1": 0.8, "mixup-2": 0.3, "cofedmid": 0.0}
    folder = Folder(tmp_path / "results", leak, n_ofl=2000).fill(seeds=(0,))
    (section,) = sections_of(folder)
    figure = sweep_figure(section).draw(style)
    assert [a.get_title() for a in figure.axes] == list(section.attacks)
    for axis in figure.axes:
        curve, base = axis.lines
        assert curve.get_label() == "mixup" and len(curve.get_xdata()) == 2 and len(base.get_xdata()) == 1
        assert list(curve.get_xdata()) == sorted(curve.get_xdata())


POISONING = {
    "source": "fedpoisonmia", "setting": "iid", "where": {"table": "Table 2", "dataset": "texas100", "partition": "iid"},
    "attacks": {"gradient-ascent": "ga", "adaptive-atm": "adaptive"},
}  # fmt: skip


def test_a_poisoning_papers_accuracy_stands_beside_our_best_round_and_our_last(tmp_path):
    folder = Poisoned(tmp_path / "results", rules=("none", "trimmed-mean", "atm")).fill(seeds=(0, 1))
    sections = sections_of(folder)
    (found,) = match(POISONING, sections)
    assert found.coalition == "none" and len(found.pairs) == 30  # six rules, five attacks
    done = {(plain(p.defense), p.attack): p for p in found.pairs if p.ours is not None}
    assert {d for d, _ in done} == {"trimmedmean", "atm"} and len(done) == 6
    mine = done["atm", "gradient-ascent"]
    entry = row_of(sections[0], "atm").entries["gradient-ascent"]
    best, null = entry.attack_accuracy(best=True), decision_mean(entry, "null_best_accuracy")
    ours = mine.ours
    assert (ours.value, ours.half_width, mine.paper) == (best.mean, best.half_width, 0.766)
    assert (ours.last, ours.null) == (entry.attack_accuracy().mean, null) and ours.last < ours.value
    text = render(match_blocks(found))
    assert "best_round attack accuracy: 6 of 30 published cells run; rank correlation" in text
    row = next(line for line in text.splitlines() if line.startswith("| atm") and "gradient-ascent" in line)
    shown = [c.strip() for c in row.split("|")[3:-1]]
    assert shown == [
        f"{best.mean:.3f} ± {best.half_width:.3f}", "0.766", f"{best.mean - 0.766:+.3f}", f"{ours.last:.3f}", f"{ours.null:.3f}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("table", "dataset", "partition", "defense", "attack", "value"),
    [
        ("Table 2", "stl10", "group_bias", "median", "fedpoisonmia", "0.783"),
        ("Table 3", "texas100", "iid", "atm", "fedpoisonmia", "0.757"),
        ("Table 4", "texas100", "iid", "fedavg", "fedpoisonmia:mask=random", "0.771"),
        ("Table 5", "texas100", "group_bias", "fang", "agrevader", "0.910"),
        ("Table 6", "texas100", "iid", "server_dp", "passive", "0.643"),
        ("Table 7 (C=0.8)", "fer2013", "group_bias", "atm", "fedpoisonmia", "0.680"),
        ("Table 7 (C=1)", "cifar10", "iid", "top_k", "agrevader", "0.623"),
    ],
)
def test_published_attack_accuracies(table, dataset, partition, defense, attack, value):
    wanted = {"table": table, "dataset": dataset, "partition": partition, "defense": defense, "attack": attack}
    (row,) = (r for r in published("fedpoisonmia") if wanted.items() <= r.items())
    assert row["mean"] == value and row["metric"] == "attack_accuracy"


CLUSTERED = {"source": "ifca_mir", "setting": "iid", "where": {"dataset": "mnist"}}


def test_mia_accuracy_of_each_group_and_test_accuracy_stand_beside_the_papers(tmp_path):
    folder = Clustered(tmp_path / "results")
    folder.leak["ifca-mir"] = 0.4
    for seed in (0, 1):
        for defense in ("none", "ifca"):
            for attack in folder.attacks:
                folder.add(defense, attack, seed)
    sections = sections_of(folder)
    (found,) = match(CLUSTERED, sections)
    assert found.coalition == "uniform" and len(found.pairs) == 6  # two defenses: accuracy, majority, minority
    done = {(p.quantity, p.attack, p.group): p for p in found.pairs if p.ours is not None}
    assert {p.defense for p in done.values()} == {"ifca"} and len(done) == 3
    row = row_of(sections[0], "ifca")
    mine = done["test_acc", "", ""]
    assert (mine.ours.value, mine.ours.half_width, mine.paper) == (row.accuracy.mean, row.accuracy.half_width, 0.816)
    for g, (name, paper) in enumerate((("majority", 0.521), ("minority", 0.761))):
        expected = row.entries["shadow"].of_group(sections[0].groups, g).attack_accuracy()
        mine = done["mia_accuracy", "shadow", name]
        assert (mine.ours.value, mine.ours.half_width, mine.paper) == (expected.mean, expected.half_width, paper)
    text = render(match_blocks(found))
    assert "- MIA accuracy in the last round: 2 of 4 published cells run" in text
    assert "- test accuracy: 1 of 2 published cells run" in text and text.count("not run |") == 3


@pytest.mark.parametrize(
    ("dataset", "defense", "attack", "metric", "value"),
    [
        ("mnist", "ifca", "shadow:minority", "mia_accuracy", "0.761"),
        ("femnist", "ifca_mir", "shadow:majority", "mia_accuracy", "0.525"),
        ("cifar10", "ifca_mir", "shadow:minority", "mia_accuracy", "0.792"),
        ("cifar10", "ifca", "", "test_acc", "0.725"),
    ],
)
def test_published_numbers_of_clustered_federations(dataset, defense, attack, metric, value):
    wanted = {"dataset": dataset, "defense": defense, "attack": attack, "metric": metric}
    (row,) = (r for r in published("ifca_mir") if wanted.items() <= r.items())
    assert row["mean"] == value and len(published("ifca_mir")) == 18
    assert all(":" in r["attack"] for r in published("ifca_mir") if r["metric"] == "mia_accuracy")


@pytest.mark.parametrize(
    ("dataset", "model", "clause"),
    [
        ("location30", "resnet18", "the paper's data set is cifar100, ours location30:"),
        ("cifar100", "cnn-small", "the paper's model is resnet18, ours cnn-small:"),
        ("digits", "mlp", "the paper's data set is cifar100, ours digits; the paper's model is resnet18, ours mlp:"),
    ],
)
def test_no_rank_correlation_where_data_or_model_are_not_the_papers(tmp_path, dataset, model, clause):
    described = {"dataset": {"name": dataset, "params": {}}, "model": {"name": model, "params": {}}}
    folder = Folder(tmp_path / "r", {"none": 1.0, "mixup": 0.8, "cofedmid": 0.1}, n_ofl=2000).fill((0, 1), described=described)
    text = board(folder, published=[{**ENTRY, "differs": "30 rounds in place of 100 <b>"}])
    beside = text[text.index("## Beside the paper"):]
    assert f"Not the paper's setting: {clause} in what order" in beside and "so no rank correlation is given" in beside
    assert "rank correlation" not in beside.replace("no rank correlation is given", "")
    assert "AUC: 6 of 56 published cells run; mean absolute difference 0." in beside
    heading, differs, summary = map(beside.index, ("coalition pair", "What differs: 30 rounds in place of 100", "- AUC: 6 of"))
    assert heading < differs < summary and "<b>" not in beside


def test_a_rank_correlation_where_data_and_model_are_the_papers(folder):
    text = board(folder, published=[ENTRY])
    assert "AUC: 6 of 56 published cells run; rank correlation 0." in text
    assert "Not the paper's setting" not in text and "What differs" not in text


def test_a_component_is_the_papers_model_under_the_papers_name_of_it():
    assert same("cnn2", "membershield-cnn2") and same("fc", "mlp-512-128") and same("wrn16_4", "wrn-16-4")
    assert same("tinyimagenet", "tiny-imagenet") and not same("vgg19", "vgg16") and not same("texas100", "location30")


# What the averages of the printed cells are (the paper's "Avg" column is another number in most rows): table, metric, case,
# defense, mean of the cells, printed.
AVERAGES = [
    ("Table 2", "tf01", "pair", "gradsparse", 10.72, 7.87), ("Table 2", "tf01", "pair", "mixup", 7.24, 5.81),
    ("Table 2", "tf01", "pair", "relaxloss", 6.45, 5.33), ("Table 2", "tf01", "pair", "hamp", 8.27, 7.74),
    ("Table 2", "tf01", "pair", "cofedmid", 1.58, 1.58), ("Table 2", "tf01", "pair", "none", 7.04, 6.59),
    ("Table 2", "tf01", "half", "relaxloss", 6.57, 3.98), ("Table 2", "tf01", "half", "hamp", 8.49, 5.46),
    ("Table 2", "tf01", "half", "mixup", 6.64, 4.75), ("Table 2", "tf01", "half", "cofedmid", 1.65, 1.65),
    ("Table 1", "auc", "pair", "gradsparse", 0.811, 0.78), ("Table 1", "auc", "pair", "hamp", 0.601, 0.55),
    ("Table 1", "auc", "pair", "cofedmid", 0.537, 0.52), ("Table 1", "auc", "half", "cofedmid", 0.531, 0.51),
]  # fmt: skip


@pytest.mark.parametrize(("table", "metric", "case", "defense", "mean", "printed"), AVERAGES)
def test_a_papers_average_is_that_of_its_cells_and_the_printed_one_stands_beside(table, metric, case, defense, mean, printed):
    entry = {**ENTRY, "where": {**ENTRY["where"], "table": table}}
    (found,) = (m for m in match(entry, []) if m.coalition == case)
    (average,) = (a for a in found.averages(metric) if a.defense == defense)
    assert average.paper == pytest.approx(mean, abs=0.0051 if metric == "tf01" else 0.0006)
    assert (average.printed, average.run, average.attacks, average.ours, average.difference) == (printed, 0, 7, None, None)


def test_ours_is_averaged_over_the_attacks_that_were_run_and_the_papers_over_the_same(sections):
    pair = next(m for m in match(ENTRY, sections) if m.coalition == "pair")
    found = {a.defense: a for a in pair.averages("auc")}
    row = row_of(next(s for s in sections if s.coalition == "pair"), "cofedmid")
    ours = np.mean([row.entries[a].interval("auc").mean for a in ("fedmia-ii", "loss-series")])
    mine = found["cofedmid"]
    assert (mine.run, mine.attacks, mine.ours, mine.paper) == (2, 7, pytest.approx(ours), pytest.approx((0.57 + 0.54) / 2))
    assert mine.difference == pytest.approx(ours - 0.555) and mine.printed == 0.52
    text = render(match_blocks(pair))
    lines = [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines() if "2 of 7 attacks" in line]
    assert ["cofedmid", "2 of 7 attacks", f"{ours:.3f}", "0.555", f"{ours - 0.555:+.3f}", "0.52"] in lines


def test_every_strength_of_a_grid_stands_beside_the_one_row_of_the_paper(tmp_path):
    leak = {"none": 1.0, "grad-noise[sigma=0.01]": 0.8, "grad-noise[sigma=0.1]": 0.5}
    folder = Folder(tmp_path / "r", leak, n_ofl=2000).fill((0, 1), described=PAPERS_OWN)
    pair = next(m for m in match(ENTRY, sections_of(folder)) if m.coalition == "pair")
    mine = [p for p in pair.of("auc") if p.theirs == "gradnoise" and p.attack == "fedmia_ii"]
    assert {p.defense: p.paper for p in mine} == {"grad-noise[sigma=0.01]": 0.83, "grad-noise[sigma=0.1]": 0.83}
    assert len({p.ours.value for p in mine}) == 2
    found = agreement(pair.of("auc"))
    assert (found.done, found.asked) == (4, 56)  # a published cell counts once, whatever stands beside it


def test_what_a_defense_costs_stands_beside_the_papers_difference(sections):
    pair = next(m for m in match(ENTRY, sections) if m.coalition == "pair")
    section = next(s for s in sections if s.coalition == "pair")
    (mine,) = (p for p in pair.of("delta_acc") if p.defense == "cofedmid")
    delta = section.compared["cofedmid"].delta_accuracy
    assert (mine.ours.value, mine.ours.half_width, mine.paper) == (delta.mean, delta.half_width, -0.01)


def test_a_setting_that_was_not_run_costs_the_board_one_line(folder):
    text = board(folder, published=[ENTRY, {**ENTRY, "setting": "away"}])
    assert "- not run: cofedmid Table 1, away" in text and text.count("### cofedmid Table 1") == 2  # pair and half of iid


def test_tf01_of_a_client_and_a_class_stands_beside_the_papers(tmp_path):
    folder = Folder(tmp_path / "r", {"none": 1.0, "cofedmid": 0.1}, attacks=("seqmia",), n_ofl=2000)
    counted = {"client": [1, 1, 2, 2], "class": [0, 3, 0, 3], "members": [20, 20, 20, 20]}
    for seed, hits in ((0, [2, 0, 1, np.nan]), (1, [0, 1, 1, 3])):
        arrays = {f"mine:{name}": np.array(v, float) for name, v in {**counted, "found": hits}.items()}
        analyses = {"mine": Found(arrays=dict.fromkeys([*counted, "found"], "")), "another": Found(arrays={"client": "id"})}
        for defense in ("none", "cofedmid"):
            more = {**arrays, "another:client": np.zeros(2)} if defense == "cofedmid" else None
            own = {"arrays": more, "analyses": analyses} if more else {}
            folder.add(defense, "seqmia", seed, coalition="half" if more else "none", **own)
    (section,) = (s for s in sections_of(folder) if s.coalition == "half")
    entry = row_of(section, "cofedmid").entries["seqmia"]
    assert [tf01_of_class(entry, 1, label) for label in (0, 3, None, 7)] == [100 * 2 / 40, 100 * 1 / 40, 100 * 3 / 80, None]
    assert (tf01_of_class(entry, 2, 0), tf01_of_class(entry, 2, 3), tf01_of_class(entry, 2, None)) == (5.0, None, None)
    assert tf01_of_class(row_of(section, "none").entries["seqmia"], 1, 0) is None  # nobody counted there
    (found,) = match({"source": "cofedmid", "setting": "iid", "where": {"table": "Table 12"}}, [section])
    pairs = {p.group: p for p in found.pairs}
    assert len(pairs) == 22 and pairs["client4:class7"].paper == 1.27 and pairs["client0:all"].paper == 0.40
    assert {p.defense for p in found.pairs} == {"cofedmid"} and all(p.ours is None for p in found.pairs)  # of other clients
    (mine,) = (_pairs({**row, "attack": "seqmia:client1:class3"}, [section], {})[0] for row in published("cofedmid")
               if row["attack"] == "seqmia:client0:class3")  # fmt: skip
    assert (mine.ours.value, mine.paper) == (2.5, 0.0)
    text = render(match_blocks(replace(found, pairs=(mine,))))
    assert "- TF01 by client and class: 1 of 1 published cells run" in text and "| seqmia, client1, class3 |" in text


@pytest.mark.parametrize(
    ("table", "dataset", "partition", "case", "defense", "attack", "metric", "value"),
    [
        ("Table 3", "cifar100", "iid", "uniform", "hamp", "seqmia", "tf01", "59.7"),
        ("Table 4", "cifar100", "dirichlet:0.5", "pair", "cofedmid", "fedmia_ii", "tf01", "0.21"),
        ("Table 5", "cifar10", "iid", "half", "cofedmid_recycling", "seqmia", "auc", "0.64"),
        ("Table 6", "cifar10", "iid", "half", "cofedmid_partition_random", "", "delta_acc", "-0.11"),
        ("Table 7", "cifar100", "iid", "half", "cofedmid_constant_max", "seqmia", "auc", "0.73"),
        ("Table 8", "cifar10", "iid", "half", "cofedmid_recycling", "", "delta_acc", "-0.04"),
        ("Table 9", "cifar100", "iid", "half", "cofedmid_without_confidence", "seqmia", "auc", "0.80"),
        ("Table 10", "cifar100", "iid", "half", "cofedmid", "seqmia", "auc", "0.66"),
        ("Table 11", "tinyimagenet", "iid", "half", "cofedmid_partition", "", "runtime", "0.57"),
        ("Table 12", "cifar10", "iid", "half", "cofedmid", "seqmia:client4:class7", "tf01_by_class", "1.27"),
        ("Table 13", "cifar100", "iid", "half", "cofedmid_exponential", "fta_c", "tf01", "1.18"),
        ("Table 14", "cifar100", "iid", "pair", "cofedmid_limit_0.05", "", "test_acc", "0.47"),
        ("Figure 8", "cifar10", "iid", "half", "cofedmid_partition", "", "delta_acc", "-0.07"),
    ],
)  # fmt: skip
def test_published_numbers_of_cofedmid(table, dataset, partition, case, defense, attack, metric, value):
    wanted = {"table": table, "dataset": dataset, "partition": partition, "case": case, "defense": defense, "attack": attack}
    (row,) = (r for r in published("cofedmid") if wanted.items() <= r.items() and r["metric"] == metric)
    assert row["mean"] == value


def test_no_number_of_cofedmid_is_there_twice():
    cells = [tuple(v for k, v in row.items() if k not in ("mean", "std")) for row in published("cofedmid")]
    assert len(cells) == len(set(cells)) == 2099


def test_a_printed_ratio_of_runtimes_stands_beside_ours(sections):
    where = {"table": "Table 11", "dataset": "cifar100"}
    (found,) = match({"source": "cofedmid", "setting": "iid", "where": where, "case": {"pair": "half"}}, sections)
    section = next(s for s in sections if s.coalition == "pair")
    mine = {p.defense: (p.ours and p.ours.value, p.paper) for p in found.pairs if p.quantity == "runtime"}
    assert mine["cofedmid"] == (section.compared["cofedmid"].runtime.mean, 1.52) == (1.5, 1.52)
    assert mine["cofedmid_partition"] == (None, 0.78)
