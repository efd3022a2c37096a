"""TF01 of several units together: the value against a slow reference, limits where they are known, bias and coverage."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import beta

from fedbench.core.numerics.rng import numpy_rng
from fedbench.leaderboard.simulations import tf01
from fedbench.leaderboard.statistics.pooled import enough, pooled_tpr
from fedbench.leaderboard.statistics.sample import Sample


def unit(rng, seed=0, members=50, nonmembers=700, shift=0.0):
    return Sample(seed, rng.normal(size=members) + shift, rng.normal(size=nonmembers), np.arange(nonmembers))


def units(purpose, n=5, **kinds):
    rng = numpy_rng(0, purpose)
    return [unit(rng, seed, **kinds) for seed in range(n)]


def share_by_hand(units, j):
    """Of the members above the j-th largest non-member of their own unit, one by one."""
    found = [s > sorted(u.nonmember.tolist(), reverse=True)[j - 1] for u in units for s in u.member]
    return sum(found) / len(found)


def test_with_enough_nonmembers_the_value_is_the_share_above_each_units_own_conformal_threshold():
    found = units("by hand", 3, nonmembers=2999, members=2000)  # 3,000 / 1,000: the third largest, expected FPR 0.1 %
    pooled = pooled_tpr(found)
    assert (pooled.n_members, pooled.n_nonmembers, pooled.nearest) == (6000, 8997, pytest.approx(0.001))
    assert pooled.value == pytest.approx(share_by_hand(found, 3), rel=0.03)  # the slope is all but 1, and with it the correction


def test_between_two_ranks_the_hits_are_interpolated():
    found = units("halves", 2, nonmembers=2499, members=2000, shift=2.0)  # .001 x 2,500 = 2.5
    rate = (share_by_hand(found, 2) + share_by_hand(found, 3)) / 2
    assert rate < pooled_tpr(found).value < 1.15 * rate  # a normal shift's ROC is concave, and the mean over thresholds too low


def test_with_fewer_a_line_leads_from_the_largest_nonmember_to_the_wanted_rate():
    """Two thirds of a log-log straight line: a ROC of T = sqrt(F), drawn as members' quantiles among non-members."""
    rng = numpy_rng(0, "power")
    found = [
        Sample(s, 1 - rng.random(40_000) ** 2, rng.random(499), np.arange(499)) for s in range(60)
    ]  # P(member > 1 - F) = sqrt(F): .0316 at .1 %
    pooled = pooled_tpr(found)
    assert pooled.nearest == pytest.approx(0.002)
    assert pooled.value == pytest.approx(0.001**0.5, rel=0.12)
    assert share_by_hand([replace(u, member=u.member[:500]) for u in found], 1) > 1.2 * pooled.value


def test_an_increasing_transformation_of_a_units_scores_does_not_matter():
    """Units have scales and tails of their own: standardised and thrown together, the one with the longest tail rules."""
    found = units("moved", shift=2.0)
    changed = [np.exp, np.arctan, lambda x: x**3, lambda x: 64 * x + 5, lambda x: np.where(x > 0, 1e6 * x, x)]
    moved = [replace(u, member=f(u.member), nonmember=f(u.nonmember)) for u, f in zip(found, changed, strict=True)]
    assert pooled_tpr(moved) == pooled_tpr(found)


def test_too_few_nonmembers_say_nothing():
    rng = numpy_rng(0, "few")
    assert pooled_tpr([unit(rng, nonmembers=1000), unit(rng, nonmembers=998)]) is None
    assert pooled_tpr([unit(rng, nonmembers=1000), unit(rng, nonmembers=999)]) is not None
    assert pooled_tpr([unit(rng, nonmembers=300) for _ in range(10)]) is None  # the line would be drawn out too far
    assert pooled_tpr([unit(rng, nonmembers=333) for _ in range(10)]) is not None
    assert pooled_tpr([]) is None and not enough([]) and enough([1999])


def test_no_hits_leave_room_above_and_none_below():
    found = [replace(u, member=u.member - 20) for u in units("nothing", nonmembers=4000)]
    pooled = pooled_tpr(found)
    assert (pooled.value, pooled.low) == (0, 0)
    assert pooled.high >= beta.ppf(0.975, 1, 250)  # the exact bound of 0 of 250
    assert pooled.high < 0.05


def test_all_hits_leave_room_below_and_little_above():
    pooled = pooled_tpr([replace(u, member=u.member + 100) for u in units("everything")])
    assert pooled.value > 0.99 and pooled.high == 1
    assert 0.85 < pooled.low < 1


