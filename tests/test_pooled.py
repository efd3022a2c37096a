"""TF01 of several units together: the value against a slow reference, limits where they are known, bias and coverage."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from fedbench.core.numerics.rng import numpy_rng
from fedbench.leaderboard.simulations import tf01
from fedbench.leaderboard.statistics.pooled import Sample, pooled_tpr


def unit(rng, seed=0, members=50, nonmembers=700, shift=0.0):
    return Sample(seed, rng.normal(size=members) + shift, rng.normal(size=nonmembers), np.arange(nonmembers))


def units(purpose, n=5, **kinds):
    rng = numpy_rng(0, purpose)
    return [unit(rng, seed, **kinds) for seed in range(n)]


def hits_by_hand(units, j):
    """Members above the j-th largest non-member, each non-member on the scale of the others of its unit, one by one."""
    pool = []
    for u in units:
        for i, score in enumerate(u.nonmember):
            others = np.delete(u.nonmember, i)
            pool.append((score - others.mean()) / others.std(ddof=1))
    threshold = sorted(pool, reverse=True)[j - 1]
    return sum((s - u.nonmember.mean()) / u.nonmember.std(ddof=1) > threshold for u in units for s in u.member)


def test_the_value_without_a_leak_is_the_share_above_the_conformal_threshold():
    found = units("by hand", 3, nonmembers=1000, members=400)  # 3,001 / 1,000: the third largest, and a thousandth of the fourth
    pooled = pooled_tpr(found)
    rate = (0.999 * hits_by_hand(found, 3) + 0.001 * hits_by_hand(found, 4)) / 1200
    assert (pooled.n_members, pooled.n_nonmembers, pooled.allowed) == (1200, 3000, 2)
    assert pooled.value == pytest.approx(rate, rel=0.02)  # the slope is all but 1, and with it the correction


def test_a_nonmember_is_measured_by_the_others():
    """In small units its own outlyingness would hide it: a tenth more strangers would stand above the threshold."""
    found = units("small", 20, nonmembers=100, members=1000)  # 2,001 / 1,000
    near = 0.999 * hits_by_hand(found, 2) + 0.001 * hits_by_hand(found, 3)
    assert pooled_tpr(found).value == pytest.approx(near / 20_000, rel=0.03)


def test_between_two_thresholds_the_hits_are_interpolated():
    found = units("halves", 1, nonmembers=2499, members=2000, shift=2.0)  # .001 x 2,500 = 2.5
    rate = (hits_by_hand(found, 2) + hits_by_hand(found, 3)) / 2 / 2000
    assert pooled_tpr(found).allowed == 1
    assert pooled_tpr(found).value == pytest.approx(rate, rel=0.08)
    assert pooled_tpr(found).value > rate  # a normal shift's ROC is concave, and its share therefore too low


def test_a_units_location_and_scale_do_not_matter():
    found = units("moved", shift=2.0)
    moved = [replace(u, member=a * u.member + b, nonmember=a * u.nonmember + b)
             for u, a, b in zip(found, (1, 8, 0.25, 64, 2), (0, 3, -100, 5, 7), strict=True)]  # fmt: skip
    before, after = pooled_tpr(found), pooled_tpr(moved)
    assert (after.value, after.low, after.high) == pytest.approx((before.value, before.low, before.high))


def test_fewer_than_1999_nonmembers_say_nothing():
    rng = numpy_rng(0, "few")
    assert pooled_tpr([unit(rng, nonmembers=1000), unit(rng, nonmembers=998)]) is None
    assert pooled_tpr([unit(rng, nonmembers=1000), unit(rng, nonmembers=999)]).allowed == 1
    assert pooled_tpr([]) is None


def test_no_hits_leave_room_above_and_none_below():
    found = [replace(u, member=u.member - 20) for u in units("nothing", nonmembers=4000)]
    pooled = pooled_tpr(found)
    poisson = chi2.ppf(0.95, 2) / 2 / 250  # mid-P: the rate at which half of the cases without a hit are 2.5 %
    assert (pooled.value, pooled.low) == (0, 0)
    assert poisson < pooled.high < 1.5 * poisson
    assert pooled_tpr(found[:1]).high > 3 * pooled.high  # fewer members and a vaguer threshold


def test_all_hits_leave_room_below_and_none_above():
    pooled = pooled_tpr([replace(u, member=u.member + 100) for u in units("everything")])
    assert (pooled.value, pooled.high) == (1, 1)
    assert 0.98 < pooled.low < 1


def test_constant_scores_are_no_hits():
    flat = [replace(u, member=np.full(50, 0.1), nonmember=np.full(700, 0.1)) for u in units("flat")]
    assert pooled_tpr(flat).value == 0
    mixed = units("flat")[:3] + flat[3:]
    assert pooled_tpr(mixed).value < 0.05


@pytest.mark.parametrize("share", [0.01, 0.3, 0.7])
def test_ties_count_against_the_attack(share):
    """Two values: no threshold separates a member of the upper one from the non-members there, however many these are."""
    rng = numpy_rng(0, "ties")
    tied = [replace(u, member=np.ones(50), nonmember=(rng.random(700) < share) * 1.0) for u in units("ties", 1, nonmembers=700)]
    tied = [replace(tied[0], seed=s) for s in range(5)]
    assert pooled_tpr(tied).value == 0


def test_ties_below_the_mean_count_against_the_attack_too():
    rare = np.r_[1.0, np.zeros(2999)]  # 5 of 15,000 stand out and 15 are expected: the threshold lies among the others
    assert pooled_tpr([Sample(seed, np.zeros(50), rare, np.arange(3000)) for seed in range(5)]).value == 0


def test_one_hit_has_a_lower_limit_of_five_percent():
    """Nothing so low is ever missed on the high side, so the lower limit has the whole 5 % (Poisson, mid-P)."""
    found = [replace(u, member=np.full(50, -20.0)) for u in units("one", nonmembers=20_000)]
    found[0].member[7] = 20
    low = 250 * pooled_tpr(found).low
    assert 1 - np.exp(-low) - low * np.exp(-low) / 2 == pytest.approx(0.05, rel=0.1)


def test_one_sample_under_many_targets_is_not_many_samples():
    rng = numpy_rng(0, "clusters")
    shared = rng.normal(size=2000)
    same = [Sample(0, rng.normal(size=100), shared, np.arange(2000)) for _ in range(4)]
    several = [replace(u, seed=seed) for seed, u in enumerate(same)]
    assert pooled_tpr(same).value == pytest.approx(pooled_tpr(several).value, rel=0.2)
    assert pooled_tpr(same).high > 1.3 * pooled_tpr(several).high


def test_seeds_that_differ_widen_the_interval():
    def found(shifts):
        rng = numpy_rng(0, "seeds")
        return pooled_tpr([unit(rng, seed, 500, 2000, shift) for seed, shift in enumerate(shifts)])

    alike, apart = found([2.0] * 5), found([0.5, 1.2, 2.0, 2.5, 3.0])
    assert apart.high - apart.low > 1.5 * (alike.high - alike.low)


@pytest.mark.parametrize(
    "change",
    [
        {"ids": np.arange(3)},
        {"member": np.array([])},
        {"member": np.array([np.nan])},
        {"nonmember": np.zeros(2), "ids": np.arange(2)},
    ],
)
def test_what_cannot_be_judged_is_refused(change):
    with pytest.raises(ValueError):
        pooled_tpr([replace(u, **change) for u in units("wrong")])


def test_the_fpr_has_a_range():
    for fpr in (0, 0.06, -1):
        with pytest.raises(ValueError):
            pooled_tpr(units("range"), fpr)


@given(st.integers(0, 2**32), st.integers(1, 5), st.floats(-3, 8), st.sampled_from([0, 1, 3]), st.floats(0.002, 0.05))
@settings(max_examples=150, deadline=None)
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
    null, leak = tf01.simulate(tf01.DESIGNS[0], "normal", (0.001, 0.02), 250, rng)
    assert abs(null.bias) < 0.2 and abs(leak.bias) < 0.1  # standard errors .07 and .03
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
