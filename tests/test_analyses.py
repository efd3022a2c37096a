"""Analyses: what the built-in ones find in a run and draw, and what a board does with anybody's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from boards import (
    CLUSTERED,
    GROUPS,
    LEAK,
    N_IFL,
    N_MEMBERS,
    N_OFL,
    Clustered,
    Folder,
    Migrating,
    board,
    escape_stem,
    fairness_of,
    finished_run,
    row_of,
    rows_of,
    sections_of,
    table_of,
)
from fake_packages import install

from fedbench.core import ClientGroup, Judged, Judgement, Number
from fedbench.core.metrics import combined_interval, t_interval
from fedbench.core.population.target import EVERYBODY
from fedbench.core.store.reading import load_records
from fedbench.core.store.record import Found, RoundRow
from fedbench.leaderboard.analyses import drawers, drawn
from fedbench.leaderboard.figures import style
from fedbench.leaderboard.figures.easel import Easel
from fedbench.leaderboard.markdown.escape import inline
from fedbench.leaderboard.statistics.groups import groups_in
from fedbench.leaderboard.statistics.intervals import accuracy_error
from fedbench.leaderboard.tables.counts import whose
from fedbench.plugins.analyses.fairness import fairness_report
from fedbench.plugins.analyses.group_fairness import GAPS, GroupFairness
from fedbench.plugins.analyses.group_figures import group_figure
from fedbench.plugins.analyses.migration import Migration
from fedbench.plugins.analyses.sweep import StrengthSweep
from fedbench.plugins.analyses.violations import Violations, count_error, over_seeds


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return Folder(tmp_path_factory.mktemp("template") / "results", LEAK).fill(seeds=(0,))


# ---------------------------------------------------------------- groups of clients


@pytest.fixture(scope="module")
def clustered(tmp_path_factory):
    return Clustered(tmp_path_factory.mktemp("clustered") / "results").fill(seeds=range(5))


def shown(interval, digits, scale=1):
    return f"{interval.mean * scale:.{digits}f} ± {interval.half_width * scale:.{digits}f}"


def test_groups_stand_side_by_side_with_intervals_over_seeds(clustered):
    rows = {r["defense"]: r for r in rows_of(board(clustered), "**Groups of clients**")}
    assert set(rows) == {"none (undefended)", "ifca", "local-only"}
    for defense, label in (("none", "none (undefended)"), ("ifca", "ifca")):
        every = [fairness_of(defense, seed) for seed in range(5)]
        for name in GROUPS:
            values = [numbers[f"accuracy:{name}"].value for numbers in every]
            ses = [np.sqrt(v * (1 - v) / (100 * GROUPS[name])) for v in values]
            expected = combined_interval(values, ses)
            assert expected.between and rows[label][f"accuracy {name}"] == shown(expected, 1, 100)
        for kind, title in GAPS.items():
            expected = combined_interval([numbers[kind].value for numbers in every], [0.01] * 5)
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
    (section,) = sections_of(clustered)
    cell = row_of(section, "ifca").entries["shadow"]
    for target, name in ((-10, "majority"), (-11, "minority")):
        said = [t.decision for r in cell.records.values() for t in r.record.targets if t.target == target]
        ses = [accuracy_error(d.last_accuracy, d.last_recall, N_MEMBERS, N_OFL + N_IFL) for d in said]
        expected = combined_interval([d.last_accuracy for d in said], ses)
        assert len(said) == 5 and rows["ifca"][f"shadow: {name}"] == shown(expected, 3)
    assert rows["ifca"]["shadow: minority"] > rows["ifca"]["shadow: majority"]
    spread = t_interval([10.0 * seed for seed in range(5)]).half_width
    assert rows["ifca"]["shadow: violations"] == f"20.0 ± {spread:.1f} of 200"


def test_no_violation_in_any_seed_is_not_none_for_certain():
    never = over_seeds([(0, 200)] * 5)
    assert over_seeds([]) is None and never.mean == 0 and 0.5 < never.half_width < 2
    assert over_seeds([(60, 200)]).half_width == pytest.approx(1.96 * np.sqrt(200 * 0.3 * 0.7), rel=0.02)  # binomial


def test_auc_of_every_attack_is_shown_by_group(clustered):
    rows = {r["defense"]: r for r in rows_of(board(clustered), "**AUC by group of clients**")}
    assert list(rows["ifca"])[1:] == ["rmia: majority", "rmia: minority", "shadow: majority", "shadow: minority"]
    (section,) = sections_of(clustered)
    cell = row_of(section, "ifca").entries["rmia"]
    mine = [s for (_, target), s in cell.units("ofl").items() if target == -11]
    expected = combined_interval([s.value("auc") for s in mine], [s.error("auc") for s in mine])
    assert rows["ifca"]["rmia: minority"] == shown(expected, 3)


def test_clients_that_are_targets_count_for_the_group_of_their_block_of_ids(tmp_path):
    folder = Clustered(tmp_path / "r", attacks=("fedmia-ii",), targets=(0, 2, 3)).fill(seeds=(0, 1))
    (section,) = sections_of(folder)
    cell, groups = section.rows[0].entries["fedmia-ii"], section.groups
    assert groups == tuple(ClientGroup(name, clients) for name, clients in GROUPS.items())
    assert [cell.of_group(groups, g).targets for g in (0, 1)] == [{0: (0, 2), 1: (0, 2)}, {0: (3,), 1: (3,)}]
    text = board(folder)
    assert "Targets: clients 0, 2, 3." in text and "MIA accuracy by group" not in text
    assert list(rows_of(text, "**AUC by group of clients**")[0]) == ["defense", "fedmia-ii: majority", "fedmia-ii: minority"]


def test_groups_are_called_by_their_names(clustered):
    text = board(clustered)
    assert "Targets: group majority, group minority." in text and "-10" not in text and "-11" not in text
    assert "- groups of clients: majority: rotation 0.0 to 25.0; minority: rotation 0.0 to 25.0" in text
    assert "- range of the MIA accuracy that clients tolerate: \\[0.5, 0.8\\]" in text
    assert inline(whose((-11, -10), ["a", "b|c"])) == "group a, group b\\|c" and inline(whose((-12,), ["a", "b"])) == "group 2"
    assert inline(whose((EVERYBODY.code,), [])) == "all honest clients together"
    assert inline(whose(range(30), [])).endswith("19, … (30)")


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


@pytest.mark.slow
def test_the_figure_of_groups_shows_every_group_and_the_rounds(clustered, template):
    (section,) = sections_of(clustered)
    bars, accuracy, moved = group_figure(section).draw(style).axes
    drawn = {c.get_label(): [0.5 + p.get_height() for p in c] for c in bars.containers if hasattr(c, "patches")}
    assert set(drawn) == set(GROUPS)
    for g, name in enumerate(GROUPS):
        expected = [r.entries["shadow"].of_group(section.groups, g).attack_accuracy().mean for r in section.rows]
        np.testing.assert_allclose(drawn[name], expected)
    assert {line.get_label(): list(line.get_ydata()) for line in moved.lines} == {"ifca": [0, 0, 2]}
    assert {line.get_label() for line in accuracy.lines if not line.get_label().startswith("_")} == set(CLUSTERED)
    assert list(accuracy.lines[0].get_ydata()) == pytest.approx([60, 70, 80]) and accuracy.lines[0].get_linestyle() == "-"
    second = accuracy.lines[len(CLUSTERED)]  # the other group, dashed
    assert list(second.get_ydata()) == pytest.approx([40, 40, 40]) and second.get_linestyle() == "--"
    assert "groups-" not in board(template, plots=True)
    linked = board(clustered, plots=True)
    assert "![Groups of clients: iid, coalition uniform, external view](groups-" in linked


# ---------------------------------------------------------------- migration


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
            folder.add(defense, "shadow", seed)
    (row,) = rows_of(board(folder), "**Does migration lower the risk")
    assert (row["defense"], row["attack"], row["moved clients"], row["others"]) == ("ifca-mir", "shadow", "2", "6")
    before = np.mean([naive_exposure(folder, "ifca", "shadow", s, 3) for s in (0, 1)])
    after = np.mean([naive_exposure(folder, "ifca-mir", "shadow", s, 3) for s in (0, 1)])
    (cells,) = table_of(folder, "Does migration lower the risk, or move it?").rows
    moved, exposed, then, change = (c.mean for c in cells[2:6])
    assert moved == 2 and exposed == pytest.approx(before, abs=0.05) and then == pytest.approx(after, abs=0.05)
    assert then < exposed - 0.1 and change == pytest.approx(then - exposed)  # client 3 is exposed less


def test_a_board_without_ifca_says_nothing_of_migration(clustered):
    assert "Does migration" not in board(clustered)


# ---------------------------------------------------------------- what they find in a run


def test_group_fairness_finds_the_accuracy_of_each_group_and_the_gaps():
    rng = np.random.default_rng(0)
    y, group = rng.integers(0, 3, 60), np.arange(60) % 3 % 2
    predicted = np.where(rng.random(60) < 0.7, y, (y + 1) % 3)
    purposes = []

    def draws(purpose):
        purposes.append(purpose)
        return np.random.default_rng(5)

    run = finished_run(
        test_y=y, predicted=predicted, test_group=group, group_names=("a", "b"), group_of=np.array([0, 1, 0, 0]), rng=draws
    )
    found = GroupFairness().analyse(run, None).numbers
    for g, name in enumerate(("a", "b")):
        right = [p == t for p, t, mine in zip(predicted, y, group, strict=True) if mine == g]
        assert found[f"accuracy:{name}"].value == pytest.approx(np.mean(right)) and found[f"n_test:{name}"].value == len(right)
    assert (found["clients:a"].value, found["clients:b"].value) == (3, 1) and purposes == ["fairness"]
    fair = fairness_report(predicted, y, group, np.random.default_rng(5))
    assert all((found[k].value, found[k].error) == (getattr(fair, k), getattr(fair, f"{k}_se")) for k in GAPS)
    assert GroupFairness().analyse(finished_run(), None) is None


def said(rng, n=40, models=2):
    kind = rng.integers(-1, 3, n)
    return Judged(target=-10, group=0, scores=rng.normal(size=n), kind=kind, owner=np.where(kind == 0, rng.integers(0, 4, n), -1),
                  model_of=rng.integers(0, models, n))  # fmt: skip


def test_violations_against_a_naive_count():
    rng = np.random.default_rng(1)
    targets, assignment, bounds = (said(rng), said(rng)), np.array([0, 1, 2, 1]), np.array([0.3, 0.4, 0.0, 0.3])
    run = finished_run(assignment=np.array([[0, 0, 0, 0], assignment]), thresholds=bounds, malicious=(3,))
    found = Violations().analyse(run, Judgement(attack="x", threshold=0.1, targets=targets))
    rows = [(s > 0.1, k == 0, m) for t in targets for s, k, m in zip(t.scores, t.kind, t.model_of, strict=True) if k >= 0]
    accuracy = []
    for j in (0, 1):
        inside, outside = ([d for d, member, m in rows if m == j and member is np.bool_(which)] for which in (True, False))
        accuracy.append((np.mean(inside) + np.mean(np.logical_not(outside))) / 2)
    np.testing.assert_allclose(found.arrays["accuracy_of_model"], [*accuracy, np.nan])  # nobody is looked at through model 2
    count = sum(accuracy[assignment[k]] > bounds[k] for k in (0, 1))  # client 2 has no known accuracy, client 3 is malicious
    assert found.numbers["violated"] == Number(count, count_error(count, 3), "clients") and found.numbers["clients"].value == 3
    for less in ({"thresholds": None}, {"assignment": np.zeros((0, 4), int)}):
        fields = {"assignment": assignment[None], "thresholds": bounds, **less}
        assert Violations().analyse(finished_run(**fields), Judgement(attack="x", threshold=0.1, targets=targets)) is None
    assert Violations().analyse(run, Judgement(attack="x", threshold=None, targets=targets)) is None
    assert Violations().analyse(run, None) is None


def test_violations_are_strict():
    both = Judged(target=0, group=None, scores=np.array([1.0, 1, -1, 1]), kind=np.array([0, 0, 1, 1]), owner=np.zeros(4, int),
                  model_of=np.zeros(4, int))  # fmt: skip
    judgement = Judgement(attack="x", threshold=0.0, targets=(both,))  # accuracy .75
    run = finished_run(assignment=np.zeros((1, 4), int), thresholds=np.array([0.75, 0.74, 0.76, 0.5]))
    assert Violations().analyse(run, judgement).numbers["violated"].value == 2


def test_migration_finds_the_exposure_of_each_client_in_the_groups():
    rng = np.random.default_rng(2)
    target, assignment = said(rng, 200), np.array([[1, 0, 1, 1]])
    found = Migration().analyse(finished_run(assignment=assignment), Judgement(attack="x", threshold=None, targets=(target,)))
    for client in range(4):
        own = target.scores[(target.kind == 0) & (target.owner == client)]
        wins = [float(a > b) for a in own for b in target.scores[target.kind > 0]]
        assert found.arrays["exposure"][client] == pytest.approx(np.mean(wins))
    assert found.arrays["assignment"].tolist() == [1, 0, 1, 1] and found.arrays["assignment"].dtype == np.float64
    alone = Judged(**{**vars(target), "target": 2, "group": None})
    for models, judged in ((assignment, alone), (np.zeros((0, 4), int), target)):
        judgement = Judgement(attack="x", threshold=None, targets=(judged,))
        assert Migration().analyse(finished_run(assignment=models), judgement) is None


def test_a_sweep_asks_nothing_of_a_run():
    assert StrengthSweep().analyse(finished_run(), None) is None


def test_violations_have_a_table_of_their_own_where_the_setting_has_no_groups(tmp_path):
    class Bounded(Clustered):
        def analyses(self, defense, attack, seed):
            return {k: v for k, v in super().analyses(defense, attack, seed).items() if k == "violations"}

    folder = Bounded(tmp_path / "r").fill(seeds=(0, 1))
    rows = {r[0]: r[1] for r in table_of(folder, "Violations").rows}
    assert rows["ifca"].mean == 5 and inline(rows["ifca"].suffix) == " of 200"
    assert "by group of clients" not in board(folder)


# ---------------------------------------------------------------- anybody's


SOURCE = """
    from fedbench.core import Analysis, Column, Component, Figure, Note, Numbers, Table, Value, hookimpl

    class Plain(Analysis):
        pass

    class Fails(Analysis):
        def draw(self, section, label):
            yield Note("first")
            raise ValueError("no <b>luck</b>")

    class Garbles(Analysis):
        def draw(self, section, label):
            return ["text"]

    class Quits(Analysis):
        def draw(self, section, label):
            raise SystemExit(4)

    class Miscounts(Analysis):
        def draw(self, section, label):
            column = Column(name="n")
            yield Table(title="t", columns=(column,), rows=((Value(mean="abc"),),))

    class Mumbles(Analysis):
        def draw(self, section, label):
            yield Note((5,))

    class Repaints(Analysis):
        def draw(self, section, label):
            yield Figure("roc", "a picture of mine", lambda style: style.new_figure(2, 2))

    class Own(Analysis):
        place = "costs"
        def draw(self, section, label):
            yield Note("own words of " + label)
            yield Numbers(label)

    @hookimpl
    def fedbench_analyses():
        for name in ("Plain", "Fails", "Garbles", "Own", "Quits", "Miscounts", "Mumbles", "Repaints"):
            yield Component(name.lower(), f"my_analyses:{name}", "x")
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(install(tmp_path / "site", "my_analyses", SOURCE)))


