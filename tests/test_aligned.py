"""TF01 of units too small for thresholds of their own: the common scale against a slow reference, value, limits, simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from boards import Folder, board, rows_of, sections_of
from hypothesis import assume, given
from hypothesis import strategies as st

from fedbench.core.numerics.rng import numpy_rng
from fedbench.leaderboard.simulations import tf01_small, tf01_thinned
from fedbench.leaderboard.statistics.aligned import alignable, aligned_tpr, values_elsewhere
from fedbench.leaderboard.statistics.pareto import trade_off
from fedbench.leaderboard.statistics.pooled import pooled_tpr
from fedbench.leaderboard.statistics.sample import Sample, align, align_all


def units(rng, seeds=5, targets=5, members=60, sizes=(34, 40, 48, 56, 62), shift=0.0, shared=False):
    """Units of unequal size, place and scale."""
    found = []
    for seed in range(seeds):
        for t in range(targets):
            n, place, scale = sizes[t % len(sizes)], 5 * rng.normal(), np.exp(rng.normal())
            member, nonmember = place + scale * (rng.normal(size=members) + shift), place + scale * rng.normal(size=n)
            found.append(Sample(seed, member, nonmember, np.arange(n) + (0 if shared else 1000 * t)))
    return found


def aligned_by_hand(unit):
    """One by one: members by all non-members, a non-member by the others."""
    member = [(x - np.mean(unit.nonmember)) / np.std(unit.nonmember, ddof=1) for x in unit.member]
    nonmember = []
    for i, x in enumerate(unit.nonmember):
        others = np.delete(unit.nonmember, i)
        nonmember.append((x - np.mean(others)) / np.std(others, ddof=1))
    return np.array(member), np.array(nonmember)


@given(st.integers(0, 2**32), st.integers(3, 60), st.integers(1, 9), st.sampled_from([0, 1, 8]), st.floats(-1e6, 1e6))
def test_the_common_scale_is_that_of_the_other_nonmembers(key, n, m, decimals, place):
    rng = np.random.default_rng(key)
    scores = (rng.normal(size=n + m) * np.exp(rng.normal())).round(decimals) + place
    unit = Sample(0, scores[n:], scores[:n], np.arange(n))
    assume(len(set(unit.nonmember.tolist())) > 2)  # then the others of each vary
    member, nonmember = aligned_by_hand(unit)
    found = align(unit)
    np.testing.assert_allclose(found.member, member, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.nonmember, nonmember, rtol=1e-5, atol=1e-5)


@given(st.integers(0, 2**32), st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5)), max_size=8))
def test_units_aligned_at_once_or_negated_have_the_bits_of_each_by_itself(key, sizes):
    rng = np.random.default_rng(key)
    found = [Sample(i, rng.normal(size=m), rng.normal(size=n).round(1), np.arange(n)) for i, (m, n) in enumerate(sizes)]
    align_all(found)
    for unit in found:
        assert ("aligned" in vars(unit)) == (len(unit.nonmember) > 2)
        if len(unit.nonmember) > 2:
            other = Sample(unit.seed, -unit.member, -unit.nonmember, unit.ids)
            for one, two in ((unit.aligned, align(unit)), (unit.negated().aligned, align(other))):
                assert np.array_equal(one.member, two.member) and np.array_equal(one.nonmember, two.nonmember)


def test_where_nothing_varies_what_differs_stands_out_and_what_does_not_is_no_hit():
    flat = Sample(0, np.array([2.0, 2.5, 1.0]), np.full(40, 2.0), np.arange(40))
    found = align(flat)
    assert (found.nonmember == 0).all() and found.member[0] == 0 and found.member[1] > 1e200 and found.member[2] < -1e200
    huge = align(replace(flat, nonmember=np.arange(40) * 1e200, member=np.array([1e202])))
    assert huge.member[0] == pytest.approx(align(replace(flat, nonmember=np.arange(40.0), member=np.array([100.0]))).member[0])
    lone = align(Sample(0, np.array([9.0]), np.array([1.0] * 39 + [9.0]), np.arange(40)))
    assert lone.nonmember[-1] > 1e200 > lone.member[0]  # a member like the one non-member that stands out is below it


def test_place_and_scale_of_a_unit_do_not_matter_and_other_units_do():
    rng = numpy_rng(0, "moved")
    found = units(rng, shift=2.0)
    moved = [replace(u, member=1e3 * i + 2**i * u.member, nonmember=1e3 * i + 2**i * u.nonmember) for i, u in enumerate(found)]
    one, other = aligned_tpr(found), aligned_tpr(moved)
    assert (one.value, one.low, one.high) == pytest.approx((other.value, other.low, other.high))
    assert one.n_nonmembers == sum(len(u.nonmember) for u in found) and one.n_members == 25 * 60


def test_the_value_is_the_share_of_all_members_above_one_threshold():
    rng = numpy_rng(0, "by hand")
    found = units(rng, members=2000, sizes=(119, 120, 120, 120, 120), shift=1.0)  # 2,995: the third largest of all
    member, nonmember = (np.concatenate(part) for part in zip(*map(aligned_by_hand, found), strict=True))
    by_hand = np.mean(member > np.sort(nonmember)[-3])
    assert aligned_tpr(found).value == pytest.approx(by_hand, rel=0.12)  # between the third and the second; a concave curve
    assert aligned_tpr(found).nearest == pytest.approx(0.001)


def test_without_a_leak_it_is_one_in_a_thousand_where_scores_standardised_by_themselves_see_one():
    rng = numpy_rng(0, "no leak")
    shares = []
    for _ in range(400):
        found = units(rng, members=40, sizes=(34,))
        by_others, by_themselves = [(a.member, a.nonmember) for a in map(align, found)], [standardised(u) for u in found]
        shares.append([above_all(by_others), above_all(by_themselves)])
    by_others, by_themselves = np.mean(shares, axis=0) * 851  # over what is expected above the largest of 850
    assert 0.8 < by_others < 1.2 and by_themselves > 1.7


def standardised(unit):
    """Members and non-members alike, by all non-members."""
    place, scale = unit.nonmember.mean(), unit.nonmember.std(ddof=1)
    return (unit.member - place) / scale, (unit.nonmember - place) / scale


def above_all(pairs):
    """Share of all members above the largest of all non-members."""
    return np.mean(np.concatenate([member for member, _ in pairs]) > max(nonmember.max() for _, nonmember in pairs))


def test_with_scales_of_their_own_the_widest_unit_would_hide_the_members_of_all_others():
    found = units(numpy_rng(0, "leak"), members=200, shift=3.0)
    assert aligned_tpr(found).value > 5 * above_all([(u.member, u.nonmember) for u in found]) > 0


def test_seeds_that_differ_and_samples_that_are_shared_widen_the_interval():
    rng = numpy_rng(0, "seeds")
    alike = units(rng, members=300, sizes=(60,), shift=1.0)
    apart = [replace(u, member=u.member + (u.seed - 2) * u.nonmember.std()) for u in alike]
    one, other = aligned_tpr(alike), aligned_tpr(apart)
    assert other.high / other.low > 1.3 * one.high / one.low
    first = {u.seed: u for u in reversed(alike)}  # one hold-out for all targets of a seed
    copies = [Sample(u.seed, rng.normal(size=300) + 2.0, align(first[u.seed]).nonmember, np.arange(60)) for u in alike]
    shared, several = aligned_tpr(copies), aligned_tpr([replace(u, ids=u.ids + 100 * i) for i, u in enumerate(copies)])
    assert shared.value == several.value and shared.high / shared.low > 1.04 * several.high / several.low


def test_how_few_are_too_few():
    assert alignable([40] * 25, 5) and not alignable([39] * 25, 5) and not alignable([29] + [60] * 24, 5)
    assert not alignable([500] * 4, 2) and not alignable([], 0)
    rng = numpy_rng(0, "few")
    assert aligned_tpr(units(rng, sizes=(30,))) is None and aligned_tpr(units(rng, sizes=(40,))) is not None
    assert aligned_tpr(units(rng, seeds=2, sizes=(400,))) is None
    few = units(rng, seeds=2, sizes=(40,), shift=9.0)
    assert min(values_elsewhere(few, [u.seed for u in few]).values()) > 0.9 and values_elsewhere([], []) == {}
    assert values_elsewhere(few[:5], [0] * 5) == {0: 0}
    assert values_elsewhere(units(rng, 1, 2, sizes=(9,), shift=9.0), [0, 1]) == {0: 0, 1: 0}
    with pytest.raises(ValueError, match="not finite"):
        aligned_tpr([replace(u, member=np.array([np.nan])) for u in units(rng)])


@given(st.integers(0, 2**32), st.floats(-3, 8), st.sampled_from([0, 1, 3]), st.floats(0.002, 0.05))
def test_elsewhere_is_what_all_other_folds_give_by_themselves(key, shift, decimals, fpr):
    rng = np.random.default_rng(key)
    found = units(rng, 5, 3, int(rng.integers(1, 40)), tuple(rng.integers(30, 90, size=3)), shift)
    found = [replace(u, member=u.member.round(decimals), nonmember=u.nonmember.round(decimals)) for u in found]
    others = {seed: aligned_tpr([u for u in found if u.seed != seed], fpr) for seed in range(5)}
    assume(all(other is not None for other in others.values()))
    values = values_elsewhere(found, [u.seed for u in found], fpr)
    assert values == {seed: pytest.approx(other.value, rel=1e-9, abs=1e-12) for seed, other in others.items()}


@given(st.integers(0, 2**32), st.floats(-3, 8), st.sampled_from([0, 1, 3]), st.floats(0.002, 0.05), st.booleans())
def test_limits_stand_around_the_value(key, shift, decimals, fpr, shared):
    rng = np.random.default_rng(key)
    sizes = tuple(rng.integers(30, 90, size=3))
    found = units(rng, 3, 3, int(rng.integers(1, 40)), sizes, shift, shared)
    rounded = [replace(u, member=u.member.round(decimals), nonmember=u.nonmember.round(decimals)) for u in found]
    pooled = aligned_tpr(rounded, fpr)
    assume(pooled is not None)
    assert 0 <= pooled.low <= pooled.value <= pooled.high <= 1 and pooled.low < pooled.high


# ---------------------------------------------------------------- on a board


def test_a_board_of_small_targets_has_tf01_and_says_how(tmp_path):
    folder = Folder(tmp_path / "small", {"none": 2.0, "mixup": 0.1}, n_ofl=150).fill(seeds=range(5))  # 10 x 150
    (section,) = sections_of(folder)
    assert section.contest.aligned()
    samples = section.contest._samples("none", section.contest.worst("none").picks)
    assert pooled_tpr(samples) is None
    found = section.contest.worst_tf01("none").found
    assert found.ends == (100 * aligned_tpr(samples).low, 100 * aligned_tpr(samples).high) and found.n == 10
    text = board(folder)
    assert {r["worst TF01 (%)"] for r in rows_of(text, "**Ranking**")} & {"n/a"} == set()
    note = "TF01: targets and seeds pooled, aligned and with one threshold, since 150 non-members each are too few"
    assert text.count(note) == 3  # at a glance, ranking, by attack
    assert trade_off(section).loss == "auc"  # points have no intervals


def test_targets_with_thresholds_of_their_own_keep_them_and_the_board_says_so(tmp_path):
    folder = Folder(tmp_path / "large", {"none": 2.0, "mixup": 0.1}, n_ofl=400).fill(seeds=range(5))
    (section,) = sections_of(folder)
    samples = section.contest._samples("none", section.contest.worst("none").picks)
    assert not section.contest.aligned() and section.contest.worst_tf01("none").found.mean == 100 * pooled_tpr(samples).value
    assert board(folder).count("TF01: targets and seeds pooled, each with a threshold of its own.") == 4  # and trade_off


# ---------------------------------------------------------------- the simulation


def test_bias_and_coverage_of_small_units():
    rng = numpy_rng(0, "quick small units")
    null, leak = tf01_small.simulate(tf01_small.DESIGNS[0], "normal", (0.001, 0.02), 120, rng)
    assert abs(null.bias) < 0.3 and -0.45 < leak.bias < 0.1  # what the committed tables say, and twice their error
    assert min(null.coverage, leak.coverage) > 0.92
    (null,) = tf01_small.simulate(tf01_small.DESIGNS[2], "unlike", (0.001,), 120, rng)
    assert abs(null.bias) < 0.3 and null.coverage > 0.92


def test_the_tables_have_a_row_a_cell(capsys):
    tf01_small.main(["--quick"])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + len(tf01_small.DESIGNS) * len(tf01_small.TAILS) * len(tf01_small.RATES)


def test_thinned_boards_are_compared_with_themselves_in_full(tmp_path, capsys):
    Folder(tmp_path / "full", {"none": 2.0, "mixup": 0.0}, n_ofl=400).fill(seeds=range(5))
    Folder(tmp_path / "small", {"none": 2.0}, n_ofl=100).fill(seeds=range(5))  # says nothing in full
    tf01_thinned.main([str(tmp_path / "full"), str(tmp_path / "small")])
    lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[4:]]
    assert lines[0] == "Boards: full, small." and sum(int(row[1]) for row in rows) == 4  # two rows and two attacks
    for band, _, full, aligned, inside in rows:
        low, high = map(float, band.split(" to "))
        assert low <= float(full) <= high and 0 <= float(aligned) <= 100 and float(inside) >= 66
