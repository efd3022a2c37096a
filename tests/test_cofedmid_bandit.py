"""CoFedMID's bandit over loss intervals."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from coalitions import member, own_data, started
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from fedbench.plugins.defenses.cofedmid import exp3
from fedbench.plugins.defenses.cofedmid.exp3 import Exp3


def bandit(arms: int = 4, gamma: float = 0.1, step: float | None = None) -> Exp3:
    """With a step of ``gamma`` unless told: Exp3 as Auer et al. have it."""
    return Exp3(gamma, np.zeros(arms), gamma if step is None else step)


def test_exp3_step_by_hand():
    b = bandit(4, 0.2)
    b.rewards = [0.0, 1.0, 2.0, 3.0, 4.0]  # r20 = .8, r80 = 3.2
    assert b.probabilities().tolist() == pytest.approx([0.25] * 4)
    b.learn(2, 2.6)  # scaled: 2 * 1.8 / 2.4 - 1 = .5; exponent .2 * (.5 / .25) / 4 = .1
    w = math.exp(0.1)
    expected = [0.8 * v / (3 + w) + 0.05 for v in (1, 1, w, 1)]
    assert b.probabilities().tolist() == pytest.approx(expected)
    assert b.rewards[-1] == 2.6


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-1e3, 1e3)), max_size=60), st.floats(0.01, 1))
@settings(max_examples=100, deadline=None)
def test_exp3_probabilities_sum_to_one_and_keep_exploring(pulls, gamma):
    b = bandit(4, gamma)
    for arm, reward in pulls:
        before = b.log_weights.copy()
        b.learn(arm, reward)
        assert np.abs(b.log_weights - before).max() <= 1 + 1e-9  # the exponent is at most 1
    p = b.probabilities()
    assert p.sum() == pytest.approx(1) and (p >= gamma / 4 - 1e-12).all()


def test_exp3_survives_long_runs_and_prefers_the_paying_arm():
    b, rng = bandit(), np.random.default_rng(0)
    for _ in range(5000):
        arm = b.draw(rng)
        b.learn(arm, arm + rng.normal(0, 0.1))
    assert b.probabilities().argmax() == 3 and b.probabilities()[3] > 0.8
    assert np.isfinite(b.probabilities()).all()


def test_rewards_are_scaled_by_percentiles_and_clipped():
    history = [0.0, 1.0, 2.0, 3.0, 4.0]
    scaled = [exp3.scale_reward(r, history) for r in (-9.0, 0.8, 2.0, 3.2, 9.0)]
    assert scaled == pytest.approx([-1, -1, 0, 1, 1])
    assert exp3.scale_reward(9.0, history[:4]) == 0  # too short a history
    assert exp3.scale_reward(9.0, [1.0] * 8) == 0  # no spread


def test_reward_is_the_fall_of_the_validation_loss():
    defense, data = started(own_data(), m_max=2, m_min=2)
    ctx = member(data, round=10)
    x, y = data.x[data.held_out], data.y[data.held_out]
    defense.select(ctx)
    before = cross_entropy(ctx.model(x), y).item()
    ctx.params.mul_(0.1)
    defense.after_round(ctx)
    assert ctx.memory["recycler"].bandit.rewards == pytest.approx([before - cross_entropy(ctx.model(x), y).item()], rel=1e-5)
    defense.after_round(replace(ctx, round=11))  # nothing was pulled in that round
    assert len(ctx.memory["recycler"].bandit.rewards) == 1


def test_a_step_of_its_own_by_hand_follows_its_own_size_and_not_the_exploration():
    b = bandit(4, 0.2, step=0.5)
    b.rewards = [0.0, 1.0, 2.0, 3.0, 4.0]
    b.learn(2, 2.6)  # scaled .5, p .25: exponent .5 * .5 / (.25 * 4)
    assert b.log_weights.tolist() == pytest.approx([0, 0, 0.25, 0])


class OneConstant:
    """The bandit as it was, exploration and step in one number."""

    def __init__(self, gamma: float, arms: int) -> None:
        self.gamma, self.log_weights, self.rewards = gamma, np.zeros(arms), []

    def probabilities(self) -> np.ndarray:
        weights = np.exp(self.log_weights - self.log_weights.max())
        return (1 - self.gamma) * weights / weights.sum() + self.gamma / len(weights)

    def learn(self, arm: int, reward: float) -> None:
        scaled = exp3.scale_reward(reward, self.rewards)
        self.rewards.append(reward)
        self.log_weights[arm] += self.gamma * scaled / (self.probabilities()[arm] * len(self.log_weights))


@pytest.mark.parametrize("gamma", [0.1, 0.07, 1.0])
def test_a_step_as_large_as_the_exploration_is_the_bandit_that_was_bit_by_bit(gamma):
    now, was, rng = bandit(10, gamma, step=gamma), OneConstant(gamma, 10), np.random.default_rng(0)
    for _ in range(300):
        arm, reward = int(rng.integers(10)), float(rng.normal())
        now.learn(arm, reward)
        was.learn(arm, reward)
        assert np.array_equal(now.log_weights, was.log_weights)
        assert np.array_equal(now.probabilities(), was.probabilities())


def test_the_default_step_is_what_auer_et_al_ask_for():
    assert exp3.best_step(10, 91) == pytest.approx(math.sqrt(10 * math.log(10) / ((math.e - 1) * 91)))
    assert exp3.best_step(10, 91) == pytest.approx(0.3838, abs=1e-4)
    assert exp3.best_step(10, 1) == 1.0  # their minimum
    for asked, expected in ((None, exp3.best_step(10, 11)), (0.1, 0.1)):  # of 20 rounds, the eleven from round 10 on recycle
        defense, data = started(own_data(), exp3_step=asked)
        ctx = member(data, round=10)
        defense.select(ctx)
        assert ctx.memory["recycler"].bandit.step == expected and ctx.memory["recycler"].bandit.gamma == 0.1


def chances(step: float, seed: int, rounds: int = 91, arms: int = 10, best: int = 9) -> np.ndarray:
    """[rounds, arms] probabilities of a bandit whose one arm always pays more, by five deviations of the noise."""
    b, rng, found = bandit(arms, 0.1, step), np.random.default_rng(seed), []
    for _ in range(rounds):
        found.append(b.probabilities())
        arm = b.draw(rng)
        b.learn(arm, float(arm == best) + rng.normal(0, 0.2))
    return np.array(found)


def test_with_the_default_step_the_bandit_learns_within_the_rounds_that_recycle():
    learns, does_not = (np.mean([chances(s, seed) for seed in range(30)], axis=0) for s in (exp3.best_step(10, 91), 0.1))
    early, late = learns[:30].mean(0), learns[-30:].mean(0)
    assert (np.abs(early - 0.1) < 0.1).all()  # close to uniform
    assert late[9] > 0.5 and late[:9].max() < 0.1  # Figure 5: told apart
    assert does_not[50, 9] < 0.2 and does_not[-30:].mean(0)[9] < late[9] / 2  # one constant for both: hardly


@pytest.mark.parametrize("step", [0.1, 1.0, 50.0])
def test_no_step_and_no_run_is_too_long_for_the_weights(step):
    b, rng = bandit(10, 0.1, step), np.random.default_rng(0)
    for _ in range(3000):
        b.learn(b.draw(rng), rng.normal() * 1e6)
    p = b.probabilities()
    assert np.isfinite(p).all() and p.sum() == pytest.approx(1) and (p >= 0.01 - 1e-12).all()
