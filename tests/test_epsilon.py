"""Lower bounds on epsilon: null tests, Gaussian mechanisms, another library's numbers, limits."""

from __future__ import annotations

import numpy as np
import pytest
from other_bounds import Decisions, clopper_pearson, gaussian_dp, gaussian_dp_of_run
from scipy.stats import binom

from fedbench.leaderboard.statistics.epsilon import (
    Coins,
    Guesses,
    approximate_dp,
    chosen_bound,
    guesses_of,
)
from fedbench.plugins.defenses.dp_accounting import epsilon


# (m, r, v, delta): bounds of jax-privacy 2.0.0's `auditing`
@pytest.mark.parametrize(
    "m, r, v, delta, any_mechanism, gaussian",
    [
        (100, 100, 80, 1e-5, 0.958086, 2.130336),
        (200, 200, 120, 1e-5, 0.158832, 0.332465),
        (1000, 200, 180, 1e-5, 1.796285, 2.901243),
        (1000, 1000, 640, 1e-5, 0.464961, 0.889884),
        (5000, 1000, 900, 1e-6, 2.020940, 3.395592),
    ],
)
def test_the_bounds_are_those_of_another_library(m, r, v, delta, any_mechanism, gaussian):
    guesses = Guesses(m, r, v)
    assert approximate_dp(guesses, delta) == pytest.approx(any_mechanism, abs=2e-5)
    mu = gaussian_dp_of_run(guesses)
    assert epsilon(1 / mu, 1, delta) == pytest.approx(gaussian, abs=2e-5)


def test_perfect_guesses_show_what_the_design_allows():
    shown = [approximate_dp(Guesses(m, m, m), 0.0) for m in (100, 200, 1000)]
    assert shown == pytest.approx([3.49, 4.19, 5.81], abs=0.01)
    shown = [clopper_pearson(Decisions(n, n, 0, n)) for n in (8, 16, 64, 200)]
    assert shown == pytest.approx([0.53, 1.35, 2.82, 3.98], abs=0.01)
    for nothing in (Decisions(0, 16, 16, 16), Decisions(8, 16, 8, 16)):
        assert clopper_pearson(nothing) == gaussian_dp(nothing) == 0


def coins(m, rng, mu=0.0):
    heads = rng.random(m) < 0.5
    return Coins(mu * heads + rng.normal(size=m), heads)


def at_most_a_twentieth(count, of):
    """Whether the count is no surprise for events of five percent."""
    return binom.sf(count - 1, of, 0.05) > 0.001


def of_any_mechanism(guesses):
    return approximate_dp(guesses, 1e-5)


@pytest.mark.parametrize("bound", [of_any_mechanism, gaussian_dp_of_run])
def test_null_scores_show_nothing_in_all_but_a_twentieth_of_audits(bound):
    rng = np.random.default_rng(7)
    guesses = [guesses_of(coins(200, rng), 60) for _ in range(400)]
    shown = sum(bound(of_audit) > 0 for of_audit in guesses)
    assert at_most_a_twentieth(shown, 400)


def test_what_is_chosen_on_the_first_coins_shows_nothing_of_null_scores_on_the_others():
    rng, shown = np.random.default_rng(7), 0
    for _ in range(400):
        halves = [{"a": coins(200, rng)} for _ in range(2)]
        bound = chosen_bound(*halves, of_any_mechanism)
        assert bound.epsilon <= bound.limit
        shown += bound.epsilon > 0
    assert at_most_a_twentieth(shown, 400)


def test_the_attack_and_the_sign_that_leak_are_chosen():
    rng = np.random.default_rng(7)
    halves = []
    for _ in range(2):
        leaking = coins(1000, rng, mu=-3.0)
        halves.append({"null": coins(1000, rng), "turned": leaking})
    bound = chosen_bound(*halves, of_any_mechanism)
    assert bound.attack == "turned" and 1.0 < bound.epsilon < bound.limit


@pytest.mark.parametrize("bound", [clopper_pearson, gaussian_dp])
def test_decisions_at_chance_show_nothing_in_all_but_a_twentieth_of_audits(bound):
    rng = np.random.default_rng(7)
    decisions = rng.binomial(20, 0.5, size=(400, 2))
    shown = sum(bound(Decisions(hits, 20, alarms, 20)) > 0 for hits, alarms in decisions.tolist())
    assert at_most_a_twentieth(shown, 400)


def test_a_gaussian_mechanism_is_bounded_below_its_epsilon_and_shown_to_leak():
    rng, mu = np.random.default_rng(7), 1.5
    guesses = [guesses_of(coins(2000, rng, mu), 100) for _ in range(100)]
    truth = epsilon(1 / mu, 1, 1e-5)
    bounds = np.array([approximate_dp(of_audit, 1e-5) for of_audit in guesses])
    assert at_most_a_twentieth((bounds > truth).sum(), 100)
    assert np.median(bounds) > truth / 5
    curves = np.array([gaussian_dp_of_run(of_audit) for of_audit in guesses])
    assert at_most_a_twentieth((curves > mu).sum(), 100)
    assert np.median(curves) > mu / 2


@pytest.mark.parametrize("threshold", [-0.5, 0.75, 2.0])
def test_decisions_about_a_gaussian_mechanism_show_its_mu_and_no_more(threshold):
    rng, mu = np.random.default_rng(7), 1.5
    bounds = []
    for _ in range(200):
        members, outsiders = rng.normal(mu, size=500), rng.normal(size=500)
        counts = [int(np.count_nonzero(scores > threshold)) for scores in (members, outsiders)]
        decisions = Decisions(counts[0], 500, counts[1], 500)
        bounds.append((gaussian_dp(decisions), clopper_pearson(decisions, 1e-5)))
    curve, any_mechanism = np.transpose(bounds)
    assert at_most_a_twentieth((curve > mu).sum(), 200) and np.median(curve) > 0.7 * mu
    assert (any_mechanism < epsilon(1 / mu, 1, 1e-5)).all()


def test_the_highest_are_guessed_as_heads_and_the_lowest_as_tails():
    heads = np.array([True, False, False, True, True])
    of_five = Coins(np.array([0.9, 0.1, 0.8, 0.3, 0.5]), heads)
    assert guesses_of(of_five, 3) == Guesses(canaries=5, guessed=3, right=2)
    assert guesses_of(of_five, 0) == Guesses(canaries=5, guessed=0, right=0)
    assert approximate_dp(Guesses(5, 0, 0), 1e-5) == 0