@pytest.fixture
def measured(tmp_path):
    """A folder whose records hold what an analysis labelled ``mine`` found, by attack the same, and ``by-attack``, not."""

    class Measured(Folder):
        def add(self, defense, attack, seed, outcome="ok", **change):
            mine = {"epsilon|": Number(2.0 + seed, 0.5, "per client"), "none": Number(None)}
            own = {"mine": Found(numbers=mine), "by-attack": Found(numbers={"n": Number(float(len(attack)))})}
            return super().add(defense, attack, seed, outcome, **{"analyses": own if outcome == "ok" else {}, **change})

    return Measured(tmp_path / "r", {"none": 1.0, "mixup": 0.5}).fill(seeds=range(5))


def found_of(text, label):
    return rows_of(text, f"**Findings of the analysis** {label}, means over seeds")


def test_what_an_analysis_of_somebody_else_found_is_shown_by_the_generic_table(measured):
    text = board(measured)
    (first, second) = found_of(text, "mine")
    half = t_interval([2.0, 3, 4, 5, 6]).half_width
    assert first == {"defense": "mixup", r"epsilon\| (per client)": f"4.000 ± {half:.3f}", "none": "n/a"}
    assert second["defense"] == "none (undefended)"
    assert [(r["defense"], r["attack"], r["n"]) for r in found_of(text, "by-attack")][:2] == [
        ("mixup", "fedmia-ii", "9.0"), ("mixup", "loss-series", "11.0"),
    ]  # fmt: skip
    assert "The analysis mine could not be drawn, so its bare numbers are shown: unknown analysis 'mine'" in text


