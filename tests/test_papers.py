"""Published numbers beside ours: the right cells, what was not run, and the summary; sweeps and
hypervolumes.
"""

from __future__ import annotations

import numpy as np
import pytest
from boards import Folder, Poisoned, board, row_of, sections_of
from claim_boards import NO, YES, judge
from scipy import stats

from fedbench.core import UserError
from fedbench.core.spec.load import open_document
from fedbench.core.spec.suite import SuiteSpec
from fedbench.core.store.record import RecordedFindings
from fedbench.leaderboard.markdown import render
from fedbench.leaderboard.statistics.sections import family
from fedbench.plugins.papers.claim_files import shipped_papers
from fedbench.plugins.papers.items import cost, named_in, paper_items, steps_of
from fedbench.plugins.papers.published import match, plain, published
from fedbench.plugins.papers.tables import agreement, match_blocks
from fedbench.suites import shipped_suites

ENTRY = {
    "source": "cofedmid",
    "setting": "iid",
    "where": {"table": "Table 1", "dataset": "cifar100", "model": "resnet18"},
}
GRID = ("grad-noise[sigma=0.01]", "grad-noise[sigma=0.1]")
PAPERS_OWN = {
    "dataset": {"name": "cifar100", "params": {}},
    "model": {"name": "resnet18", "params": {}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    leak = {"none": 1.0, "grad-sparse": 0.8, "cofedmid": 0.1} | dict(
        zip(GRID, (0.6, 0.5), strict=True)
    )
    return Folder(tmp_path_factory.mktemp("papers") / "results", leak).fill(
        seeds=(0, 1), described=PAPERS_OWN
    )


@pytest.fixture(scope="module")
def sections(folder):
    return sections_of(folder)


@pytest.fixture(scope="module")
def pair(sections):
    return next(m for m in match(ENTRY, sections) if m.coalition == "pair")


def run_of(found):
    """(quantity, defense, attack) -> the pair, of what was run."""
    return {(p.quantity, p.defense, p.attack): p for p in found.pairs if p.ours is not None}


def ends(found):
    return found.mean, found.half_width


def ours(pair):
    return pair.ours.value, pair.ours.half_width


def test_every_published_cell_stands_beside_ours_run_or_not(sections, pair):
    row, done = row_of(sections[0], "cofedmid"), run_of(pair)
    defenses = {"none", "gradsparse", "cofedmid", *map(plain, GRID)}
    assert len(pair.pairs) == 72 and {plain(d) for _, d, _ in done} == defenses
    mine = done["auc", "cofedmid", "fedmia_ii"]
    assert (ours(mine), mine.paper) == (ends(row.entries["fedmia-ii"].interval("auc")), 0.57)
    assert mine.difference == pytest.approx(mine.ours.value - 0.57)
    # both strengths beside the paper's one row
    assert {done["auc", label, "fedmia_ii"].paper for label in GRID} == {0.83}


def test_the_summary_counts_cells_and_correlates(pair):
    aucs, text = pair.of("auc"), render(match_blocks(pair))
    mine, paper = np.array([(p.ours.value, p.paper) for p in aucs if p.ours is not None]).T
    found = agreement(aucs)
    assert len(mine) == 10 and (found.done, found.asked) == (8, 56)  # a published cell counts once
    assert found.rank_correlation == pytest.approx(stats.spearmanr(mine, paper).statistic)
    assert found.mean_difference == pytest.approx(np.abs(mine - paper).mean())
    assert agreement(aucs[:2]).mean_difference is None
    said = f"AUC: 8 of 56 published cells run; rank correlation {found.rank_correlation:.2f}"
    assert said in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"where": {"table": "Table 99"}}, "no rows where"),
        (
            {"source": "unknown"},
            "no reference numbers of 'unknown'; there are cofedmid, fedmia, fedpoisonmia",
        ),
    ],
)
def test_an_entry_that_fits_no_paper_is_refused_and_costs_no_board(
    folder, sections, change, message
):
    with pytest.raises(UserError, match=message):
        match({**ENTRY, **change}, sections)
    text = board(folder, published=[{**ENTRY, **change}, ENTRY, {**ENTRY, "setting": "away"}])
    assert message.split(";")[0] in text.replace("\\", "")
    assert "- not run: cofedmid Table 1, away" in text
    assert "AUC: 8 of 56 published cells run; rank correlation 0." in text
    assert "Not the paper's setting" not in text


