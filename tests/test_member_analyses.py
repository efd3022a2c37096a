"""Analyses of what protects members: loss trajectories, use of the data, TF01 by class; their records, tables and figures."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from boards import Folder, board, finished_run, rows_of, sections_of, table_of
from running import invoke, suite
from scipy import stats

from fedbench.core import Courses, Judged, Judgement, exact_interval, tf01
from fedbench.core.store.record import Found
from fedbench.leaderboard.figures import style
from fedbench.leaderboard.figures.files import image_of
from fedbench.plugins.analyses.data_usage import DataUsage
from fedbench.plugins.analyses.loss_trajectories import LossTrajectories
from fedbench.plugins.analyses.tf01_by_class import TF01ByClass

K, ROUNDS, T = 3, np.array([4, 8, 12]), 12
POOL = np.repeat([0, 1, 2, -1, -2], [40, 40, 40, 60, 20])
CANARY = np.arange(len(POOL)) % 4 == 0


def run_of(seed=0, members=(0, 1), gap=0.5, **change):
    """Three clients; members' losses are lower by ``gap``, canaries' higher by 2, in later rounds all are lower."""
    rng = np.random.default_rng(seed)
    loss = 3 + 0.1 * rng.normal(size=(3, K, len(POOL))) + 2 * CANARY - 0.5 * np.arange(3)[:, None, None]
    loss -= gap * (np.arange(K)[None, :, None] == POOL)
    used = np.where(POOL >= 0, rng.integers(0, T + 1, len(POOL)), 0)
    in_round = np.column_stack([np.full(T, 40), np.linspace(36, 14, T).astype(int), np.full(T, 20)])
    fields = {
        "clients": K, "members": members, "rounds": ROUNDS, "rows": (0, 1, 2), "signals": {"loss": loss}, "pool": POOL,
        "pool_canary": CANARY, "outsider_of": np.full(len(POOL), -1), "pool_y": np.arange(len(POOL)) % 4,
        "assignment": np.zeros((3, K), int), "used": used, "flagged": used // 2, "used_in_round": in_round,
        "flagged_in_round": in_round // 4, "sizes": np.array([40, 40, 40]),
    }  # fmt: skip
    return finished_run(**fields | change)


# -- loss trajectories ---------------------------------------------------------------------------------------------------------


def test_the_courses_are_the_means_of_the_naive_loop():
    run = run_of()
    found = LossTrajectories().analyse(run, None)
    for part, of_part in (("clean", ~CANARY), ("canary", CANARY)):
        for side in ("members", "inside", "outside"):
            course = found.arrays[f"{part} {side}"].reshape(3, K)
            for r in range(3):
                for k in range(K):
                    of_side = {"members": k == POOL, "inside": (POOL >= 0) & (k != POOL), "outside": POOL == -1}[side]
                    loss = [run.signals["loss"][r, k, i] for i in np.flatnonzero(of_side & of_part)]
                    assert course[r, k] == pytest.approx(sum(loss) / len(loss))
    assert found.arrays["rounds"].tolist() == [4, 8, 12] and found.arrays["defends"].tolist() == [1, 1, 0]
    course = {s: found.arrays[f"clean {s}"].reshape(3, K)[:, :2].mean(axis=1) for s in ("members", "inside", "outside")}
    for side in ("inside", "outside"):
        gap = course[side] - course["members"]
        assert found.numbers[f"clean last gap {side}"].value == pytest.approx(gap[-1])
        assert found.numbers[f"clean largest gap {side}"].value == pytest.approx(gap.max())
        assert 0.4 < gap[-1] < 0.6


def test_without_canaries_there_is_one_kind_of_sample():
    found = LossTrajectories().analyse(run_of(pool_canary=np.zeros(len(POOL), bool)), None)
    assert not [name for name in found.arrays if "canary" in name]


def test_a_round_without_a_client_is_unknown_and_malicious_clients_are_left_out():
    run = run_of()
    run.signals["loss"][2, 0] = np.nan
    found = LossTrajectories().analyse(run, None)
    course = found.arrays["clean members"].reshape(3, K)
    assert np.isnan(course[2, 0]) and np.isfinite(course[:2]).all()
    gap = found.arrays["clean outside"].reshape(3, K)[2, 1] - course[2, 1]
    assert found.numbers["clean last gap outside"].value == pytest.approx(gap)  # of who is there
    malicious = LossTrajectories().analyse(run_of(malicious=(2,)), None)
    assert np.isnan(malicious.arrays["clean members"].reshape(3, K)[:, 2]).all()
    assert LossTrajectories().analyse(run_of(pool=np.maximum(POOL, 0)), None) is None


# -- use of the data -----------------------------------------------------------------------------------------------------------


def test_use_is_told_of_the_coalitions_samples_and_rounds():
    run = run_of()
    found = DataUsage().analyse(run, None)
    mine = np.isin(POOL, (0, 1))
    assert np.array_equal(found.arrays["used"], run.used[mine] / T)
    assert np.array_equal(found.arrays["protected"], (run.used[mine] // 2) / T)
    assert found.numbers["used, mean"].value == pytest.approx(run.used[mine].mean() / T)
    assert found.numbers["used, median"].value == pytest.approx(np.median(run.used[mine]) / T)
    assert found.numbers["protected, 90 %"].value == pytest.approx(np.quantile(run.used[mine] // 2, 0.9) / T)
    assert np.allclose(found.arrays["coalition"], run.used_in_round[:, :2].sum(axis=1) / 80)
    assert np.allclose(found.arrays["coalition protected"], run.flagged_in_round[:, :2].sum(axis=1) / 80)
    assert np.allclose(found.arrays["federation"], run.used_in_round.sum(axis=1) / 120)
    shown = [found.numbers[f"federation, {which} round"].value for which in ("first", "middle", "last")]
    assert shown == pytest.approx([96 / 120, run.used_in_round[5].sum() / 120, 74 / 120])


def test_thirds_are_by_the_last_loss_on_the_owners_upload():
    run = run_of()
    run.signals["loss"][2, 0] = np.nan  # absent in the last audited round: the one before counts
    found = DataUsage().analyse(run, None)
    last = [run.signals["loss"][1 if POOL[i] == 0 else 2, POOL[i], i] for i in range(80)]
    order = sorted(range(80), key=lambda i: last[i])
    wanted = [np.mean([run.used[i] for i in part]) / T for part in (order[:27], order[27:54], order[54:])]
    assert [found.numbers[f"used, {t} loss"].value for t in ("low", "middle", "high")] == pytest.approx(wanted)


def test_who_is_unknown_does_not_count_and_without_a_coalition_everybody_does():
    unknown = run_of().used_in_round
    unknown[:, 0] = -1
    found = DataUsage().analyse(run_of(used_in_round=unknown), None)
    assert len(found.arrays["used"]) == 40 and found.arrays["coalition"][0] == pytest.approx(36 / 40)
    assert found.arrays["federation"][0] == pytest.approx(56 / 80)
    assert len(DataUsage().analyse(run_of(members=()), None).arrays["used"]) == 120
    assert DataUsage().analyse(run_of(used_in_round=np.full((T, K), -1)), None) is None
    assert DataUsage().analyse(run_of(used_in_round=np.zeros((0, 0), int)), None) is None


# -- TF01 by class ---------------------------------------------------------------------------------------------------------------


def judgement_of(outside=2500, inside=0, members=60, targets=(0, 4), classes=4, leak=3.0, seed=0):
    """Members of class 0 leak, those of the others do not."""
    judged = []
    for t in targets:
        rng = np.random.default_rng([seed, t])
        kind = np.repeat([0, 1, 2, -1], [members, outside, inside, 10])
        y = np.arange(len(kind)) % classes
        scores = rng.normal(size=len(kind)) + leak * ((kind == 0) & (y == 0))
        judged.append(Judged(
            target=t, group=None, scores=scores, kind=kind, owner=np.zeros(len(kind), int), model_of=np.zeros(len(kind), int), y=y
        ))  # fmt: skip
    return Judgement(attack="seqmia", threshold=None, targets=tuple(judged))


def test_the_found_are_those_above_the_clients_threshold_class_by_class():
    judgement = judgement_of()
    found = TF01ByClass().analyse(run_of(), judgement).arrays
    assert list(zip(found["client"], found["class"], strict=True)) == [(t, c) for t in (0, 4) for c in range(4)]
    for i, (t, c) in enumerate(zip(found["client"], found["class"], strict=True)):
        judged = next(j for j in judgement.targets if j.target == t)
        others = np.sort(judged.scores[judged.kind == 1])[::-1]
        threshold = others[1]  # of 2,500, one may exceed it: (1 + 1) / 2501 < 0.1 %
        mine = judged.scores[(judged.kind == 0) & (judged.y == c)]
        assert (found["members"][i], found["found"][i]) == (15, (mine > threshold).sum()) and found["non-members"][i] == 2500
    assert found["found"][0] > 3 > found["found"][1:4].max()
    one = judgement.targets[0]
    assert found["found"][:4].sum() / 60 == pytest.approx(tf01(one.scores[one.counted], one.member[one.counted]) / 100)


def test_too_few_non_members_are_said_to_be_missing():
    found = TF01ByClass().analyse(run_of(), judgement_of(outside=1500))
    assert np.isnan(found.arrays["found"]).all() and found.numbers["missing"].value == 499 and set(found.numbers) == {"missing"}
    inside = TF01ByClass(nonmembers="all").analyse(run_of(), judgement_of(outside=1500, inside=1000))
    assert np.isfinite(inside.arrays["found"]).all() and inside.arrays["non-members"][0] == 2500
    by_class = TF01ByClass(threshold="class").analyse(run_of(), judgement_of(outside=2500))
    assert np.isnan(by_class.arrays["found"]).all() and by_class.numbers["missing"].value == 1999 - 625
    enough = TF01ByClass(threshold="class").analyse(run_of(), judgement_of(outside=8400))
    assert np.isfinite(enough.arrays["found"]).all()


def test_nothing_is_said_without_scores_or_of_all_clients_together():
    assert TF01ByClass().analyse(run_of(), None) is None
    together = judgement_of()
    together = replace(together, targets=tuple(replace(t, target=-3) for t in together.targets))
    assert TF01ByClass().analyse(run_of(), together) is None


@pytest.mark.parametrize(("hits", "of"), [(0, 12), (3, 12), (12, 12), (1, 1), (40, 5000)])
def test_the_exact_interval_is_clopper_and_pearsons(hits, of):
    wanted = stats.binomtest(hits, of).proportion_ci(method="exact")
    assert exact_interval(hits, of) == pytest.approx((wanted.low, wanted.high), abs=1e-12)


def test_the_exact_interval_refuses_what_is_no_count():
    for hits, of in ((-1, 3), (4, 3), (0, 0)):
        with pytest.raises(ValueError, match="hits"):
            exact_interval(hits, of)


# -- on a board ------------------------------------------------------------------------------------------------------------------


class Members(Folder):
    """A folder whose records hold what the three analyses found; 1,500 outsiders under `none`, enough under the others."""

    def __init__(self, root, outside=2500):
        self.outside = outside
        super().__init__(root, {"none": 1.0, "cofedmid": 0.1})

    def add(self, defense, attack, seed, outcome="ok", **change):
        run = run_of(seed, members=() if defense == "none" else (0, 1), gap=1.0 if defense == "none" else 0.1)
        asked = (0, 2, 4) if defense == "none" else (0, 4)
        judgement = judgement_of(seed=seed, outside=self.outside, targets=asked, leak=3.0 if defense == "none" else 0.0)
        made = {"loss-trajectories": LossTrajectories(), "data-usage": DataUsage(), "tf01-by-class": TF01ByClass()}
        every = {label: analysis.analyse(run, judgement) for label, analysis in made.items()}
        found = {n: Found(numbers=dict(f.numbers), arrays=dict(f.units)) for n, f in every.items()}
        arrays = {f"{n}:{name}": np.asarray(a, float) for n, f in every.items() for name, a in f.arrays.items()}
        return super().add(defense, attack, seed, outcome, arrays=arrays, **{"analyses": found, **change})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return Members(tmp_path_factory.mktemp("members") / "results").fill(seeds=(0, 1))


def test_the_undefended_row_is_of_the_coalitions_clients(folder):
    (section, *_) = sections_of(folder)
    for found in Courses.of(section, "loss-trajectories"):
        runs = [run_of(s, gap=1.0 if found.label == "none" else 0.1) for s in (0, 1)]
        part = CANARY if found.part == "canary" else ~CANARY
        for i, run in enumerate(runs):
            wanted = np.mean([run.signals["loss"][:, k][:, (k == POOL) & part].mean(axis=1) for k in (0, 1)], axis=0)
            np.testing.assert_allclose(found.sides["members"][i], wanted)


def test_the_tables_say_the_gaps_the_use_and_the_classes(folder):
    text = board(folder, analyses=["loss-trajectories", "data-usage", "tf01-by-class"])
    gaps = {(r["defense"], r["samples"]): r for r in rows_of(text, "**Loss of members and non-members**")}
    assert set(gaps) == {(d, p) for d in ("none", "cofedmid") for p in ("clean", "canary")}
    assert float(gaps["none", "clean"]["last gap, outside"].split()[0]) == pytest.approx(1.0, abs=0.05)
    assert float(gaps["cofedmid", "canary"]["last gap, inside"].split()[0]) == pytest.approx(0.1, abs=0.05)
    table = table_of(folder, "Rounds in which a sample is used", analyses=["data-usage"])
    (row,) = (r for r in table.rows if r[0] == "cofedmid")
    wanted = np.mean([run_of(s).used[:80].mean() / T for s in (0, 1)])
    assert row[1].mean == pytest.approx(wanted)
    assert {r["defense"] for r in rows_of(text, "**Samples used in a round**")} == {"none", "cofedmid"}
    shown = table_of(folder, "TF01 by client and class", analyses=["tf01-by-class"])
    line = next(r for r in shown.rows if r[0] == "none" and r[2].mean == 0)
    found = [TF01ByClass().analyse(run_of(s), judgement_of(seed=s)).arrays["found"][0] for s in (0, 1)]
    assert line[6].mean == pytest.approx(sum(found) / 30) and line[6].ends == exact_interval(int(sum(found)), 30)
    assert shown.footnotes == () and {r[2].mean for r in shown.rows} == {0, 4}  # the undefended row is of the same clients


def test_a_table_says_how_many_non_members_are_missing(tmp_path):
    few = Members(tmp_path / "results", outside=1500).fill(seeds=(0, 1))
    text = board(few, analyses=["tf01-by-class"])
    assert "n/a, since a client has 1,500 non-members at the most; a threshold of its own needs 1,999." in text
    assert "**TF01 by client and class**" not in text  # no table of nothing


def test_of_many_classes_the_lowest_the_median_and_the_highest_are_shown(tmp_path):
    class Many(Members):
        def add(self, defense, attack, seed, outcome="ok", **change):
            judgement = judgement_of(seed=seed, classes=30)
            found = TF01ByClass().analyse(run_of(), judgement)
            arrays = {f"tf01-by-class:{n}": np.asarray(a, float) for n, a in found.arrays.items()}
            kept = {"tf01-by-class": Found(numbers=dict(found.numbers), arrays=dict(found.units))}
            return Folder.add(self, defense, attack, seed, outcome, arrays=arrays, analyses=kept, **change)

    table = table_of(Many(tmp_path / "results").fill(seeds=(0,)), "TF01 by client and class", analyses=["tf01-by-class"])
    assert [c.name.text for c in table.columns[6:]] == ["lowest class", "median class", "highest class"]
    low, middle, high = (v.mean for v in table.rows[0][6:])
    assert low <= middle <= high and high > 0


@pytest.mark.parametrize(("label", "panels"), [("loss-trajectories", 4), ("data-usage", 4)])
def test_figures_have_a_panel_a_defense_and_are_drawn_the_same_again(folder, label, panels):
    (section, *_) = sections_of(folder)
    analysis = {"loss-trajectories": LossTrajectories, "data-usage": DataUsage}[label]()
    *_, drawn = analysis.draw(section, label)
    figure = drawn.draw(style)
    axes = [a for a in figure.axes if a.get_visible()]
    assert len(axes) == panels and all(a.lines or a.patches for a in axes)
    one, other = (image_of([*analysis.draw(section, label)][-1], section) for _ in range(2))
    assert one.files == other.files and len(one.files) == 2


def test_a_board_may_show_some_defenses_alone(folder):
    wanted = [{"label": n, "name": n, "params": {"defenses": ["cofedmid"]}} for n in ("loss-trajectories", "tf01-by-class")]
    text = board(folder, analyses=wanted)
    assert {r["defense"] for r in rows_of(text, "**Loss of members and non-members**")} == {"cofedmid"}
    assert {r["defense"] for r in rows_of(text, "**TF01 by client and class**")} == {"cofedmid"}


# -- in the engine -------------------------------------------------------------------------------------------------------------


def test_a_suite_that_names_them_has_them_from_the_cache_too(tmp_path):
    names = ["loss-trajectories", "data-usage", "tf01-by-class"]
    path = suite(tmp_path, analyses=names, defenses=["none", "cofedmid"])
    results = tmp_path / "results"

    def found():
        every = {}
        for p in sorted((results / "records").glob("*.json")):
            r = json.loads(p.read_text())
            with np.load(p.with_suffix(".npz")) as arrays:
                every[r["defense"]["label"]] = r["analyses"], {n: arrays[n] for n in arrays.files if ":" in n}, r["complaints"]
        return every

    invoke(path, "--results", results)
    first = found()
    for defense, (analyses, _, complaints) in first.items():
        assert set(analyses) == set(names) and complaints == [], defense
    assert first["none"][0]["data-usage"]["numbers"]["used, mean"]["value"] == 1
    assert first["cofedmid"][0]["data-usage"]["numbers"]["used, mean"]["value"] < 1
    assert first["none"][0]["loss-trajectories"]["arrays"].keys() >= {"clean members", "canary members"}
    for p in (results / "records").iterdir():
        p.unlink()
    invoke(path, "--results", results)
    again = found()
    assert {d: a[0] for d, a in again.items()} == {d: a[0] for d, a in first.items()}
    for defense, (_, arrays, _) in first.items():
        for name, values in arrays.items():
            np.testing.assert_array_equal(values, again[defense][1][name])
