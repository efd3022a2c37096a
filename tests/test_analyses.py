"""What the built-in analyses find in a run and show on a board, against naive loops."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from boards import (
    GROUPS,
    N_IFL,
    N_MEMBERS,
    N_OFL,
    Clustered,
    board,
    fairness_of,
    finished_run,
    row_of,
    rows_of,
    sections_of,
)
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from fedbench.core import Findings, Judged, Judgement, Number, UserError
from fedbench.core.metrics import auc, combined_interval, exact_interval, t_interval, tf01
from fedbench.core.registry.components import Registry
from fedbench.leaderboard.statistics.intervals import accuracy_error
from fedbench.plugins.analyses.clients import count_error
from fedbench.plugins.analyses.common import interval_of
from fedbench.plugins.analyses.distributions import quantile
from fedbench.plugins.analyses.groups import clusters, fairness_report

K, T, ROUNDS = 3, 12, np.array([4, 8, 12])
POOL = np.repeat([0, 1, 2, -1, -2], [60, 60, 60, 90, 30])  # owners; outsiders; held out
CANARY = np.arange(len(POOL)) % 4 == 0


def analysis(name, **params):
    """A built-in analysis by its name."""
    return Registry.discover().get("analysis", name).load()(**params)


def run_of(leak=(0.5, 0.5, 2.0), **change):
    """A run of three clients, the first two members; members of client k are easier by ``leak[k]``
    under its model at the end.
    """
    rng = np.random.default_rng(0)
    ease = rng.normal(size=(3, K + 1, len(POOL)))
    for k, more in enumerate(leak):
        ease[2, k, k == POOL] += more
    p = 1 / (1 + np.exp(-ease))
    signals = {
        "confidence": p,
        "modified-entropy": -2 * (1 - p) * np.log(p),
        "upload-grad-sq": (1 - p) ** 2,
        "loss": -np.log(p),
        "margin": ease,
    }
    used = np.where(POOL >= 0, rng.integers(0, T + 1, len(POOL)), 0)
    in_round = np.column_stack([np.full(T, 40), np.linspace(36, 14, T).astype(int), np.full(T, 20)])
    fields = {
        "clients": K,
        "members": (0, 1),
        "rounds": ROUNDS,
        "rows": (0, 1, 2, -1),
        "signals": signals,
        "pool": POOL,
        "pool_canary": CANARY,
        "outsider_of": np.full(len(POOL), -1),
        "pool_y": np.arange(len(POOL)) // 3 % 4,
        "assignment": np.zeros((3, K), int),
        "used": used,
        "flagged": used // 2,
        "used_in_round": in_round,
        "flagged_in_round": in_round // 4,
        "sizes": np.array([60, 60, 60]),
        "rng": lambda purpose: np.random.default_rng([0, *purpose.encode()]),
    }
    return finished_run(**fields | change)


def analysed(name, run, judgement=None, **params):
    """What an analysis finds."""
    return analysis(name, **params).analyse(run, judgement)


def judged_by_x(*targets, threshold=None):
    """What an attack says of these targets."""
    return Judgement(attack="x", threshold=threshold, targets=targets)


# samples of each side, seen from client k
SIDES = {
    "members": lambda k: k == POOL,
    "inside": lambda k: (POOL >= 0) & (k != POOL),
    "outside": lambda k: POOL == -1,
}


# --- members and non-members ----------------------------------------------------------------------


def test_loss_trajectories_are_means_over_members_inside_and_outside_samples():
    run = run_of()
    run.signals["loss"][1, 0] = np.nan  # a round without client 0
    found = analysed("loss-trajectories", run)
    for part, of_part in (("clean", ~CANARY), ("canary", CANARY)):
        means = {
            side: np.array(
                [
                    [run.signals["loss"][r, k, of(k) & of_part].mean() for k in range(K)]
                    for r in range(3)
                ]
            )
            for side, of in SIDES.items()
        }
        for side, wanted in means.items():
            assert_allclose(found.arrays[f"{part} {side}"].reshape(3, K), wanted)
        for side in ("inside", "outside"):  # of the coalition's clients that are there
            gap = np.nanmean(means[side][:, :2] - means["members"][:, :2], axis=1)
            assert found.numbers[f"{part} last gap {side}"].value == pytest.approx(gap[-1])
            assert found.numbers[f"{part} largest gap {side}"].value == pytest.approx(gap.max())


def test_data_usage_is_of_the_coalitions_samples_and_rounds_and_by_thirds_of_their_loss():
    run = run_of()
    run.signals["loss"][2, 0] = np.nan  # absent in the last audited round: the one before counts
    found, used = analysed("data-usage", run), run.used[:120] / T
    last = [run.signals["loss"][1 if POOL[i] == 0 else 2, POOL[i], i] for i in range(120)]
    federation, order = run.used_in_round.sum(axis=1) / 180, np.argsort(last)
    wanted = {
        "used, mean": used.mean(),
        "used, median": np.median(used),
        "used, low loss": used[order[:40]].mean(),
        "used, middle loss": used[order[40:80]].mean(),
        "used, high loss": used[order[80:]].mean(),
        "protected, 90 %": np.quantile(run.used[:120] // 2, 0.9) / T,
        "federation, first round": federation[0],
        "federation, middle round": federation[5],
        "federation, last round": federation[-1],
    }
    assert {name: found.numbers[name].value for name in wanted} == pytest.approx(wanted)
    assert_allclose(found.arrays["coalition"], run.used_in_round[:, :2].sum(axis=1) / 120)
    assert_allclose(
        found.arrays["coalition protected"], run.flagged_in_round[:, :2].sum(axis=1) / 120
    )


def judged_of(target):
    """Members of class 0 leak, those of the others do not."""
    rng, kind = np.random.default_rng([0, target]), np.repeat([0, 1, -1], [60, 2500, 10])
    y, zeros = np.arange(len(kind)) % 4, np.zeros(len(kind), int)
    scores = rng.normal(size=len(kind)) + 3 * ((kind == 0) & (y == 0))
    return Judged(
        target=target, group=None, scores=scores, kind=kind, owner=zeros, model_of=zeros, y=y
    )


def test_tf01_by_class_counts_members_above_the_clients_threshold():
    judgement = judged_by_x(judged_of(0), judged_of(4))
    found = analysed("tf01-by-class", run_of(), judgement).arrays
    assert list(zip(found["client"], found["class"], strict=True)) == [
        (t, c) for t in (0, 4) for c in range(4)
    ]
    for i, (t, c) in enumerate(zip(found["client"], found["class"], strict=True)):
        judged = next(j for j in judgement.targets if j.target == t)
        # of 2,500, one may exceed it: (1 + 1) / 2501 < 0.1 %
        threshold = np.sort(judged.scores[judged.kind == 1])[-2]
        mine = judged.scores[(judged.kind == 0) & (judged.y == c)]
        assert (found["members"][i], found["found"][i], found["non-members"][i]) == (
            15,
            (mine > threshold).sum(),
            2500,
        )
    one = judgement.targets[0]
    assert found["found"][:4].sum() / 60 == pytest.approx(
        tf01(one.scores[one.counted], one.member[one.counted]) / 100
    )
    assert found["found"][0] > 3 > found["found"][1:4].max()


@pytest.mark.parametrize(("hits", "of"), [(0, 12), (40, 5000)])
def test_the_exact_interval_is_clopper_and_pearsons(hits, of):
    wanted = stats.binomtest(hits, of).proportion_ci(method="exact")
    assert exact_interval(hits, of) == pytest.approx((wanted.low, wanted.high), abs=1e-12)


# --- overfitting ----------------------------------------------------------------------------------


def test_distributions_count_every_clients_members_under_its_own_model_in_the_last_round():
    run = run_of()
    run.signals["modified-entropy"][2, 0, :2] = 0.0, 1e9  # beyond the outer bins, so in them
    found = analysed("distributions", run)
    shares = []
    for side, of in SIDES.items():
        mine = [run.signals["confidence"][2, k, of(k)] for k in range(K)]
        wanted = np.histogram(np.concatenate(mine), np.linspace(0, 1, 41))[0]
        assert np.array_equal(found.arrays[f"confidence {side}"], wanted)
        shares.append(wanted / wanted.sum())
    assert found.numbers["confidence distance"].value == pytest.approx(
        np.abs(shares[0] - shares[2]).sum() / 2
    )
    assert (
        found.arrays["modified entropy members"].sum() == 180
        and found.arrays["gradient norm outside"].sum() == 270
        and found.arrays["gradient norm inside"].sum() == 360
    )
    worst = analysed("distributions", run_of(leak=(0, 0, 3)), which="worst")
    assert (worst.numbers["client"].value, worst.numbers["round"].value) == (2, 12)


def test_scores_are_counted_in_deviations_of_the_targets_own_outsiders():
    rng = np.random.default_rng(3)
    targets, wanted = [], {side: np.zeros(40) for side in ("members", "outside", "inside")}
    for scale in (0.01, 100.0):  # both count alike
        kind, z = np.arange(90) % 4 - (np.arange(90) % 4 == 3) * 4, rng.normal(size=90)
        z[kind == 0] += 1
        outside = z[kind == 1]
        owner = np.select([kind == 0, kind == 2], [0, 1], -1)
        change = {"scores": 7 + scale * z, "kind": kind, "owner": owner, "model_of": owner}
        targets.append(Judged(target=0, group=None, **change))
        for code, side in enumerate(wanted):
            deviations = (z[kind == code] - outside.mean()) / outside.std()
            wanted[side] += np.histogram(deviations.clip(-5, 4.99), np.linspace(-5, 5, 41))[0]
    scored = analysis("distributions", attacks=["x"], numbers=[])
    judgement = judged_by_x(*targets)
    found = scored.analyse(run_of(signals={}), judgement)
    assert scored.needs == frozenset() and set(found.arrays) == {f"score {s}" for s in wanted}
    for side, counts in wanted.items():
        assert_array_equal(found.arrays[f"score {side}"], counts)
    uniform = rng.random(5000)
    edges = np.linspace(0, 1, 41)
    assert quantile(edges, np.histogram(uniform, edges)[0], 0.3) == pytest.approx(
        np.quantile(uniform, 0.3), abs=0.001
    )
    assert scored.analyse(run_of(), Judgement(attack="y", threshold=None, targets=())) is None
    with pytest.raises(ValueError, match="name one to show"):
        analysis("distributions", numbers=[])


def test_the_generalisation_error_is_accuracy_inside_less_accuracy_outside_class_by_class():
    part = np.where(POOL == -1, np.arange(len(POOL)) % K, -1)
    run = run_of(leak=(0.5, 1, 2), outsider_of=part)
    found, wanted = analysed("generalisation-error", run, least=3), {}
    for k, c in product(range(K), range(4)):
        right = run.signals["margin"][2, k] > 0
        sides = [right[(run.pool_y == c) & (owner == k)].mean() for owner in (POOL, part)]
        wanted[k, c] = sides[0] - sides[1]
    assert list(zip(found.arrays["client"], found.arrays["class"], strict=True)) == [*wanted]
    assert_allclose(found.arrays["error"], np.abs([*wanted.values()]))
    assert found.numbers["gap"].value == pytest.approx(np.mean([*wanted.values()]))
    assert analysed("generalisation-error", run, least=40) is None
    assert analysed("generalisation-error", run, attacks=["x"]) is None


def test_client_models_are_looked_at_on_the_clients_own_samples():
    run = run_of()
    found = analysed("client-models", run)
    names = ("train loss", "test loss", "train accuracy", "test accuracy", "AUC", "advantage")
    for k in range(K):
        for model, row in (("local", k), ("global", 3)):
            loss, right = run.signals["loss"][2, row], run.signals["margin"][2, row] > 0
            inside, outside = k == POOL, POOL == -1
            told = auc(
                -np.r_[loss[inside], loss[outside]], np.r_[np.ones(60, bool), np.zeros(90, bool)]
            )
            wanted = [
                loss[inside].mean(),
                loss[outside].mean(),
                right[inside].mean(),
                right[outside].mean(),
                told,
            ]
            wanted.append(stats.ks_2samp(loss[inside], loss[outside]).statistic)
            assert [found.arrays[f"{model} {name}"][k] for name in names] == pytest.approx(wanted)
    assert analysed("client-models", run, round=11).numbers["round"].value == 8


def test_source_accuracy_counts_samples_that_their_owners_upload_fits_best():
    run = run_of()
    run.signals["loss"][2, 1] = np.nan  # absent: neither guessed nor asked about
    loss = run.signals["loss"][2]
    right = [loss[k, i] < loss[2 - k, i] for i, k in enumerate(POOL) if k in (0, 2)]
    found = analysed("source-accuracy", run).numbers
    assert found["source accuracy"].value == pytest.approx(np.mean(right))
    assert found["guessing"].value == 0.5


# --- groups of clients ----------------------------------------------------------------------------


def test_group_fairness_finds_the_accuracy_of_each_group_and_the_gaps():
    rng = np.random.default_rng(0)
    y, group = rng.integers(0, 3, 60), np.arange(60) % 3 % 2
    predicted = np.where(rng.random(60) < 0.7, y, (y + 1) % 3)
    run = finished_run(
        test_y=y,
        predicted=predicted,
        test_group=group,
        group_names=("a", "b"),
        group_of=np.array([0, 1, 0, 0]),
        rng=lambda purpose: np.random.default_rng(5),
        assignment=np.array([[0, 0, 0, 0], [1, 0, 1, 0]]),
    )
    every = analysed("group-fairness", run)
    # of the last audited round, a's model first
    assert every.arrays["models"].tolist() == [2, 0, 1, 1]
    assert every.numbers["purity"].value == pytest.approx((2 / 3 + 1) / 2)
    found = every.numbers
    for g, name in enumerate(("a", "b")):
        right = (predicted == y)[group == g]
        seen = [found[f"{what}:{name}"].value for what in ("accuracy", "n_test", "clients")]
        assert seen == [right.mean(), len(right), (3, 1)[g]]
    fair = fairness_report(predicted, y, group, np.random.default_rng(5))
    gaps = {name: (n.value, n.error) for name, n in found.items() if name in fair}
    assert len(gaps) == 3 and gaps == fair


@pytest.mark.parametrize(
    ("assignment", "models", "purity"),
    [
        ([0] * 40, [[34, 6], [0, 0]], 0.5),  # one model for all
        # locked to the first choice
        ([0] * 19 + [1] * 15 + [0] * 3 + [1] * 3, [[19, 3], [15, 3]], (19 / 34 + 0.5) / 2),
        # more models than groups
        ([0] * 20 + [1] * 14 + [2] * 6, [[20, 0], [0, 6]], (20 / 34 + 1) / 2),
    ],
)
def test_clusters_by_group_and_their_purity(assignment, models, purity):
    by_group, found = clusters(np.repeat([0, 1], [34, 6]), np.array(assignment))
    assert found == pytest.approx(purity) and by_group.tolist() == models


def test_purity_that_is_asked_for_needs_groups():
    with pytest.raises(UserError, match="no groups of clients to compare them with"):
        analysis("group-fairness", purity="required").applies({"groups": None})
    assert analysis("group-fairness", purity="required").applies({"groups": [{"name": "a"}]})
    assert not analysis("group-fairness").applies({"groups": None})


def said(rng, n=40):
    kind = rng.integers(-1, 3, n)
    return Judged(
        target=-10,
        group=0,
        scores=rng.normal(size=n),
        kind=kind,
        owner=np.where(kind == 0, rng.integers(0, 4, n), -1),
        model_of=rng.integers(0, 2, n),
    )


def test_violations_against_a_naive_count():
    rng = np.random.default_rng(1)
    targets, assignment, bounds = (
        (said(rng), said(rng)),
        np.array([0, 1, 2, 1]),
        np.array([0.3, 0.4, 0.0, 0.3]),
    )
    run = finished_run(
        assignment=np.array([[0, 0, 0, 0], assignment]),
        thresholds=bounds,
        malicious=(3,),
        group_of=np.array([0, 1, 1, 1]),
        group_names=("a", "b"),
    )
    judgement = judged_by_x(*targets, threshold=0.1)
    found = analysed("violations", run, judgement)
    decided, kind, model = (
        np.concatenate([getattr(t, part) for t in targets])
        for part in ("scores", "kind", "model_of")
    )
    decided = decided > 0.1
    accuracy = [
        (decided[(model == j) & (kind == 0)].mean() + (~decided[(model == j) & (kind > 0)]).mean())
        / 2
        for j in (0, 1)
    ]
    # model 2 has no known accuracy
    assert_allclose(found.arrays["accuracy_of_model"], [*accuracy, np.nan])
    # nor has its client; client 3 is malicious
    count = sum(accuracy[assignment[k]] > bounds[k] for k in (0, 1))
    assert (
        found.numbers["violated"] == Number(count, count_error(count, 3), "clients")
        and found.numbers["clients"].value == 3
    )
    by_group = [found.numbers[f"violated:{name}"].value for name in "ab"]
    assert by_group == [int(accuracy[assignment[k]] > bounds[k]) for k in (0, 1)]
    equal = finished_run(
        assignment=np.zeros((1, 4), int), thresholds=np.full(4, accuracy[0]), malicious=()
    )
    # strictly above the bound
    assert analysed("violations", equal, judgement).numbers["violated"].value == 0


def test_no_violation_in_any_seed_is_not_none_for_certain():
    def violations(*counts):
        return interval_of(
            [Findings({"violated": Number(n, count_error(n, 200))}) for n in counts], "violated"
        )

    never = violations(0, 0, 0, 0, 0)
    assert violations() is None and never.mean == 0 and 0.5 < never.half_width < 2
    # binomial
    assert violations(60).half_width == pytest.approx(1.96 * np.sqrt(200 * 0.3 * 0.7), rel=0.02)


def test_migration_finds_the_exposure_of_each_client_in_the_groups():
    target, assignment = said(np.random.default_rng(2), 200), np.array([[1, 0, 1, 1]])
    judgement = judged_by_x(target)
    found = analysed("migration", finished_run(assignment=assignment), judgement)
    for client in range(4):
        own, others = (
            target.scores[(target.kind == 0) & (target.owner == client)],
            target.scores[target.kind > 0],
        )
        assert found.arrays["exposure"][client] == pytest.approx((own[:, None] > others).mean())
    assert found.arrays["assignment"].tolist() == [1, 0, 1, 1]


def test_changes_by_migration_vary_over_seeds_and_not_over_clients_of_one_training():
    """All 40 clients of a seed change alike: three seeds say three times how far, not 120 times."""
    after = {0: 0.6, 1: 0.7, 2: 0.8}

    def row(name, exposures, models):
        by_seed = {}
        for seed, exposure in exposures.items():
            arrays = {"exposure": np.full(40, exposure), "assignment": models}
            by_seed[seed] = Findings({}, arrays, {})
        entry = SimpleNamespace(findings=lambda label, seed: by_seed[seed])
        history = [SimpleNamespace(clusters=[20, 20])]
        return SimpleNamespace(name=name, label=name, entries={"a": entry}, histories=[history])

    same, other = np.zeros(40), np.repeat([0.0, 1.0], 20)
    rows = [row("ifca", dict.fromkeys(after, 0.5), same), row("mir", after, other)]
    section = SimpleNamespace(rows=rows, attacks=["a"], seeds=list(after))
    (table,) = analysis("migration").draw(section, "migration")
    (line,) = table.rows
    expected = t_interval([0.1, 0.2, 0.3])
    for moved, before, mean, change in (line[2:6], line[6:10]):
        assert (moved.mean, before.mean) == (60, 0.5) and mean.mean == pytest.approx(0.7)
        assert change.mean == pytest.approx(expected.mean)
        assert change.half_width == pytest.approx(expected.half_width)


# --- on a board -----------------------------------------------------------------------------------


def shown(interval, digits, scale=1):
    return f"{interval.mean * scale:.{digits}f} ± {interval.half_width * scale:.{digits}f}"


def test_groups_stand_side_by_side_with_intervals_over_seeds(tmp_path):
    clustered = Clustered(tmp_path / "results").fill(seeds=range(5))
    text = board(clustered)
    rows = {r["defense"]: r for r in rows_of(text, "**Groups of clients**")}
    assert set(rows) == {"none (undefended)", "ifca", "local-only"}
    every = [fairness_of("ifca", seed) for seed in range(5)]
    for name in GROUPS:
        values = [numbers[f"accuracy:{name}"].value for numbers in every]
        expected = combined_interval(
            values, [np.sqrt(v * (1 - v) / (100 * GROUPS[name])) for v in values]
        )
        assert rows["ifca"][f"accuracy {name}"] == shown(expected, 1, 100)
    # models have no name over seeds, so that they are matched with the groups; moves are means of
    # (0+1+2+3+4)
    assert (
        rows["ifca"]["clients of each model"] == "2 + 0.4 / 1 + 0.6"
        and rows["ifca"]["moves"] == "2.0"
    )
    assert (
        rows["ifca"]["purity"].startswith("1.000")
        and rows["local-only"]["clients of each model"] == "n/a"
    )
    attacked = {r["defense"]: r for r in rows_of(text, "**MIA accuracy by group**")}["ifca"]
    (section,) = sections_of(clustered)
    cell = row_of(section, "ifca").entries["shadow"]
    said = [t.decision for r in cell.records.values() for t in r.record.targets if t.target == -11]
    ses = [accuracy_error(d.last_accuracy, d.last_recall, N_MEMBERS, N_OFL + N_IFL) for d in said]
    assert attacked["shadow: minority"] == shown(
        combined_interval([d.last_accuracy for d in said], ses), 3
    )
    spread = t_interval([10.0 * seed for seed in range(5)]).half_width
    # beside accuracy, fairness and purity, what was traded for them
    assert rows["ifca"]["shadow: violations"] == attacked["shadow: violations"]
    assert attacked["shadow: violations"] == f"20.0 ± {spread:.1f} of 200 (15.0 + 5.0)"