def test_an_installed_analysis_draws_the_generic_table_unless_it_has_a_drawing_of_its_own(measured, site):
    text = board(measured, analyses=[{"name": "plain", "label": "mine"}, {"name": "own", "label": "by-attack", "params": {}}])
    assert found_of(text, "mine") and found_of(text, "by-attack") and "own words of by-attack" in text
    assert "could not be drawn" not in text


@pytest.mark.parametrize(("name", "why"), [
    ("fails", "ValueError: no &lt;b&gt;luck"), ("garbles", "TypeError: it drew a str"), ("quits", "it called sys.exit(4)"),
    ("miscounts", "TypeError: its table holds a Value of str"), ("mumbles", "TypeError: it wrote a int"),
])  # fmt: skip
def test_an_analysis_that_fails_costs_its_own_drawing_and_the_board_says_so(measured, site, name, why):
    text = board(measured, analyses=[{"name": name, "label": "mine"}])
    assert f"The analysis mine could not be drawn, so its bare numbers are shown: {why}" in text.replace("\\_", "_")
    assert found_of(text, "mine") and "first" not in text.splitlines()


def test_a_figure_of_somebody_else_has_a_file_of_its_own(measured, site):
    section = sections_of(measured)[0]
    (drawer,) = drawers([{"name": "repaints", "label": "mine"}], [section])
    (image,) = drawn(drawer, section, Easel())
    assert all(name.startswith("mine-roc-") for name in image.files)


def test_groups_are_the_settings_whatever_another_analysis_counts(clustered):
    loaded = load_records(clustered.root)[0]
    other = {"clash": Found(numbers={"clients:sampled": Number(3.0)}), **loaded.record.analyses}
    changed = replace(loaded, record=loaded.record.model_copy(update={"analyses": other}))
    assert groups_in(changed) == groups_in(loaded) != ()


def test_a_board_draws_the_analyses_that_the_results_name(clustered):
    assert "Groups of clients" in board(clustered) and "Groups of clients" in board(clustered, analyses=["group-fairness"])
    assert "Groups of clients" not in board(clustered, analyses=["sweep"])
