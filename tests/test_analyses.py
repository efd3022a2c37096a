"""What the built-in analyses find in a run and show on a board, against naive loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from boards import (
    GROUPS,
    N_IFL,
    N_MEMBERS,
    N_OFL,
    Clustered,
    Folder,
    board,
    fairness_of,
    finished_run,
    row_of,
    rows_of,
    sections_of,
    table_of,
)  # fmt: skip
from scipy import stats
from worlds import component

from fedbench.core import Judged, Judgement, Number, auc, exact_interval, tf01
from fedbench.core.metrics import combined_interval, t_interval
from fedbench.core.store.record import Found
from fedbench.leaderboard.statistics.intervals import accuracy_error
from fedbench.plugins.analyses import fedbench_analyses
from fedbench.plugins.analyses.fairness import fairness_report
from fedbench.plugins.analyses.violations import count_error, over_seeds

K, T, ROUNDS = 3, 12, np.array([4, 8, 12])
POOL = np.repeat([0, 1, 2, -1, -2], [60, 60, 60, 90, 30])  # owners; outsiders; held out
CANARY = np.arange(len(POOL)) % 4 == 0


def analysis(name, **params):
    """A built-in analysis by its name."""
    return component({c.name: c for c in fedbench_analyses()}[name])(**params)


def run_of(seed=0, leak=(0.5, 0.5, 2.0), **change):
    """A run of three clients, the first two members; members of client k are easier by ``leak[k]`` under its model at the end."""
    rng = np.random.default_rng(seed)
    ease = rng.normal(size=(3, K + 1, len(POOL)))
    for k, more in enumerate(leak):
        ease[2, k, k == POOL] += more
    p = 1 / (1 + np.exp(-ease))
    signals = {
        "confidence": p, "modified-entropy": -2 * (1 - p) * np.log(p), "upload-grad-sq": (1 - p) ** 2, "loss": -np.log(p),
        "margin": ease,
    }  # fmt: skip
    used = np.where(POOL >= 0, rng.integers(0, T + 1, len(POOL)), 0)
    in_round = np.column_stack([np.full(T, 40), np.linspace(36, 14, T).astype(int), np.full(T, 20)])
    fields = {
        "clients": K, "members": (0, 1), "rounds": ROUNDS, "rows": (0, 1, 2, -1), "signals": signals, "pool": POOL,
        "pool_canary": CANARY, "outsider_of": np.full(len(POOL), -1), "pool_y": np.arange(len(POOL)) // 3 % 4,
        "assignment": np.zeros((3, K), int), "used": used, "flagged": used // 2, "used_in_round": in_round,
        "flagged_in_round": in_round // 4, "sizes": np.array([60, 60, 60]),
        "rng": lambda purpose: np.random.default_rng([seed, *purpose.encode()]),
    }  # fmt: skip
    return finished_run(**fields | change)


# --- members and non-members ------------------------------------------------------------------------------------------


def test_loss_trajectories_are_means_over_members_inside_and_outside_samples():
    run = run_of()
    run.signals["loss"][1, 0] = np.nan  # a round without client 0
    found = analysis("loss-trajectories").analyse(run, None)
    gaps = {}
    for part, of_part in (("clean", ~CANARY), ("canary", CANARY)):
        for side in ("members", "inside", "outside"):
            wanted = np.empty((3, K))
            for r in range(3):
                for k in range(K):
                    of_side = {"members": k == POOL, "inside": (POOL >= 0) & (k != POOL), "outside": POOL == -1}[side]
                    wanted[r, k] = np.mean([run.signals["loss"][r, k, i] for i in np.flatnonzero(of_side & of_part)])
            np.testing.assert_allclose(found.arrays[f"{part} {side}"].reshape(3, K), wanted)
            gaps[part, side] = np.nanmean(wanted[:, :2], axis=1)  # of the coalition's clients that are there
        for side in ("inside", "outside"):
            gap = gaps[part, side] - gaps[part, "members"]
            assert found.numbers[f"{part} last gap {side}"].value == pytest.approx(gap[-1])
            assert found.numbers[f"{part} largest gap {side}"].value == pytest.approx(gap.max())
    malicious = analysis("loss-trajectories").analyse(run_of(malicious=(2,)), None)
    assert np.isnan(malicious.arrays["clean members"].reshape(3, K)[:, 2]).all()


def test_data_usage_is_of_the_coalitions_samples_and_rounds_and_by_thirds_of_their_loss():
    run = run_of()
    run.signals["loss"][2, 0] = np.nan  # absent in the last audited round: the one before counts
    found = analysis("data-usage").analyse(run, None)
    mine = np.isin(POOL, (0, 1))
    assert np.array_equal(found.arrays["used"], run.used[mine] / T)
    assert np.array_equal(found.arrays["protected"], (run.used[mine] // 2) / T)
    last = [run.signals["loss"][1 if POOL[i] == 0 else 2, POOL[i], i] for i in range(120)]
    order = np.argsort(last)
    federation = run.used_in_round.sum(axis=1) / 180
    wanted = {
        "used, mean": run.used[mine].mean() / T, "used, median": np.median(run.used[mine]) / T,
        "protected, 90 %": np.quantile(run.used[mine] // 2, 0.9) / T, "federation, first round": federation[0],
        "federation, middle round": federation[5], "federation, last round": federation[-1],
    } | {f"used, {t} loss": run.used[order[at : at + 40]].mean() / T for t, at in (("low", 0), ("middle", 40), ("high", 80))}
    assert {name: found.numbers[name].value for name in wanted} == pytest.approx(wanted)
    assert np.allclose(found.arrays["coalition"], run.used_in_round[:, :2].sum(axis=1) / 120)
    assert np.allclose(found.arrays["coalition protected"], run.flagged_in_round[:, :2].sum(axis=1) / 120)
    assert len(analysis("data-usage").analyse(run_of(members=()), None).arrays["used"]) == 180
    run.used_in_round[:, 0] = -1  # unknown
    assert analysis("data-usage").analyse(run, None).arrays["coalition"][0] == pytest.approx(36 / 60)


def judged_of(target, outside=2500, inside=0, leak=3.0, seed=0):
    """Members of class 0 leak, those of the others do not."""
    rng, kind = np.random.default_rng([seed, target]), np.repeat([0, 1, 2, -1], [60, outside, inside, 10])
    y, zeros = np.arange(len(kind)) % 4, np.zeros(len(kind), int)
    scores = rng.normal(size=len(kind)) + leak * ((kind == 0) & (y == 0))
    return Judged(target=target, group=None, scores=scores, kind=kind, owner=zeros, model_of=zeros, y=y)


def judgement_of(targets=(0, 4), threshold=None, **change):
    return Judgement(attack="x", threshold=threshold, targets=tuple(judged_of(t, **change) for t in targets))


def test_tf01_by_class_counts_members_above_the_clients_threshold():
    judgement = judgement_of()
    found = analysis("tf01-by-class").analyse(run_of(), judgement).arrays
    assert list(zip(found["client"], found["class"], strict=True)) == [(t, c) for t in (0, 4) for c in range(4)]
    for i, (t, c) in enumerate(zip(found["client"], found["class"], strict=True)):
        judged = next(j for j in judgement.targets if j.target == t)
        threshold = np.sort(judged.scores[judged.kind == 1])[-2]  # of 2,500, one may exceed it: (1 + 1) / 2501 < 0.1 %
        mine = judged.scores[(judged.kind == 0) & (judged.y == c)]
        assert (found["members"][i], found["found"][i], found["non-members"][i]) == (15, (mine > threshold).sum(), 2500)
    one = judgement.targets[0]
    assert found["found"][:4].sum() / 60 == pytest.approx(tf01(one.scores[one.counted], one.member[one.counted]) / 100)
    assert found["found"][0] > 3 > found["found"][1:4].max()


@pytest.mark.parametrize(("params", "change", "missing"), [
    ({}, {"outside": 1500}, 499), ({"nonmembers": "all"}, {"outside": 1500, "inside": 1000}, None),
    ({"threshold": "class"}, {"outside": 2500}, 1999 - 625), ({"threshold": "class"}, {"outside": 8400}, None),
])  # fmt: skip
def test_tf01_by_class_says_how_many_non_members_are_missing(params, change, missing):
    found = analysis("tf01-by-class", **params).analyse(run_of(), judgement_of(**change))
    assert (found.numbers["missing"].value if missing else None) == missing
    assert np.isnan(found.arrays["found"]).all() == (missing is not None)


@pytest.mark.parametrize(("hits", "of"), [(0, 12), (3, 12), (12, 12), (40, 5000)])
def test_the_exact_interval_is_clopper_and_pearsons(hits, of):
    wanted = stats.binomtest(hits, of).proportion_ci(method="exact")
    assert exact_interval(hits, of) == pytest.approx((wanted.low, wanted.high), abs=1e-12)


# --- overfitting ------------------------------------------------------------------------------------------------------


def test_distributions_count_every_clients_members_under_its_own_model_in_the_last_round():
    run = run_of()
    run.signals["modified-entropy"][2, 0, :2] = 0.0, 1e9  # beyond the outer bins, so in them
    found = analysis("distributions").analyse(run, None)
    shares = []
    for who in ("members", "non-members"):
        mine = [run.signals["confidence"][2, k, (k if who == "members" else -1) == POOL] for k in range(K)]
        wanted = np.histogram(np.concatenate(mine), np.linspace(0, 1, 41))[0]
        assert np.array_equal(found.arrays[f"confidence {who}"], wanted)
        shares.append(wanted / wanted.sum())
    assert found.numbers["confidence distance"].value == pytest.approx(np.abs(shares[0] - shares[1]).sum() / 2)
    assert found.arrays["modified entropy members"].sum() == 180 and found.arrays["gradient norm non-members"].sum() == 270
    worst = analysis("distributions", which="worst").analyse(run_of(leak=(0, 0, 3)), None)
    assert (worst.numbers["client"].value, worst.numbers["round"].value) == (2, 12)
    assert analysis("distributions").analyse(run_of(malicious=(2,)), None).arrays["confidence members"].sum() == 120
    assert analysis("distributions").analyse(run_of(pool=np.maximum(POOL, 0)), None) is None


def test_the_generalisation_error_is_accuracy_inside_less_accuracy_outside_class_by_class():
    part = np.where(POOL == -1, np.arange(len(POOL)) % K, -1)
    run = run_of(leak=(0.5, 1, 2), outsider_of=part)
    found, wanted = analysis("generalisation-error", least=3).analyse(run, None), []
    for k in range(K):
        right = run.signals["margin"][2, k] > 0
        for c in range(4):
            sides = [[i for i in range(len(POOL)) if run.pool_y[i] == c and owner[i] == k] for owner in (POOL, part)]
            wanted.append((k, c, right[sides[0]].mean() - right[sides[1]].mean()))
    assert list(zip(found.arrays["client"], found.arrays["class"], strict=True)) == [(k, c) for k, c, _ in wanted]
    assert np.allclose(found.arrays["error"], [abs(d) for *_, d in wanted])
    assert found.numbers["gap"].value == pytest.approx(np.mean([d for *_, d in wanted]))
    assert found.numbers["mean"].value == pytest.approx(found.arrays["error"].mean())
    assert analysis("generalisation-error", least=40).analyse(run, None) is None


def test_client_models_are_looked_at_on_the_clients_own_samples():
    run = run_of()
    found = analysis("client-models").analyse(run, None)
    names = ("train loss", "test loss", "train accuracy", "test accuracy", "AUC", "advantage")
    for k in range(K):
        for model, row in (("local", k), ("global", 3)):
            loss, right = run.signals["loss"][2, row], run.signals["margin"][2, row] > 0
            inside, outside = k == POOL, POOL == -1
            told = auc(-np.r_[loss[inside], loss[outside]], np.r_[np.ones(60, bool), np.zeros(90, bool)])
            wanted = [loss[inside].mean(), loss[outside].mean(), right[inside].mean(), right[outside].mean(), told]
            wanted.append(stats.ks_2samp(loss[inside], loss[outside]).statistic)
            assert [found.arrays[f"{model} {name}"][k] for name in names] == pytest.approx(wanted)
    assert analysis("client-models", round=11).analyse(run, None).numbers["round"].value == 8
    assert analysis("client-models", round=3).analyse(run, None) is None


# --- groups of clients ------------------------------------------------------------------------------------------------


def test_group_fairness_finds_the_accuracy_of_each_group_and_the_gaps():
    rng = np.random.default_rng(0)
    y, group = rng.integers(0, 3, 60), np.arange(60) % 3 % 2
    predicted = np.where(rng.random(60) < 0.7, y, (y + 1) % 3)
    run = finished_run(
        test_y=y, predicted=predicted, test_group=group, group_names=("a", "b"), group_of=np.array([0, 1, 0, 0]),
        rng=lambda purpose: np.random.default_rng(5),
    )  # fmt: skip
    found = analysis("group-fairness").analyse(run, None).numbers
    for g, name in enumerate(("a", "b")):
        right = [p == t for p, t, mine in zip(predicted, y, group, strict=True) if mine == g]
        assert found[f"accuracy:{name}"].value == pytest.approx(np.mean(right)) and found[f"n_test:{name}"].value == len(right)
    assert (found["clients:a"].value, found["clients:b"].value) == (3, 1)
    fair = vars(fairness_report(predicted, y, group, np.random.default_rng(5)))
    gaps = {name: (n.value, n.error) for name, n in found.items() if name in fair}
    assert len(gaps) == 3 and gaps == {name: (fair[name], fair[f"{name}_se"]) for name in gaps}
    assert analysis("group-fairness").analyse(finished_run(), None) is None


def said(rng, n=40, models=2):
    kind = rng.integers(-1, 3, n)
    return Judged(target=-10, group=0, scores=rng.normal(size=n), kind=kind, owner=np.where(kind == 0, rng.integers(0, 4, n), -1),
                  model_of=rng.integers(0, models, n))  # fmt: skip


def test_violations_against_a_naive_count():
    rng = np.random.default_rng(1)
    targets, assignment, bounds = (said(rng), said(rng)), np.array([0, 1, 2, 1]), np.array([0.3, 0.4, 0.0, 0.3])
    run = finished_run(assignment=np.array([[0, 0, 0, 0], assignment]), thresholds=bounds, malicious=(3,))
    found = analysis("violations").analyse(run, Judgement(attack="x", threshold=0.1, targets=targets))
    rows = [(s > 0.1, k == 0, m) for t in targets for s, k, m in zip(t.scores, t.kind, t.model_of, strict=True) if k >= 0]
    accuracy = []
    for j in (0, 1):
        inside, outside = ([d for d, member, m in rows if m == j and member == which] for which in (True, False))
        accuracy.append((np.mean(inside) + np.mean(np.logical_not(outside))) / 2)
    np.testing.assert_allclose(found.arrays["accuracy_of_model"], [*accuracy, np.nan])  # model 2 has no known accuracy
    count = sum(accuracy[assignment[k]] > bounds[k] for k in (0, 1))  # nor has its client; client 3 is malicious
    assert found.numbers["violated"] == Number(count, count_error(count, 3), "clients") and found.numbers["clients"].value == 3
    exact = replace(targets[0], scores=np.array([1.0, 1, -1, 1]), kind=np.array([0, 0, 1, 1]), model_of=np.zeros(4, int))
    bounded = finished_run(assignment=np.zeros((1, 4), int), thresholds=np.array([0.75, 0.74, 0.76, 0.5]))  # accuracy .75
    judgement = Judgement(attack="x", threshold=0.0, targets=(exact,))
    assert analysis("violations").analyse(bounded, judgement).numbers["violated"].value == 2  # strictly above the bound
    assert analysis("violations").analyse(run, Judgement(attack="x", threshold=None, targets=targets)) is None


def test_no_violation_in_any_seed_is_not_none_for_certain():
    never = over_seeds([(0, 200)] * 5)
    assert over_seeds([]) is None and never.mean == 0 and 0.5 < never.half_width < 2
    assert over_seeds([(60, 200)]).half_width == pytest.approx(1.96 * np.sqrt(200 * 0.3 * 0.7), rel=0.02)  # binomial


def test_migration_finds_the_exposure_of_each_client_in_the_groups():
    target, assignment = said(np.random.default_rng(2), 200), np.array([[1, 0, 1, 1]])
    judgement = Judgement(attack="x", threshold=None, targets=(target,))
    found = analysis("migration").analyse(finished_run(assignment=assignment), judgement)
    for client in range(4):
        own = target.scores[(target.kind == 0) & (target.owner == client)]
        wins = [float(a > b) for a in own for b in target.scores[target.kind > 0]]
        assert found.arrays["exposure"][client] == pytest.approx(np.mean(wins))
    assert found.arrays["assignment"].tolist() == [1, 0, 1, 1]
    assert analysis("migration").analyse(finished_run(), judgement) is None


# --- on a board -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clustered(tmp_path_factory):
    return Clustered(tmp_path_factory.mktemp("clustered") / "results").fill(seeds=range(5))


def shown(interval, digits, scale=1):
    return f"{interval.mean * scale:.{digits}f} ± {interval.half_width * scale:.{digits}f}"


def test_groups_stand_side_by_side_with_intervals_over_seeds(clustered):
    text = board(clustered)
    rows = {r["defense"]: r for r in rows_of(text, "**Groups of clients**")}
    assert set(rows) == {"none (undefended)", "ifca", "local-only"}
    every = [fairness_of("ifca", seed) for seed in range(5)]
    for name in GROUPS:
        values = [numbers[f"accuracy:{name}"].value for numbers in every]
        expected = combined_interval(values, [np.sqrt(v * (1 - v) / (100 * GROUPS[name])) for v in values])
        assert rows["ifca"][f"accuracy {name}"] == shown(expected, 1, 100)
    # models have no name over seeds, so that clusters are sorted; moves are means of (0+1+2+3+4)
    assert rows["ifca"]["clients of each model"] == "3 / 1" and rows["ifca"]["moves"] == "2.0"
    attacked = {r["defense"]: r for r in rows_of(text, "**MIA accuracy by group**")}["ifca"]
    leaked = {r["defense"]: r for r in rows_of(text, "**AUC by group of clients**")}["ifca"]
    (section,) = sections_of(clustered)
    entries = row_of(section, "ifca").entries
    said = [t.decision for r in entries["shadow"].records.values() for t in r.record.targets if t.target == -11]
    ses = [accuracy_error(d.last_accuracy, d.last_recall, N_MEMBERS, N_OFL + N_IFL) for d in said]
    assert attacked["shadow: minority"] == shown(combined_interval([d.last_accuracy for d in said], ses), 3)
    spread = t_interval([10.0 * seed for seed in range(5)]).half_width
    assert attacked["shadow: violations"] == f"20.0 ± {spread:.1f} of 200"
    mine = [s for (_, target), s in entries["rmia"].units("ofl").items() if target == -11]
    expected = combined_interval([s.value("auc") for s in mine], [s.error("auc") for s in mine])
    assert leaked["rmia: minority"] == shown(expected, 3)


LABELS = ["loss-trajectories", "data-usage", "tf01-by-class", "client-models"]


class Measured(Folder):
    """A folder whose records hold what the analyses of members and of models found."""

    def add(self, defense, attack, seed, outcome="ok", **change):
        run, judgement = run_of(seed, members=() if defense == "none" else (0, 1)), judgement_of(seed=seed)
        every = {label: analysis(label).analyse(run, judgement) for label in LABELS}
        found = {n: Found(numbers=dict(f.numbers), arrays=dict(f.units)) for n, f in every.items()}
        arrays = {f"{n}:{name}": np.asarray(a, float) for n, f in every.items() for name, a in f.arrays.items()}
        return super().add(defense, attack, seed, outcome, arrays=arrays, **{"analyses": found, **change})


def test_tables_of_members_and_models_are_means_over_seeds(tmp_path):
    folder = Measured(tmp_path / "results", {"none": 1.0, "cofedmid": 0.1}, ("loss-series",)).fill(seeds=(0, 1))
    every = [{n: analysis(n).analyse(run_of(s), judgement_of(seed=s)) for n in LABELS} for s in (0, 1)]

    def line(title, *names):
        """The row of a table that begins with these names and numbers."""
        rows = table_of(folder, title, analyses=LABELS).rows
        return next(r for r in rows if [getattr(c, "mean", getattr(c, "text", c)) for c in r[: len(names)]] == list(names))

    gaps = [found["loss-trajectories"].numbers["clean last gap outside"].value for found in every]
    for defense in ("none", "cofedmid"):  # the undefended row is of the coalition's clients too
        assert line("Loss of members and non-members", defense, "clean")[8].mean == pytest.approx(np.mean(gaps))
    used = [found["data-usage"].numbers["used, mean"].value for found in every]
    assert line("Rounds in which a sample is used", "cofedmid")[1].mean == pytest.approx(np.mean(used))
    hits = int(sum(found["tf01-by-class"].arrays["found"][0] for found in every))
    cell = line("TF01 by client and class", "cofedmid", "loss-series", 0)[6]
    assert cell.mean == pytest.approx(hits / 30) and cell.ends == exact_interval(hits, 30)
    losses = [found["client-models"].arrays["local train loss"][0] for found in every]
    assert line("Local and global models", "cofedmid", 0)[2].mean == pytest.approx(np.mean(losses))


EARLY, LATE = [0.3, 0.4, 0.3], [0.1, 0.1, 0.8]


def test_loss_intervals_are_shown_early_and_late_as_means_over_seeds(tmp_path):
    """What a bandit over three intervals reports, seed by seed."""
    folder = Folder(tmp_path / "results", {"none": 1.0, "cofedmid": 0.0}, ("loss-series",))
    for seed in (0, 1, 2):
        facts = {
            "draws of each loss interval": [9, 9, 12], "early draws of each loss interval": [4, 3, 3],
            "late draws of each loss interval": [1, 1, 8], "early probabilities of the loss intervals": EARLY,
            "late probabilities of the loss intervals": [0.08 + 0.02 * seed, 0.1, 0.82 - 0.02 * seed],
            "early proportions of the loss intervals": [0.4, 0.3, 0.3], "recycled share early": 0.08,
            "late proportions of the loss intervals": [0.8, 0.15, 0.05], "recycled share late": 0.03,
        }  # fmt: skip
        folder.add("none", "loss-series", seed, facts={})
        folder.add("cofedmid", "loss-series", seed, facts=facts)
    rows = {r["of each interval"]: r for r in rows_of(board(folder), "**Loss intervals that are recycled, early and late**")}
    assert {r["defense"] for r in rows.values()} == {"cofedmid"} and len(rows) == 6
    for when, probabilities, draws, recycled in (("early", EARLY, [0.4, 0.3, 0.3], "0.080"), ("late", LATE, LATE, "0.030")):
        assert [rows[f"probability, {when}"][str(j)] for j in (1, 2, 3)] == [f"{p:.2f}" for p in probabilities]
        assert [rows[f"share of the draws, {when}"][str(j)] for j in (1, 2, 3)] == [f"{d:.2f}" for d in draws]
        assert rows[f"probability, {when}"]["recycled"] == recycled
    assert [rows["share of the samples, late"][str(j)] for j in (1, 2, 3)] == ["0.80", "0.15", "0.05"]
