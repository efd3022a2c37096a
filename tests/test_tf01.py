"""TF01 of several units together, and the ROC curves beside it: values against slow references,
limits, refusals.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from fedbench.core.numerics.rng import numpy_rng
from fedbench.leaderboard.statistics.roc import roc_band
from fedbench.leaderboard.statistics.tf01 import (
    Sample,
    aligned_rate,
    low_rate,
    ranks_of,
    tf01_of,
)


def unit(rng, seed=0, members=50, nonmembers=700, shift=0.0):
    return Sample(
        seed, rng.normal(size=members) + shift, rng.normal(size=nonmembers), np.arange(nonmembers)
    )


def units(purpose, n=5, **kinds):
    rng = numpy_rng(0, purpose)
    return [unit(rng, seed, **kinds) for seed in range(n)]


def small(rng, seeds=5, targets=5, members=60, sizes=(34, 40, 48, 56, 62), shift=0.0, shared=False):
    """Units of unequal size, place and scale."""
    found = []
    for i in range(seeds * targets):
        one = unit(rng, i // targets, members, sizes[i % targets % len(sizes)], shift)
        place, scale = 5 * rng.normal(), np.exp(rng.normal())
        ids = one.ids + (0 if shared else 1000 * (i % targets))
        found.append(
            Sample(one.seed, place + scale * one.member, place + scale * one.nonmember, ids)
        )
    return found


def rounded(units, decimals):
    return [
        replace(u, member=u.member.round(decimals), nonmember=u.nonmember.round(decimals))
        for u in units
    ]


# ---------------------------------------------------------------- thresholds of the units' own


@pytest.mark.parametrize(
    ("nonmembers", "shift", "ranks"),
    [
        # 3,000 / 1,000: the third largest; halfway between the second and the third
        (2999, 0.0, (3,)),
        (2499, 2.0, (2, 3)),
    ],
)
def test_with_enough_nonmembers_it_is_the_share_above_each_units_own_threshold(
    nonmembers, shift, ranks
):
    found = units("by hand", 3, nonmembers=nonmembers, members=2000, shift=shift)
    rate = np.mean([u.member > sorted(u.nonmember)[-j] for u in found for j in ranks])
    assert ranks_of(found).value == pytest.approx(rate)


# (value, low, high) as the simulations of bias and coverage have judged them: a change of one of
# them changes boards
EXACT = {
    "shared non-members": (
        lambda rng: [unit(rng, s // 2, 200, 1500, 1.5) for s in range(6)],
        0.075856667,
        0.010655855,
        0.17358686,
    ),
    "one threshold, shared": (
        lambda rng: small(rng, 3, 9, 90, (60,), 1.5, shared=True),
        0.023122222,
        0,
        0.093317231,
    ),
}


@pytest.mark.parametrize("case", EXACT)
def test_value_and_limits_are_those_that_the_simulations_judged(case):
    made, *expected = EXACT[case]
    pooled = ranks_of(made(numpy_rng(0, case)))
    assert [pooled.value, *pooled.limits] == pytest.approx(expected, rel=1e-6)


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.integers(1999, 9000), st.floats(0, 4))
def test_the_limits_of_one_unit_are_of_mixtures_over_the_nonmembers_above_the_true_threshold(
    key, n, shift
):
    """Poisson weights of shares that are exact (Clopper & Pearson) at that number, and at one
    more.
    """
    one = unit(np.random.default_rng(key), nonmembers=n, shift=shift)
    hits = [0, *(np.count_nonzero(one.member > x) for x in sorted(one.nonmember)[:-60:-1])]
    ends = [
        lambda x, c: stats.beta.cdf(x, c, 51 - c) if c else x >= 0,
        lambda x, c: stats.beta.cdf(x, c + 1, 50 - c) if c < 50 else x >= 1,
    ]
    pooled = ranks_of([one])
    for more, (found, level) in enumerate(zip(pooled.limits, (0.025, 0.975), strict=True)):
        below, above = (
            sum(stats.poisson.pmf(j, 0.001 * n) * ends[more](x, hits[j + more]) for j in range(50))
            for x in (0.8 * found - 1e-3, 1.2 * found + 3e-3)
        )
        if found != pooled.value:  # an interval never ends on the wrong side of its own value
            assert below <= level <= above


def test_a_steep_roc_is_in_the_interval_and_where_all_are_found_its_lower_end_is_high():
    """Every tenth unit's members are above all its non-members, as where a threshold's own rate
    happens to be high.
    """
    rng = numpy_rng(0, "steep")
    pooled = ranks_of([unit(rng, s, nonmembers=2000, shift=20.0 * (s < 1) - 10) for s in range(10)])
    assert pooled.value == pytest.approx(0.1) and pooled.limits[0] == 0
    every = ranks_of(units("everything", nonmembers=9999, shift=100))
    assert every.value == every.limits[1] == 1 and 0.85 < every.limits[0] < 1


def test_no_hits_leave_room_above_and_none_below():
    none = ranks_of(units("nothing", nonmembers=4000, shift=-20))
    assert (none.value, *none.limits) == (
        0,
        0,
        pytest.approx(stats.beta.ppf(0.975, 1, 250), rel=0.1),
    )


@pytest.mark.parametrize("share", [0.0, 0.01])
def test_no_member_is_above_a_nonmember_of_the_same_score(share):
    rng = numpy_rng(0, "ties")
    tied = [
        Sample(s, np.full(50, float(share > 0)), (rng.random(1200) < share) * 1.0, np.arange(1200))
        for s in range(5)
    ]
    assert ranks_of(tied).value == 0


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([1998], False),
        ([1999], True),
        ([999] * 3, True),
        ([998] + [2000] * 9, False),
        ([], False),
    ],
)
def test_a_rate_needs_1999_nonmembers_and_999_of_each_unit(sizes, expected):
    made = [unit(numpy_rng(0, "few"), nonmembers=n) for n in sizes]
    assert (ranks_of(made) is not None) == expected


KEYS, SHIFTS = st.integers(0, 2**32), st.floats(-3, 8)
DECIMALS = st.sampled_from([0, 1, 3])


# ---------------------------------------------------------------- one threshold for all


def aligned_by_hand(unit):
    """Members on the scale of all non-members, a non-member on that of the others."""
    others = [np.delete(unit.nonmember, i) for i in range(len(unit.nonmember))]
    member = (unit.member - unit.nonmember.mean()) / unit.nonmember.std(ddof=1)
    return member, np.array(
        [(x - o.mean()) / o.std(ddof=1) for x, o in zip(unit.nonmember, others, strict=True)]
    )


@settings(max_examples=30)
@given(
    KEYS, st.integers(3, 60), st.integers(1, 9), st.sampled_from([0, 1, 8]), st.floats(-1e6, 1e6)
)
def test_the_common_scale_is_that_of_the_other_nonmembers(key, n, m, decimals, place):
    rng = np.random.default_rng(key)
    scores = (rng.normal(size=n + m) * np.exp(rng.normal())).round(decimals) + place
    one = Sample(0, scores[n:], scores[:n], np.arange(n))
    assume(len(set(one.nonmember.tolist())) > 2)  # then the others of each vary
    for found in (one.aligned, one.signed(-1).aligned.signed(-1)):
        for part, expected in zip(
            (found.member, found.nonmember), aligned_by_hand(one), strict=True
        ):
            np.testing.assert_allclose(part, expected, rtol=1e-5, atol=1e-5)


def test_where_no_nonmember_differs_a_member_that_does_is_farthest_away():
    found = Sample(0, np.array([2.0, 2.5, 1.0]), np.full(40, 2.0), np.arange(40)).aligned
    assert (found.nonmember == 0).all() and found.member.tolist() == [0, 1e300, -1e300]
    lone = Sample(0, np.array([9.0]), np.array([1.0] * 39 + [9.0]), np.arange(40)).aligned
    # a member like the one that stands out is below it
    assert lone.nonmember[-1] > 1e200 > lone.member[0]


def test_the_aligned_rate_is_the_share_above_one_threshold_whatever_place_and_scale():
    # 2,995 together
    found = small(numpy_rng(0, "by hand"), members=2000, sizes=(119, 120, 120, 120, 120), shift=1.0)
    member, nonmember = (
        np.concatenate(part) for part in zip(*map(aligned_by_hand, found), strict=True)
    )
    pooled = ranks_of(found)
    # between the third and the second; the curve is concave
    assert pooled.value == pytest.approx(np.mean(member > np.sort(nonmember)[-3]), rel=0.12)
    moved = [
        replace(u, member=1e3 * i + 2**i * u.member, nonmember=1e3 * i + 2**i * u.nonmember)
        for i, u in enumerate(found)
    ]
    again = ranks_of(moved)
    assert (again.value, *again.limits) == pytest.approx((pooled.value, *pooled.limits))


@pytest.mark.parametrize(
    ("sizes", "seeds", "expected"),
    [
        ([39] * 25, 5, False),
        ([29] + [60] * 24, 5, False),
        ([30] + [40] * 25, 3, True),
        ([500] * 4, 2, False),
    ],
)
def test_units_are_aligned_from_999_nonmembers_30_of_each_and_three_seeds_on(
    sizes, seeds, expected
):
    made = [unit(numpy_rng(0, "few", i), i % max(seeds, 1), 9, n) for i, n in enumerate(sizes)]
    assert (ranks_of(made) is not None) == expected


@settings(max_examples=20)
@given(KEYS, SHIFTS, DECIMALS, st.booleans())
def test_limits_of_aligned_rates_stand_around_the_value_that_the_rate_for_a_choice_has(
    key, shift, decimals, shared
):
    rng = np.random.default_rng(key)
    sizes = tuple(rng.integers(85, 120, size=3))
    found = rounded(small(rng, 5, 3, int(rng.integers(1, 40)), sizes, shift, shared), decimals)
    pooled = ranks_of(found)
    low, high = pooled.limits
    assert 0 <= low <= pooled.value <= high <= 1 and low < high
    # units of one threshold are one in the limits, as they are apart
    apart = replace(pooled, nonmembers=[n.copy() for n in pooled.nonmembers])
    assert apart.limits == pooled.limits
    for fold in {u.seed for u in found}:
        elsewhere = [u for u in found if u.seed != fold]
        expected = pytest.approx(ranks_of(elsewhere).value, rel=1e-9, abs=1e-12)
        assert aligned_rate(elsewhere) == expected


# ---------------------------------------------------------------- as a board shows it


def test_a_rate_counts_as_many_units_as_it_has_samples_unless_told_otherwise():
    samples = [unit(numpy_rng(0, "many"), 0, 9, 1200, 99) for _ in range(3)]
    assert tf01_of(samples).n == 3 and tf01_of(samples, n=5).n == 5


def test_units_too_small_for_own_thresholds_have_one_for_all_and_a_rate_at_a_higher_fpr():
    samples = units("small", nonmembers=400, members=500, shift=1.0)
    assert tf01_of(samples).mean == 100 * ranks_of(samples).value
    assert tf01_of(samples[:2]) is None
    shares = [np.mean(u.member > u.nonmember.max()) for u in samples]  # at 1 / 401
    assert low_rate(samples) == pytest.approx(np.mean(shares))


@pytest.mark.parametrize("n", [18, 19, 48])  # 2 / 49 x 49 is less than 2 by rounding
def test_a_rate_for_a_choice_is_at_a_higher_false_positive_rate_where_nonmembers_are_few(n):
    samples = [unit(numpy_rng(0, "few"), 0, 9, n, 99)]
    assert (
        low_rate(samples) == pytest.approx(0 if n < 19 else 1, abs=0.01)
        and tf01_of(samples) is None
    )


# ---------------------------------------------------------------- ROC curves

GRID = np.geomspace(0.01, 0.5, 9)


def section(units, sign):
    """Of one row and attack, with scores of that sign."""
    parts = [
        SimpleNamespace(fold=u.seed, entries={("row", "attack"): SimpleNamespace(sample=u)})
        for u in units
    ]
    leak = SimpleNamespace(signs=dict.fromkeys(range(9), sign))
    leaks = SimpleNamespace(parts=parts, of=lambda *_: leak)
    return SimpleNamespace(comparison=SimpleNamespace(leaks=leaks))


@pytest.mark.parametrize(
    ("seeds", "targets", "sign", "low", "high"),
    [
        (1, 1, 1, 0.19652995, 0.39013671),
        (1, 4, -1, 0.25219611, 0.39447056),
        (3, 2, 1, 0.17347892, 0.42207663),
    ],
)
def test_the_band_is_around_the_mean_curve_with_ends_as_its_simulations_judged_them(
    seeds, targets, sign, low, high
):
    rng = numpy_rng(0, "band")
    made = [unit(rng, i // targets, 150, 500, 1.0) for i in range(seeds * targets)]
    # share of members above the threshold that so many non-members are above
    curves = [
        [np.mean(u.member > np.sort(u.nonmember)[-int(500 * f + 1e-9) - 1]) for f in GRID]
        for u in made
    ]
    shown = section([u if sign > 0 else u.signed(-1) for u in made], sign)
    band = roc_band(shown, "row", "attack", GRID)
    assert band.mean == pytest.approx(np.mean(curves, axis=0))
    assert (band.low[4], band.high[4]) == pytest.approx((low, high), rel=1e-6)
    assert (
        (band.low >= 0).all()
        and (band.low <= band.mean).all()
        and (band.mean <= band.high).all()
        and (band.high <= 1).all()
    )
    assert (
        roc_band(shown, "another", "attack", GRID) is None
        and roc_band(shown, "row", "another", GRID) is None
    )