def test_no_rank_correlation_where_data_or_model_are_not_the_papers(tmp_path):
    clause = (
        "the paper's data set is cifar100, ours digits; the paper's model is resnet18, ours mlp:"
    )
    described = {
        "dataset": {"name": "digits", "params": {}},
        "model": {"name": "mlp", "params": {}},
    }
    leak = {"none": 1.0, "mixup": 0.8, "cofedmid": 0.1}
    folder = Folder(tmp_path / "r", leak).fill((0,), described=described)
    entry = {**ENTRY, "differs": "30 rounds in place of 100 <b>"}
    beside = board(folder, published=[entry]).partition("## Published numbers")[2]
    assert f"Not the paper's setting: {clause} the order" in beside
    assert "What differs: 30 rounds" in beside and "<b>" not in beside
    assert "AUC: 6 of 56 published cells run; mean absolute difference 0." in beside


def test_tf01_of_a_client_and_a_class_is_counted_over_all_seeds(tmp_path):
    folder = Folder(tmp_path / "r", {"none": 1.0, "cofedmid": 0.1}, attacks=("seqmia",)).fill(
        (0, 1)
    )
    for seed, hits in ((0, [2, 0, 1, np.nan]), (1, [0, 1, 1, 3])):
        counted = {
            "client": [0, 0, 4, 4],
            "class": [0, 3, 0, 3],
            "members": [20] * 4,
            "found": hits,
        }
        arrays = {f"mine:{name}": np.array(v, float) for name, v in counted.items()}
        said = {
            "analyses": {"mine": RecordedFindings(arrays=dict.fromkeys(counted, ""))},
            "arrays": arrays,
        }
        folder.add("cofedmid", "seqmia", seed, coalition="half", **said)
    entry = {"source": "cofedmid", "setting": "iid", "where": {"table": "Table 12"}}
    (found,) = match(entry, sections_of(folder))
    done = {p.group: (*ours(p), p.paper) for p in found.pairs if p.ours is not None}
    assert len(found.pairs) == 22 and done == {
        "client0:class0": (5.0, None, 0.12),
        "client0:class3": (2.5, None, 0.0),
        "client0:all": (3.75, None, 0.4),
        "client4:class0": (5.0, None, 0.0),
    }


@pytest.mark.parametrize(("floors", "factor", "verdict"), [(["placebo"], 1.0, YES), ([], 1.5, NO)])
def test_a_papers_runtime_is_compared_with_ours_over_plain_training(
    tmp_path, floors, factor, verdict
):
    folder = Folder(tmp_path / "r", dict.fromkeys(["none", "cofedmid", *floors], 0.5)).fill()
    where = {"table": "Table 11", "dataset": "cifar10", "model": "resnet18"}
    entry = {"source": "cofedmid", "setting": "iid", "where": where, "case": {"pair": "half"}}
    (found,) = match(entry, sections_of(folder))
    (mine,) = [p for p in found.of("runtime") if p.ours is not None]
    assert (mine.defense, mine.paper, mine.ours.value) == ("cofedmid", 1.69, factor)
    assert "The paper's is over undefended training." in render(match_blocks(found))
    holds = "below: {measure: runtime, row: cofedmid, value: 1.2}"
    assert judge(sections_of(folder), holds).verdict == verdict


@pytest.mark.parametrize(
    ("source", "cell", "value"),
    [
        ("cofedmid", "Table 3, cifar100, iid, uniform, hamp, seqmia, tf01", "59.7"),
        (
            "cofedmid",
            "Table 12, cifar10, iid, half, cofedmid, seqmia:client4:class7, tf01_by_class",
            "1.27",
        ),
        (
            "fedpoisonmia",
            "Table 4, texas100, iid, none, fedavg, fedpoisonmia:mask=random, attack_accuracy",
            "0.771",
        ),
        (
            "fedpoisonmia",
            "Table 13 (C=1), fer2013, group_bias, none, atm, fedpoisonmia, test_acc",
            "0.517",
        ),
        (
            "ifca_mir",
            "Table 2, femnist, rotation, uniform, ifca_mir, shadow:majority, mia_accuracy",
            "0.525",
        ),
    ],
)
def test_published_numbers(source, cell, value):
    columns = ("table", "dataset", "partition", "case", "defense", "attack", "metric")
    assert {r["mean"] for r in published(source) if ", ".join(r[c] for c in columns) == cell} == {
        value
    }


