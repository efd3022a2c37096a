"""Figure 5: which loss intervals bandits draw, from a defense's report through records to a board."""

from __future__ import annotations

import numpy as np
import pytest
from boards import Folder, board, row_of, rows_of, sections_of
from running import invoke, records, suite

from fedbench.core.registry.components import Registry
from fedbench.leaderboard.analyses import Drawer
from fedbench.leaderboard.board import MarkdownBoard
from fedbench.leaderboard.figures import style
from fedbench.plugins.analyses.loss_intervals import LossIntervals, bandits_of

TITLE = "Loss intervals that are recycled, early and late"
EARLY, LATE = [0.3, 0.4, 0.3], [0.1, 0.1, 0.8]


def said(seed: int) -> dict:
    """What a bandit over three intervals reports."""
    return {
        "draws of each loss interval": [9, 9, 12], "early draws of each loss interval": [4, 3, 3],
        "late draws of each loss interval": [1, 1, 8], "early probabilities of the loss intervals": EARLY,
        "late probabilities of the loss intervals": [0.1 + 0.02 * seed, 0.1, 0.8 - 0.02 * seed],
        "early proportions of the loss intervals": [0.4, 0.3, 0.3], "late proportions of the loss intervals": [0.8, 0.15, 0.05],
        "recycled share early": 0.08, "recycled share late": 0.03, "bytes from the coordinator a member": 200,
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    made = Folder(tmp_path / "results", {"none": 1.0, "mixup": 0.5, "cofedmid": 0.0})
    for seed in (0, 1, 2):
        for attack in made.attacks:
            for defense in made.leak:
                made.add(defense, attack, seed, facts=said(seed - 1) if defense == "cofedmid" else {})
    return made


def figure_of(section):
    """The canvas that the analysis draws of a section."""
    (figure,) = [b for b in LossIntervals().draw(section, "loss-intervals") if hasattr(b, "draw")]
    return figure.draw(style)


def test_a_row_offers_what_its_defense_said_seed_by_seed(folder):
    (section,) = sections_of(folder)
    assert row_of(section, "mixup").facts == {}
    facts = row_of(section, "cofedmid").facts
    assert facts["recycled share early"] == [0.08] * 3 and list(facts) == list(said(0))
    assert [values[0] for values in facts["late probabilities of the loss intervals"]] == pytest.approx([0.08, 0.1, 0.12])


def test_the_table_has_early_and_late_shares_of_every_interval_as_means_over_seeds(folder):
    rows = {r["of each interval"]: r for r in rows_of(board(folder), f"**{TITLE}**")}
    assert {r["defense"] for r in rows.values()} == {"cofedmid"} and len(rows) == 6
    for when, probabilities, draws, recycled in (("early", EARLY, [0.4, 0.3, 0.3], "0.080"), ("late", LATE, LATE, "0.030")):
        assert [rows[f"probability, {when}"][str(j)] for j in (1, 2, 3)] == [f"{p:.2f}" for p in probabilities]
        assert [rows[f"share of the draws, {when}"][str(j)] for j in (1, 2, 3)] == [f"{d:.2f}" for d in draws]
        assert rows[f"probability, {when}"]["recycled"] == recycled
    assert [rows["share of the samples, late"][str(j)] for j in (1, 2, 3)] == ["0.80", "0.15", "0.05"]


def test_the_figure_shows_proportions_and_probabilities_beside_all_alike(folder):
    (section,) = sections_of(folder)
    proportions, probabilities = figure_of(section).axes
    for axis, early, late in ((proportions, [0.4, 0.3, 0.3], [0.8, 0.15, 0.05]), (probabilities, EARLY, LATE)):
        bars = [[bar.get_height() for bar in group] for group in axis.containers]
        assert bars == [pytest.approx(early), pytest.approx(late)]
        assert [line.get_ydata()[0] for line in axis.lines] == [pytest.approx(1 / 3)]


def test_several_bandits_in_one_row_stand_apart_and_odd_facts_draw_nothing(tmp_path):
    folder = Folder(tmp_path / "results", {"none": 1.0, "two": 0.1, "odd": 0.1}, attacks=("loss-series",))
    two = {f"CoFedMID {i}: {name}": value for i in (1, 3) for name, value in said(0).items()}
    odd = {"late probabilities of the loss intervals": ["much", "little"], "early draws of each loss interval": 3}
    for defense, facts in (("none", {}), ("two", two), ("odd", odd)):
        folder.add(defense, "loss-series", 0, facts=facts)
    (section,) = sections_of(folder)
    assert [b.label for row in section.rows for b in bandits_of(row)] == ["CoFedMID 1: two", "CoFedMID 3: two"]
    assert len(figure_of(section).axes) == 4


def test_where_no_row_has_a_bandit_nothing_is_drawn(tmp_path):
    folder = Folder(tmp_path / "results", {"none": 1.0, "mixup": 0.5}).fill(seeds=(0,))
    (section,) = sections_of(folder)
    assert list(LossIntervals().draw(section, "loss-intervals")) == [] and TITLE not in board(folder)


def test_every_suite_has_it_and_a_real_run_fills_it(tmp_path):
    assert "loss-intervals" in {c.name for c in Registry.discover().components("analysis") if c.load().by_default}
    params = {"recycle_from": 2, "val_min": 10, "min_assigned": 1, "n_intervals": 4, "exp3_step": 1.0}
    path = suite(tmp_path, defenses=["none", {"name": "cofedmid", "params": params}])
    invoke(path, "--results", tmp_path / "r")
    facts = records(tmp_path / "r")["cofedmid", "loss-series", 0]["facts"]
    early, late = (np.array(facts[f"{when} probabilities of the loss intervals"]) for when in ("early", "late"))
    assert early.tolist() == pytest.approx([0.25] * 4) and late.sum() == pytest.approx(1)
    assert sum(facts["draws of each loss interval"]) == 2 * 3 and sum(facts["late draws of each loss interval"]) == 2
    assert f"**{TITLE}**" in MarkdownBoard().write(tmp_path / "r", plots=False).read_text()


def test_only_a_built_in_analysis_leaves_facts_out_of_the_table_of_facts():
    for own, told in ((True, LossIntervals.tells), (False, ())):
        assert Drawer(label="loss-intervals", analysis=LossIntervals(), own=own).tells == told
