"""Scores calibrated by federations of one pool, beside plain loops and in worlds of known leak."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import norm
from sklearn.covariance import ledoit_wolf

from fedbench.core.metrics.roc import placements
from fedbench.leaderboard.statistics.calibration import (
    FPR,
    OF_CANDIDATE,
    lira,
    lira_of_vectors,
    lira_offline,
    passes,
    rmia,
    share_of,
)


def world(federations, candidates, gain=0.0):
    """Scores with a level of its own for each candidate, which hides the gain of membership."""
    rng = np.random.default_rng(7)
    member = rng.random((federations, candidates)) < 0.5
    level = 3 * rng.normal(size=candidates)
    return level + rng.normal(size=member.shape) + gain * member, member


def auc(scores, member):
    pairs = [(s[~np.isnan(s)], m[~np.isnan(s)]) for s, m in zip(scores, member, strict=True)]
    return np.mean([placements(s[None], m)[0][0] for s, m in pairs])


@pytest.mark.parametrize("federations", [12, OF_CANDIDATE + 1])
def test_likelihood_ratios_are_those_of_a_plain_loop(federations):
    scores, member = world(federations, 8, gain=1.0)
    ratios, deviations = lira(scores, member, ~member), lira_offline(scores, member, ~member)
    for f in range(federations):
        rest = np.arange(federations) != f
        sides = []
        for side in (member, ~member):
            values = [scores[rest & side[:, i], i] for i in range(8)]
            pooled = sum(v.var() * len(v) for v in values) / sum(len(v) - 1 for v in values)
            own = [v.var(ddof=1) for v in values]
            variances = own if federations >= OF_CANDIDATE else [pooled] * 8
            sides.append([(v.mean(), math.sqrt(s)) for v, s in zip(values, variances, strict=True)])
        for i, (with_it, without) in enumerate(zip(*sides, strict=True)):
            x = scores[f, i]
            expected = norm.logpdf(x, *with_it) - norm.logpdf(x, *without)
            assert ratios[f, i] == pytest.approx(expected, abs=1e-9)
            assert deviations[f, i] == pytest.approx((x - without[0]) / without[1], abs=1e-9)


def test_ratios_of_vectors_are_those_of_a_plain_loop_and_use_both_scores():
    first, member = world(16, 40, gain=1.2)
    second = first[:, ::-1] + 1.2 * member - 1.2 * member[:, ::-1]
    vectors = np.stack([first, second], axis=2)
    ratios = lira_of_vectors(vectors, member, ~member)
    f = 3
    means = np.empty((2, 40, 2))
    rest = [g for g in range(16) if g != f]
    residuals = []
    for i in range(40):
        for side in (0, 1):
            rows = [g for g in rest if member[g, i] == side]
            means[side, i] = vectors[rows, i].mean(0)
            residuals += list(vectors[rows, i] - means[side, i])
    scale = np.std(residuals, axis=0)
    inverse = np.linalg.inv(ledoit_wolf(residuals / scale, assume_centered=True)[0])
    for i in range(40):
        gaps = [(vectors[f, i] - means[side, i]) / scale for side in (0, 1)]
        expected = (gaps[0] @ inverse @ gaps[0] - gaps[1] @ inverse @ gaps[1]) / 2
        assert ratios[f, i] == pytest.approx(expected, abs=1e-9)
    assert auc(ratios, member) > auc(lira(first, member, ~member), member) + 0.03


def test_ratios_of_probabilities_are_those_of_a_plain_loop():
    scores, member = world(10, 6, gain=1.0)
    log_p = -np.exp(scores)
    ratios = rmia(log_p, member, ~member)
    for f in range(10):
        for i in range(6):
            rows = [g for g in range(10) if g != f]
            sides = [[math.exp(log_p[g, i]) for g in rows if member[g, i] == s] for s in (0, 1)]
            mean = sum(sum(side) / len(side) for side in sides) / 2
            assert ratios[f, i] == pytest.approx(log_p[f, i] - math.log(mean), abs=1e-9)


def test_a_score_that_says_nothing_stays_at_chance_and_power_grows_with_federations():
    scores, member = world(32, 400)
    calibrated = [
        lira(scores, member, ~member),
        lira_offline(scores, member, ~member),
        rmia(scores, member, ~member),
    ]
    for ratios in (*calibrated, lira_of_vectors(scores[..., None], member, ~member)):
        assert auc(ratios, member) == pytest.approx(0.5, abs=0.02)
    powers = []
    for federations in (8, 14, 32):
        scores, member = world(federations, 400, gain=1.0)
        powers.append(auc(lira(scores, member, ~member), member))
    assert powers == sorted(powers) and powers[-1] > 0.74
    assert auc(scores, member) < 0.62


def test_what_a_federation_holds_out_counts_on_no_side():
    scores, member = world(10, 6, gain=1.0)
    held_out = np.zeros_like(member)
    held_out[4, 2] = True
    sides = member & ~held_out, ~member & ~held_out
    methods = lira, lira_offline, rmia
    before = [method(scores, *sides) for method in methods]
    vectors = np.stack([scores, scores[:, ::-1]], axis=2)
    before.append(lira_of_vectors(vectors, *sides))
    scores[4, 2] = vectors[4, 2] = np.nan
    after = [method(scores, *sides) for method in methods]
    after.append(lira_of_vectors(vectors, *sides))
    for first, second in zip(before, after, strict=True):
        assert_allclose(first[~held_out], second[~held_out])


def test_too_few_federations_on_a_side_give_no_number():
    scores, member = world(6, 4)
    member[:, 0] = [True, True, True, True, True, False]
    for ratios in (lira(scores, member, ~member), rmia(scores, member, ~member)):
        assert np.isnan(ratios[:, 0]).all()
    assert np.isnan(lira_of_vectors(scores[..., None], member, ~member)[:, 0]).all()
    assert np.isnan(share_of(passes(scores, member, ~member))[0])


def test_a_candidate_is_vulnerable_where_its_members_pass_its_own_threshold():
    rng = np.random.default_rng(7)
    member = rng.random((200, 3)) < 0.5
    scores = rng.normal(size=member.shape) + member * [0.0, 2.0, 50.0]
    shares = share_of(passes(scores, member, ~member))
    assert shares == pytest.approx([0.01, norm.sf(2.326 - 2.0), 1.0], abs=0.08)


@pytest.mark.parametrize("federations", [8, 16, OF_CANDIDATE + 6])
def test_without_a_leak_members_pass_as_often_as_the_threshold_says(federations):
    scores, member = world(federations, 4000)
    passed = passes(scores, member, ~member)
    assert np.nanmean(passed) == pytest.approx(FPR, abs=0.002)