def test_printed_precision_and_recall_are_of_the_round_of_the_printed_accuracy():
    """Of as many members as non-members: accuracy = (1 + recall (2 - 1 / precision)) / 2."""
    tables = {}
    for row in published("fedpoisonmia"):
        cell = tuple(row[c] for c in ("dataset", "partition", "defense", "attack"))
        tables.setdefault(row["table"], {})[cell] = float(row["mean"])
    for accuracy, precision, recall in (
        ("Table 2", "Table 8 (C=0.8)", "Table 10 (C=0.8)"),
        ("Table 6", "Table 8 (C=1)", "Table 10 (C=1)"),
        ("Table 7 (C=0.8)", "Table 9 (C=0.8)", "Table 11 (C=0.8)"),
        ("Table 7 (C=1)", "Table 9 (C=1)", "Table 11 (C=1)"),
    ):
        cells = [(tables[accuracy][c], p, tables[recall][c]) for c, p in tables[precision].items()]
        a, p, r = np.array(cells).T
        assert len(cells) == 192 and (np.abs((1 + r * (2 - 1 / p)) / 2 - a) < 0.01).mean() > 0.88


def test_decisions_stand_beside_printed_ones_and_accuracy_is_that_under_the_attack(tmp_path):
    sections = sections_of(Poisoned(tmp_path / "r").fill())
    tables = ["Table 2", "Table 8 (C=0.8)", "Table 10 (C=0.8)", "Table 12 (C=0.8)"]
    where = {"table": tables, "dataset": "texas100", "partition": "iid"}
    entry = {"source": "fedpoisonmia", "setting": "iid", "where": where}
    (found,) = match(entry, sections)
    done = run_of(found)
    decisions = row_of(sections[0], "atm").entries["fedpoisonmia"].decisions.values()
    for name, printed in (("accuracy", 0.803), ("precision", 0.719), ("recall", 1.0)):
        mine = done[f"attack_{name}", "atm", "fedpoisonmia"]
        best, last = ([getattr(d, f"{r}_{name}") for d, _ in decisions] for r in ("best", "last"))
        assert (mine.ours.value, mine.ours.last) == pytest.approx((np.mean(best), np.mean(last)))
        assert mine.paper == printed
    passive, under_attack = (
        done["test_acc", "median", attack].ours.value for attack in ("passive", "fedpoisonmia")
    )
    assert under_attack == pytest.approx(passive - 0.2, abs=0.05)
    assert "ours best_round precision" in render(match_blocks(found))
    with pytest.raises(UserError, match="no rows where"):
        match({**entry, "where": {**where, "table": [*tables, "Table 99"]}}, sections)


# ---------------------------------------------------------------- items


def test_every_item_of_the_papers_has_suites_or_a_reason():
    items = paper_items()
    assert len(items) == len({(i.paper, i.item) for i in items}) == 98
    for item in items:
        suites = {*item.reduced, *(f"papers/{suite}" for suite in item.full)}
        assert bool(suites) != bool(item.reason), item
        assert suites <= shipped_suites().keys(), item
    names = {}
    for item in items:
        names.setdefault(item.paper, set()).add(item.item.partition(" (")[0])
    for name, paper in shipped_papers().items():
        named = {i for claim in paper.claims for i in named_in(claim.place)}
        missing = named - names.get(name, set())
        if name != "ours":
            assert missing <= {"Figure 5"}, name  # all parts of FedMIA's
    for source, of_paper in names.items():
        assert {row["table"].partition(" (")[0] for row in published(source)} <= of_paper
    places = "section 5.2, Tables 1, 17 and 21 to 23; Figure 7b beside 1a; Table A.3"
    assert list(named_in(places)) == [
        *(f"Table {n}" for n in (1, 17, 21, 22, 23)),
        *("Figure 7b", "Figure 1a", "Table A.3"),
    ]


def test_a_suites_cost_is_its_steps_over_measured_ones():
    fedmia = SuiteSpec.model_validate(open_document("papers/fedmia_table1").data)
    # 5,000 images a client in batches of 100
    assert steps_of(fedmia.settings[1]) == 300 * 10 * 50
    # one batch of each of 8 clients a round; five attacks, one of them passive; seven rows
    runs, steps = 3 * 5 * 7, 800 * 8
    assert cost(["fedpoisonmia_table2"]).endswith(f" + {2 * runs * steps / 17 / 3600:.0f} CPU")
    assert cost(["fedmia_table1", "membershield_table12"]) == "18 GPU + 1.8 CPU"
    assert cost([]) == ""


# ---------------------------------------------------------------- sweeps


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("grad-noise[sigma=0.1]", "grad-noise"),
        ("grad-noise-0.5", "grad-noise"),
        ("fedmia-ii", "fedmia-ii"),
        ("a+b-3", "a+b"),
    ],
)
def test_a_family_is_what_a_sweep_shares(label, expected):
    assert family(label) == expected
