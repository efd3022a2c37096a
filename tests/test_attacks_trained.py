"""Trained attacks: classifiers on one round, and the ensemble over all of them, taught by others than those they judge."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from attack_worlds import colluder, found, rich_world, scored, shown, taught
from pydantic import ValidationError
from scipy.special import ndtri
from scipy.stats import rankdata
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from worlds import COLLUDER, TARGET, auc, chance_band, with_absence, without_round

from fedbench.core import SkipCell
from fedbench.core.experiment.job import Look
from fedbench.plugins.attacks.crossfit import folds
from fedbench.plugins.attacks.fedmia import FedMIAI, FedMIAII
from fedbench.plugins.attacks.loss_series import LossSeries
from fedbench.plugins.attacks.taught import balanced, rounds_taught
from fedbench.plugins.attacks.trained import knn, stacked
from fedbench.plugins.attacks.trained.base import standardised
from fedbench.plugins.attacks.trained.knn import KNN
from fedbench.plugins.attacks.trained.logistic_regression import (
    INVERSE_PENALTIES,
    LogisticRegressionAttack,
    log_odds,
    regression,
)
from fedbench.plugins.attacks.trained.mlp import MLPAttack
from fedbench.plugins.attacks.trained.newton import logistic_regressions
from fedbench.plugins.attacks.trained.parts import three_parts
from fedbench.plugins.attacks.trained.random_forest import RandomForest
from fedbench.plugins.attacks.trained.stacked import Stacked
from fedbench.plugins.attacks.trained.stacked_features import MEASURED, against, features

BY_ROUND = {LogisticRegressionAttack: {}, KNN: {}, RandomForest: {"trees": 20}, MLPAttack: {}}
ALL = {**BY_ROUND, Stacked: {}}


@pytest.fixture(scope="module")
def silent():
    return rich_world(0.0, 120, 480, rounds=2)


@pytest.fixture(scope="module")
def leaky():
    return rich_world(6.0, 120, 480, rounds=2)



# --- chance, and better ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["server", "client"])
@pytest.mark.parametrize("teacher", ["colluder", "half"])
@pytest.mark.parametrize("cls", ALL)
def test_at_chance_without_a_leak_and_with_shuffled_membership_and_above_it_with_one(cls, teacher, view, silent, leaky):
    form = {**ALL[cls], "view": view, "teacher": teacher}
    assert abs(auc(scored(cls(**form), silent), silent.member) - 0.5) < chance_band(silent.member)
    score = scored(cls(**form), leaky)
    assert np.isfinite(score).all()
    shuffled = np.random.default_rng(0).permutation(leaky.member)
    assert abs(auc(score, shuffled) - 0.5) < chance_band(shuffled)
    assert found(score, leaky) > 0.5 + chance_band(leaky.member)


@pytest.mark.parametrize("cls", ALL)
def test_what_it_declares_follows_its_parameters(cls):
    look = Look.of(cls(view="client", teacher="half"))
    assert (look.view, look.colluders, look.knows_half) == ("client", 0, True)
    assert (Look.of(cls()).view, cls().colluders, cls(teacher="half").threshold) == ("server", 1, None)


@pytest.mark.parametrize("cls", BY_ROUND)
def test_the_features_are_tf_privacys_and_the_gradients_length(cls, leaky):
    seen = shown(leaky)
    assert cls(features="logits-loss").needs == {"logits", "loss"} and cls().needs == {"logits", "loss", "upload-grad-sq"}
    x = cls()._features(seen, leaky.y)
    np.testing.assert_array_equal(x[..., :5], cls(features="logits-loss")._features(seen, leaky.y))
    np.testing.assert_allclose(x[..., 5], np.log(np.sqrt(seen.of_target("upload-grad-sq").astype(float))), rtol=1e-6)
    assert cls().threshold == 0


# --- learning apart from judging ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", ALL)
def test_no_candidate_is_scored_by_a_model_that_learnt_from_it(cls, leaky):
    """Turning the colluder's answers over in one fold leaves the scores of that fold's candidates untouched."""
    fold, shadow = folds(leaky.ids, 7), colluder(leaky)
    before, turned = taught(cls(**ALL[cls]), leaky), cls(**ALL[cls])
    turned.fit([replace(shadow, member=np.where(fold == 0, ~shadow.member, shadow.member))], leaky.audit())
    a, b = (attack.score(shown(leaky), leaky.audit()) for attack in (before, turned))
    np.testing.assert_array_equal(a[fold == 0], b[fold == 0])
    assert (a[fold == 1] != b[fold == 1]).mean() > 0.9


@pytest.mark.parametrize("cls", ALL)
def test_it_repeats_bit_by_bit_and_leaves_the_global_generators_alone(cls, leaky):
    theirs, numpys = torch.get_rng_state(), np.random.get_state()[1].copy()
    one, two = (scored(cls(**ALL[cls]), leaky) for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert torch.equal(torch.get_rng_state(), theirs)
    np.testing.assert_array_equal(np.random.get_state()[1], numpys)


@pytest.mark.parametrize("cls", ALL)
def test_it_learns_quietly_and_refuses_what_teaches_nothing(cls, leaky):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        taught(cls(**ALL[cls]), leaky)
    audit = leaky.audit()
    with pytest.raises(SkipCell, match="collude"):
        cls().fit([], audit)
    with pytest.raises(SkipCell, match="too few samples"):
        cls().fit([replace(colluder(leaky), member=np.zeros(len(leaky.ids), bool))], audit)


@pytest.mark.parametrize("cls", BY_ROUND)
def test_each_round_has_a_model_of_its_own_and_the_last_round_counts(cls, leaky):
    attack = taught(cls(**BY_ROUND[cls]), leaky)
    rounds = attack.score_rounds(shown(leaky), leaky.audit())
    assert rounds.shape == (2, len(leaky.ids)) and not np.array_equal(rounds[0], rounds[1])
    np.testing.assert_array_equal(attack.score(shown(leaky), leaky.audit()), rounds[1])
    gone = with_absence(leaky, TARGET, 1)
    without = attack.score_rounds(shown(gone), leaky.audit())
    assert np.isnan(without[1]).all()
    np.testing.assert_array_equal(attack.score(shown(gone), leaky.audit()), rounds[0])


def test_a_round_without_lessons_has_those_before_it():
    x = np.zeros((5, 2, 1))
    x[[0, 3]] = np.nan
    assert rounds_taught(x) == [1, 1, 2, 2, 4]
    with pytest.raises(SkipCell, match="teacher took part in no"):
        rounds_taught(x * np.nan)


def test_lessons_are_balanced_and_standardised_on_themselves():
    rng = np.random.default_rng(0)
    member = np.arange(50) < 8
    chosen = balanced(member, rng)
    assert member[chosen].sum() == (~member[chosen]).sum() == 8 and len(set(chosen)) == 16
    seen = {}
    model = standardised(lambda x, m, seed: seen.update(x=x, m=m), rng.normal(3, 5, (50, 2)) * [1, 0], member, rng)
    np.testing.assert_allclose(seen["x"].mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(seen["x"].std(axis=0), [1, 0])
    assert model.deviation[1] == 1 and seen["m"].sum() == 8


# --- each classifier ---------------------------------------------------------------------------------------------------


def test_the_penalties_are_tf_privacys():
    np.testing.assert_allclose(np.log10(INVERSE_PENALTIES), np.linspace(-4, 2, 10))


def test_knns_odds_are_those_of_the_distance_weighted_share_and_never_tie():
    rng = np.random.default_rng(0)
    x, asked = rng.normal(size=(60, 2)), rng.normal(size=(200, 2))
    member = x[:, 0] + 0.3 * rng.normal(size=60) > 0
    model = knn._neighbours(x, member, 5)
    share = KNeighborsClassifier(5, weights="distance").fit(x, member).predict_proba(asked)[:, 1]
    odds = model.odds(asked)
    mixed = (share > 0) & (share < 1)
    np.testing.assert_allclose(1 / (1 + np.exp(-odds[mixed])), share[mixed])
    assert (~mixed).sum() > 10 and len(np.unique(odds)) == 200
    assert odds[share == 1].min() > odds[mixed].max() and odds[share == 0].max() < odds[mixed].min()


def test_among_members_alone_the_nearer_ranks_higher():
    far, near = (knn.log_odds(np.full((1, 3), d), np.ones((1, 3), bool)) for d in (2.0, 0.5))
    assert near > far > 0
    np.testing.assert_allclose(near, -knn.log_odds(np.full((1, 3), 0.5), np.zeros((1, 3), bool)))
    assert np.isfinite(knn.log_odds(np.zeros((1, 3)), np.ones((1, 3), bool))).all()


# --- the ensemble ------------------------------------------------------------------------------------------------------


def test_the_ensemble_beats_each_single_trajectory_attack():
    w = rich_world(1.0, 300, 1200, seed=3)
    single = {cls: auc(cls().score(shown(w), w.audit()), w.member) for cls in (LossSeries, FedMIAI, FedMIAII)}
    assert auc(scored(Stacked(), w), w.member) > max(single.values()), single


def test_ranks_are_scipys_and_so_are_normal_scores_bit_by_bit():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(41, 3)), rng.integers(0, 4, (41, 3)), np.ones((41, 1))], axis=1)
    ranks = stacked._middle_ranks(x)
    np.testing.assert_array_equal(ranks / 2 + 1, rankdata(x, axis=0))
    np.testing.assert_array_equal(stacked._normal_scores(ranks), ndtri((rankdata(x, axis=0) - 0.5) / 41))
    bins = stacked._binned(stacked._middle_ranks(rng.permuted(np.tile(np.arange(320.0), (2, 1)), axis=1).T))
    assert all((np.bincount(column.astype(int)) == 320 // stacked.BINS).all() for column in bins.T)
    assert stacked._middle_ranks(x[:1]).tolist() == [[0] * 7] and (stacked._binned(ranks)[:, -1] == 15).all()


def test_thirty_larger_steps_on_bins_rank_as_sixty_on_single_values(monkeypatch):
    """What it was: 60 steps of half the size, and splits between any two samples."""
    worlds = [rich_world(1.0, 150, 600, seed=seed) for seed in range(5)]
    now = [auc(scored(Stacked(), w), w.member) for w in worlds]
    monkeypatch.setattr(stacked, "BOOSTING", stacked.BOOSTING | {"max_iter": 60, "learning_rate": 0.1, "max_bins": 255})
    monkeypatch.setattr(stacked, "_binned", lambda ranks: ranks.astype(np.float64))
    before = [auc(scored(Stacked(), w), w.member) for w in worlds]
    assert now != before and np.mean(now) > np.mean(before) - 0.005


def test_more_colluders_teach_more_and_of_the_global_model_together(leaky):
    with_two = Stacked(colluders=2)
    assert with_two.colluders == 2 and Look.of(with_two).colluders == 2
    with_two.fit([colluder(leaky, "server", k) for k in (0, 1)], leaky.audit())
    assert with_two._models[0][0].n_features_in_ == features(shown(leaky)).shape[1]
    together, alone = Stacked(colluders=2, view="client"), Stacked(view="client")
    pair = [colluder(leaky, "client", k) for k in (0, 1)]
    together.fit(pair, leaky.audit())
    alone.fit([replace(pair[0], member=pair[0].member | pair[1].member)], leaky.audit())
    scores = [attack.score(shown(leaky, "client"), leaky.audit()) for attack in (together, alone)]
    np.testing.assert_array_equal(*scores)
    with pytest.raises(ValidationError, match="belongs to teacher colluder"):
        Stacked(teacher="half", colluders=2)


def test_its_features_are_every_signal_and_round_and_the_distance_from_the_others(leaky):
    server, client = features(shown(leaky)), features(shown(leaky, "client"))
    against_others = len(MEASURED) - 1  # the received model's gradient is the same for all
    assert server.shape[1] == (len(MEASURED) + against_others) * 5 and client.shape[1] == len(MEASURED) * 5
    mine, others = np.array([[1.0, 4]]), np.array([[[1.0, 1], [3, 3], [np.nan, np.nan]]])
    np.testing.assert_allclose(against(mine, others), [[-1 / np.sqrt(2), 2 / np.sqrt(2)]], rtol=1e-6)
    assert (against(mine, others[:, 1:]) == 0).all()


def test_rounds_without_the_client_have_its_last_values(leaky):
    gone = with_absence(leaky, TARGET, 1)
    rounds = features(shown(gone))[:, :2]
    np.testing.assert_array_equal(rounds[:, 0], rounds[:, 1])
    assert np.isfinite(taught(Stacked(), with_absence(leaky, COLLUDER, 0)).score(shown(gone), leaky.audit())).all()
    with pytest.raises(SkipCell, match="no audited round"):
        features(shown(with_absence(gone, TARGET, 0)))
    one = without_round(leaky, 0)
    assert np.isfinite(taught(Stacked(), one).score(shown(one), one.audit())).all()


# --- logistic regressions, many at once -------------------------------------------------------------------------------


@pytest.mark.parametrize("apart", [0.0, 0.7, 5.0])  # chance, an overlap, two kinds that a plane tells apart
def test_regressions_at_once_are_those_of_sklearn(apart):
    rng = np.random.default_rng(3)
    member, counted = np.arange(90) % 3 == 0, np.arange(90)[None] % 5 != np.arange(4)[:, None]
    x = rng.normal(size=(90, 6)) + apart * member[:, None]
    strengths = np.array([1e-4, 0.1, 1.0, 100.0])
    found = logistic_regressions(x, member, strengths, counted)
    for w, c, rows in zip(found, strengths, counted, strict=True):
        wanted = LogisticRegression(C=c, solver="newton-cholesky", tol=1e-10, max_iter=1000).fit(x[rows], member[rows])
        np.testing.assert_allclose(log_odds(w, x), wanted.decision_function(x), rtol=2e-3, atol=2e-3)


def test_the_penalty_is_the_one_that_is_right_most_often_on_what_it_has_not_seen():
    rng = np.random.default_rng(5)
    member = np.arange(120) % 2 == 0
    x = rng.normal(size=(120, 8)) + 0.4 * member[:, None]
    right = np.zeros(len(INVERSE_PENALTIES), int)
    for learnt, asked in three_parts(member, 11):
        for i, c in enumerate(INVERSE_PENALTIES):
            model = LogisticRegression(C=c, solver="newton-cholesky", tol=1e-10, max_iter=1000).fit(x[learnt], member[learnt])
            right[i] += int((model.predict(x[asked]) == member[asked]).sum())
    assert 0 < right.argmax() < len(right) - 1, "this world tells nothing about the choice"
    best = LogisticRegression(C=INVERSE_PENALTIES[right.argmax()], solver="newton-cholesky", tol=1e-10).fit(x, member)
    np.testing.assert_allclose(log_odds(regression(x, member, 11), x), best.decision_function(x), rtol=1e-3, atol=1e-4)