def test_constant_scores_are_no_hits():
    flat = [replace(u, member=np.full(50, 0.1), nonmember=np.full(700, 0.1)) for u in units("flat")]
    assert pooled_tpr(flat).value == 0


@pytest.mark.parametrize("share", [0.01, 0.3, 0.7])
def test_ties_count_against_the_attack(share):
    """Two values: no threshold separates a member of the upper one from the non-members there, however many these are."""
    rng = numpy_rng(0, "ties")
    tied = [Sample(s, np.ones(50), (rng.random(700) < share) * 1.0, np.arange(700)) for s in range(5)]
    assert pooled_tpr(tied).value == 0


def test_one_sample_under_many_targets_is_not_many_samples():
    rng = numpy_rng(0, "clusters")
    shared = rng.normal(size=2000)
    same = [Sample(0, rng.normal(size=400) + 2, shared, np.arange(2000)) for _ in range(4)]
    several = [replace(u, ids=u.ids + 5000 * i) for i, u in enumerate(same)]
    assert pooled_tpr(same).value == pytest.approx(pooled_tpr(several).value)
    assert pooled_tpr(same).high - pooled_tpr(same).low > 1.3 * (pooled_tpr(several).high - pooled_tpr(several).low)


def test_seeds_that_differ_widen_the_interval():
    def found(shifts):
        rng = numpy_rng(0, "seeds")
        return pooled_tpr([unit(rng, seed, 500, 2000, shift) for seed, shift in enumerate(shifts)])

    alike, apart = found([2.0] * 5), found([0.5, 1.2, 2.0, 2.5, 3.0])
    assert apart.high - apart.low > 1.5 * (alike.high - alike.low)


@pytest.mark.parametrize(
    "change", [{"ids": np.arange(3)}, {"member": np.array([])}, {"member": np.array([np.nan])}, {"nonmember": np.zeros((2, 2))}]
)
def test_what_cannot_be_judged_is_refused(change):
    with pytest.raises(ValueError):
        pooled_tpr([replace(u, **change) for u in units("wrong")])


def test_the_fpr_has_a_range():
    for fpr in (0, 0.06, -1):
        with pytest.raises(ValueError):
            pooled_tpr(units("range"), fpr)


@given(st.integers(0, 2**32), st.integers(1, 5), st.floats(-3, 8), st.sampled_from([0, 1, 3]), st.floats(0.002, 0.05))
@settings(max_examples=100, deadline=None)
def test_limits_stand_around_the_value(key, n, shift, decimals, fpr):
    rng = np.random.default_rng(key)
    found = [unit(rng, int(rng.integers(3)), int(rng.integers(1, 60)), int(rng.integers(3, 900)), shift) for _ in range(n)]
    rounded = [replace(u, member=u.member.round(decimals), nonmember=u.nonmember.round(decimals)) for u in found]
    pooled = pooled_tpr(rounded, fpr)
    assume(pooled is not None)
    assert 0 <= pooled.low <= pooled.value <= pooled.high <= 1
    assert pooled.low < pooled.high


# ---------------------------------------------------------------- the simulation


def test_bias_and_coverage_hold_where_the_step_rule_does_not():
    rng = numpy_rng(0, "quick simulation")
    null, leak = tf01.simulate(tf01.DESIGNS[0], "normal", (0.001, 0.02), 200, rng)
    assert abs(null.bias) < 0.3 and abs(leak.bias) < 0.1  # standard errors .1 and .03
    assert min(null.coverage, leak.coverage) > 0.91
    assert 0.15 < 100 * tf01.step_null(1100, 1000, rng) < 0.21


@pytest.mark.parametrize("noise", tf01.NOISES)
@pytest.mark.parametrize("rate", tf01.RATES)
def test_the_simulated_truth_is_the_true_rate(noise, rate):
    """By brute force: members of a million seeds against the exact threshold."""
    shift, spread = tf01.shift_of(noise, rate)
    rng = numpy_rng(0, "truth")
    scores = tf01.of_normal(noise, rng.standard_normal(1_000_000)) + shift + spread * rng.standard_normal(1_000_000)
    assert np.mean(scores > tf01.threshold_of(noise, tf01.FPR)) == pytest.approx(rate, rel=0.12)


def test_the_tables_have_a_row_a_cell(capsys):
    tf01.main(["--quick"])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + len(tf01.DESIGNS) * len(tf01.NOISES) * len(tf01.RATES) + 1 + 4
