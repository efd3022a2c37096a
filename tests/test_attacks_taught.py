"""Attacks with a teacher against slow references: thresholds, classifiers of one round, nets on a
series, the ensemble.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri
from scipy.stats import rankdata
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from worlds import (
    COLLUDER,
    TARGET,
    attack,
    auc,
    colluder,
    shown,
    slow_net,
    taught,
    with_absence,
    with_signals,
    world,
)

from fedbench.plugins.attacks.classifiers import neighbour_log_odds, regression, three_parts
from fedbench.plugins.attacks.stacked import MEASURED, contrast, features
from fedbench.plugins.attacks.taught import balanced, folds
from fedbench.plugins.attacks.thresholds import best_threshold, class_thresholds

CLASSES = 4
READS = {
    "threshold-confidence": ("logit-confidence", 1),
    "threshold-entropy": ("entropy", -1),
    "threshold-loss": ("loss", -1),
    "threshold-modified-entropy": ("modified-entropy", -1),
    "label-only": ("robustness", 1),
}


@pytest.fixture(scope="module")
def leaky():
    return world(5.0, 160, 640, rounds=3)


# --- thresholds -----------------------------------------------------------------------------------


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=30))
def test_the_threshold_has_the_largest_advantage_and_is_the_highest_such(drawn):
    value, member = (np.array(v) for v in zip(*drawn, strict=True))
    if member.all() or not member.any():
        member[0] = not member[0]
    advantage = {
        t: (value[member] > t).mean() - (value[~member] > t).mean() for t in [*value.tolist(), -99]
    }
    tau, most = best_threshold(value, member), max(advantage.values())
    assert (value[member] > tau).mean() - (value[~member] > tau).mean() == pytest.approx(most)
    best = [t for t, a in advantage.items() if a == pytest.approx(most)]
    assert (value > tau).sum() == (value > max(best)).sum()


def test_the_threshold_lies_between_two_values_and_classes_with_enough_lessons_have_their_own():
    value, member = np.arange(4.0), np.array([0, 1, 0, 1], bool)
    assert best_threshold(value, member) == 2.5  # as good as 0.5
    assert best_threshold(value, value < 1) == 3  # turned over: none is called a member
    of_class = [class_thresholds(value, member, np.array([0, 0, 1, 1]), least) for least in (1, 2)]
    assert of_class == [{0: 0.5, 1: 2.5}, {}]


@pytest.mark.parametrize("name", READS)
def test_without_a_teacher_the_score_is_the_signal_of_the_last_round(name, leaky):
    one, seen = attack(name, teacher="none", view="client"), shown(leaky, "client")
    signal, sign = READS[name]
    wanted = sign * seen.of_target(signal)[-1].astype(float)
    np.testing.assert_array_equal(one.score(seen, leaky.audit()), wanted)
    assert one.threshold is None and one.colluders == 0 and not one.knows_half


@pytest.mark.parametrize("classes", [False, True])
def test_a_candidate_is_called_a_member_above_the_threshold_of_the_other_fold(classes, leaky):
    one = taught(attack("threshold-loss", classes=classes), leaky)
    shadow, fold = colluder(leaky), folds(leaky.ids, 7)
    for r, score in enumerate(one.score_rounds(shown(leaky), leaky.audit())):
        lesson = -shadow.observations.of_target("loss")[r].astype(float)
        asked, taus = -shown(leaky).of_target("loss")[r].astype(float), np.zeros((2, len(fold)))
        for f in (0, 1):
            seen = fold != f
            taus[f] = best_threshold(lesson[seen], shadow.member[seen])
            for c in range(CLASSES) if classes else ():
                at = seen & (leaky.y == c)
                if min(shadow.member[at].sum(), (~shadow.member[at]).sum()) >= 5:
                    taus[f, leaky.y == c] = best_threshold(lesson[at], shadow.member[at])
        np.testing.assert_array_equal(score > 0, asked > taus[fold, np.arange(len(fold))])
        nearest = np.where(score > 0, taus.min(axis=0), taus.max(axis=0))
        np.testing.assert_allclose(score, asked - nearest)


def test_taught_by_a_half_the_other_half_is_judged_by_all_of_it(leaky):
    one = attack("threshold-loss", teacher="half")
    value = -shown(leaky).of_target("loss")[-1].astype(float)

    def of_side(side):
        """(observations, audit) of these candidates."""
        audit = replace(leaky.audit(), ids=leaky.ids[side], y=leaky.y[side])
        return shown(leaky, rows=np.flatnonzero(side)), audit

    first = np.arange(len(value)) % 2 == 0
    for half in (first, ~first):
        observations, lesson = of_side(half)
        known = {"ids": lesson.ids, "y": lesson.y, "member": leaky.member[half]}
        teacher = replace(colluder(leaky, client=TARGET), observations=observations, **known)
        one.fit([teacher], lesson)
        wanted = value[~half] - best_threshold(value[half], leaky.member[half])
        np.testing.assert_allclose(one.score(*of_side(~half)), wanted)


def test_the_loss_against_soft_labels_is_the_cross_entropy_with_them(leaky):
    seen, theta = shown(leaky), 0.7
    logits = seen.of_target("logits").astype(float)
    log_p = logits - np.log(np.exp(logits).sum(axis=2, keepdims=True))
    soft = (1 - theta) * np.eye(CLASSES)[leaky.y] + theta / CLASSES
    one = attack("adaptive-membershield", theta=theta, teacher="none")
    score = one.score_rounds(seen, leaky.audit())
    np.testing.assert_allclose(score, (soft * log_p).sum(axis=2), rtol=1e-4)


# --- classifiers of one round ---------------------------------------------------------------------


def test_a_classifier_learns_from_balanced_standardised_lessons_of_the_other_fold(leaky):
    one = taught(attack("logistic-regression"), leaky)
    shadow, fold = colluder(leaky), folds(leaky.ids, 7)
    draws = [rng.spawn(2) for rng in replace(leaky.audit(), target_client=-1).rng.spawn(3)]

    def read(seen):
        length = np.log(np.sqrt(seen.of_target("upload-grad-sq").astype(float)))
        return np.dstack([seen.of_target("logits"), seen.of_target("loss"), length])

    learns, asked, wanted = read(shadow.observations), read(shown(leaky)), np.empty((3, len(fold)))
    for r, f in np.ndindex(3, 2):
        x, member = learns[r, fold != f].astype(float), shadow.member[fold != f]
        chosen = balanced(member, draws[r][f].permutation)
        least = min(member.sum(), (~member).sum())
        assert member[chosen].sum() == least and len(chosen) == len({*chosen}) == 2 * least
        x, mean, deviation = x[chosen], x[chosen].mean(axis=0), x[chosen].std(axis=0)
        odds = regression((x - mean) / deviation, member[chosen], int(draws[r][f].integers(2**31)))
        wanted[r, fold == f] = odds((asked[r, fold == f] - mean) / deviation)
    score = one.score_rounds(shown(leaky), leaky.audit())
    np.testing.assert_allclose(score, wanted, rtol=1e-6, atol=1e-9)
    assert attack("knn").needs == {"logits", "loss", "upload-grad-sq"}
    assert attack("knn", features="logits-loss").needs == {"logits", "loss"}


def test_the_penalty_is_the_one_that_is_right_most_often_on_what_it_has_not_seen():
    rng = np.random.default_rng(5)
    member = np.arange(120) % 2 == 0
    x = rng.normal(size=(120, 8)) + 0.4 * member[:, None]
    models = [
        LogisticRegression(C=c, solver="newton-cholesky", tol=1e-10, max_iter=1000)
        for c in np.logspace(-4, 2, 10)  # TF-Privacy's grid
    ]
    right = np.zeros(10, int)
    for learnt, asked in three_parts(member, 11):
        for i, model in enumerate(models):
            said = model.fit(x[learnt], member[learnt]).predict(x[asked])
            right[i] += (said == member[asked]).sum()
    assert 0 < right.argmax() < len(right) - 1, "this world tells nothing about the choice"
    best = models[right.argmax()].fit(x, member).decision_function(x)
    np.testing.assert_allclose(regression(x, member, 11)(x), best, rtol=1e-3, atol=1e-4)


def test_knns_odds_are_those_of_the_distance_weighted_share_and_never_tie():
    rng = np.random.default_rng(0)
    x, asked = rng.normal(size=(60, 2)), rng.normal(size=(200, 2))
    member = x[:, 0] + 0.3 * rng.normal(size=60) > 0
    odds = neighbour_log_odds(x, member, 5, asked)
    share = KNeighborsClassifier(5, weights="distance").fit(x, member).predict_proba(asked)[:, 1]
    mixed = (share > 0) & (share < 1)
    np.testing.assert_allclose(1 / (1 + np.exp(-odds[mixed])), share[mixed])
    assert (~mixed).sum() > 10 and len(np.unique(odds)) == 200
    assert odds[share == 1].min() > odds[mixed].max()
    assert odds[share == 0].max() < odds[mixed].min()
    # a sample that lies on its neighbour
    assert np.isfinite(neighbour_log_odds(x, member, 5, x)).all()
    right = [
        sum(
            (KNeighborsClassifier(k).fit(x[a], member[a]).predict(x[b]) == member[b]).sum()
            for a, b in three_parts(member, 2)
        )
        for k in (3, 5, 7)
    ]
    best = neighbour_log_odds(x, member, (3, 5, 7)[int(np.argmax(right))], asked)
    np.testing.assert_array_equal(attack("knn")._train(x, member, 2)(asked), best)
    assert min(right) < max(right)


@pytest.mark.parametrize("name", ["random-forest", "mlp"])
def test_scores_of_scikit_learns_classifiers_are_their_log_odds_and_follow_from_the_seed(name):
    rng, member = np.random.default_rng(3), np.arange(80) % 2 == 0
    x, asked = rng.normal(size=(80, 5)) + 0.8 * member[:, None], rng.normal(size=(40, 5))
    first, again, other = (attack(name)._train(x, member, seed) for seed in (4, 4, 5))
    p = again.args[0].predict_proba(asked)[:, 1]
    wanted = p - 0.5 if name == "random-forest" else np.log(p / (1 - p))
    np.testing.assert_allclose(first(asked), wanted, rtol=1e-9, atol=1e-12)
    assert not np.array_equal(other(asked), wanted)


# --- nets on a series -----------------------------------------------------------------------------


@pytest.mark.parametrize("standardise", [False, True])
def test_cs_mia_is_a_net_on_the_series_of_modified_entropies_each_fold_with_its_own(standardise):
    w = world(2.0, 100, 400, seed=2)
    fold, shadow = folds(w.ids, 7), colluder(w)
    one = attack("cs-mia", epochs=2, standardise=standardise)
    one.fit([shadow], replace(w.audit(), target_client=-1))
    generator, wanted = replace(w.audit(), target_client=-1).generator, np.empty(len(fold))
    learns, asked = (
        torch.from_numpy(w.observations["modified-entropy"][:, k].T.copy())
        for k in (COLLUDER, TARGET)
    )
    for f in (0, 1):
        x = learns[fold != f]
        mean, std = (x.mean(0), x.std(0, correction=0)) if standardise else (0.0, 1.0)
        member = torch.from_numpy(shadow.member[fold != f])
        net = slow_net((x - mean) / std, member, 2, generator, 5e-4)
        wanted[fold == f] = net((asked[fold == f] - mean) / std)
    np.testing.assert_allclose(w.score(one), wanted, rtol=1e-3, atol=1e-4)


def test_cs_mia_carries_the_last_upload_over_rounds_without_the_client():
    w = world(2.0, 100, 400, seed=2)
    one, held = taught(attack("cs-mia", epochs=2), w), w.observations["modified-entropy"].copy()
    held[0, TARGET], held[3:5, TARGET] = held[1, TARGET], held[2, TARGET]
    wanted = with_signals(w, modified_entropy=held).score(one)
    np.testing.assert_array_equal(with_absence(w, TARGET, 0, 3, 4).score(one), wanted)


def test_seqmia_subtracts_the_non_member_logit_unless_told_otherwise():
    w = world(2.0, 100, 400, seed=2)
    margin, member_logit, plain = (
        w.score(taught(attack("seqmia", epochs=3, **form), w))
        for form in ({}, {"score": "logit1"}, {"standardise": False})
    )
    other_logit = member_logit - margin
    assert auc(other_logit, w.member) < 0.5 < auc(member_logit, w.member)
    assert np.abs(plain - margin).max() > 1e-3


# --- the ensemble ---------------------------------------------------------------------------------


def test_the_ensemble_is_the_mean_rank_of_a_regression_and_of_boosted_trees(leaky):
    """On normal scores of the features and on 32 equal shares of their ranks; sklearn's own models
    in scipy's own ranks.
    """
    audit = replace(leaky.audit(), target_client=-1)
    fold, member = folds(leaky.ids, 7), colluder(leaky).member
    one, seed = taught(attack("stacked"), leaky), int(audit.rng.integers(2**31))
    ranks = [rankdata(features(shown(leaky, client=k)), axis=0) for k in (COLLUDER, TARGET)]
    n = len(fold)
    normal = [ndtri((r - 0.5) / n) for r in ranks]
    shares = [(2 * r - 2) * 32 // (2 * n - 1) for r in ranks]
    regression = LogisticRegression(C=1e-3, tol=1e-6, max_iter=1000, class_weight="balanced")
    trees = HistGradientBoostingClassifier(
        max_iter=30,
        learning_rate=0.2,
        max_leaf_nodes=8,
        min_samples_leaf=20,
        l2_regularization=1.0,
        early_stopping=False,
        max_bins=32,
        random_state=seed,
    )
    wanted = np.empty(n)
    for f in (0, 1):
        said = [
            model.fit(learnt[fold != f], member[fold != f]).decision_function(asked[fold == f])
            for model, (learnt, asked) in ((regression, normal), (trees, shares))
        ]
        wanted[fold == f] = np.mean([(rankdata(s) - 0.5) / len(s) for s in said], axis=0)
    np.testing.assert_allclose(one.score(shown(leaky), leaky.audit()), wanted, rtol=1e-9)


def test_its_features_are_every_signal_and_round_and_the_distance_from_the_others(leaky):
    w = with_absence(leaky, TARGET, 1)  # the round before stands in
    t, confidence = w.observations.rounds, w.observations["logit-confidence"].astype(float)
    mine, others = confidence[[0, 0, 2], TARGET], np.delete(confidence, TARGET, axis=1)
    distance = (mine - others.mean(1)) / np.sqrt(others.var(1, ddof=1) + 1e-8)
    wanted = []
    for series in (mine, distance):
        wanted += [*series, series.mean(0), np.polyfit(t, series, 1)[0], series.std(0)]
    found = features(shown(w))
    np.testing.assert_allclose(found[:, :12].T, wanted, rtol=1e-6, atol=1e-9)
    # the received model's gradient is the same for all clients
    assert found.shape[1] == 6 * (2 * len(MEASURED) - 1)
    assert features(shown(w, "client")).shape[1] == 6 * len(MEASURED)
    one, others = np.array([[1.0, 4]]), np.array([[[1.0, 1], [np.nan, np.nan]]])
    assert (contrast(one, others) == 0).all()  # a single other client has no deviation


def test_colluders_of_the_global_model_teach_its_members_together(leaky):
    together = attack("stacked", colluders=2, view="client")
    alone = attack("stacked", view="client")
    pair = [colluder(leaky, "client", k) for k in (0, 1)]
    together.fit(pair, leaky.audit())
    alone.fit([replace(pair[0], member=pair[0].member | pair[1].member)], leaky.audit())
    np.testing.assert_array_equal(
        *(one.score(shown(leaky, "client"), leaky.audit()) for one in (together, alone))
    )
