"""CoFedMID's plan of classes: how many each member has, which ones, and what cannot be had."""

from __future__ import annotations

import json

import numpy as np
import pytest
from coalitions import ONLY_PARTITION, begun, coalition, facts
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fedbench.core import UserError
from fedbench.plugins.defenses.cofedmid import CoFedMID, partition, planning


def overlap_bound(classes: int, members: int, m: int) -> int:
    """lambda_theo: no assignment has a smaller largest pairwise overlap.

    ``classes`` N, ``members`` d >= 2, ``m`` classes each: ceil((d m^2 - N m) / (N (d - 1))), at least 0.
    Source: CoFedMID section 4.1 and appendix A.
    """
    return max(0, -((classes * m - members * m * m) // (classes * (members - 1))))


@pytest.mark.parametrize(
    ("classes", "members", "m", "bound"),
    [(100, 2, 50, 0), (100, 5, 50, 19), (100, 10, 50, 23), (100, 10, 20, 3), (10, 2, 10, 10), (10, 10, 10, 10),
     (10, 10, 2, 1), (200, 10, 40, 5), (100, 5, 20, 0)],
)  # fmt: skip
def test_overlap_bound_of_known_cases(classes, members, m, bound):
    assert overlap_bound(classes, members, m) == bound


@given(st.integers(1, 24), st.integers(2, 8), st.data(), st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_balanced_assignment_has_least_total_overlap_and_covers_what_it_can(classes, members, data, seed):
    m = data.draw(st.integers(1, classes))
    held = partition.assign_balanced(classes, members, m, np.random.default_rng(seed))
    assert (held.sum(1) == m).all()
    multiplicity = held.sum(0)
    assert np.ptp(multiplicity) <= 1
    assert (multiplicity > 0).sum() == min(classes, members * m)
    pairs = [int((held[i] & held[j]).sum()) for i in range(members) for j in range(i)]
    assert max(pairs) >= overlap_bound(classes, members, m)
    random = partition.assign_random(classes, members, m, np.random.default_rng(seed))
    assert (random.sum(1) == m).all()
    assert sum(pairs) <= sum(int((random[i] & random[j]).sum()) for i in range(members) for j in range(i))


def test_balanced_assignment_keeps_the_largest_overlap_near_its_bound():
    for classes, members, m in [(100, 5, 50), (100, 10, 50), (100, 10, 20), (10, 10, 2), (200, 10, 40)]:
        held = partition.assign_balanced(classes, members, m, np.random.default_rng(0)).astype(int)
        shared = held @ held.T
        np.fill_diagonal(shared, 0)
        assert shared.max() <= 1.25 * overlap_bound(classes, members, m) + 2


@pytest.mark.parametrize("decay", ["linear", "cosine", "exponential", "polynomial"])
def test_subsets_shrink_from_m_max_to_m_min(decay):
    sizes = [partition.subset_size(t, 100, 50, 20, decay, "nearest") for t in range(1, 101)]
    assert sizes[0] == 50 and sizes[-1] == 20
    assert sizes == sorted(sizes, reverse=True)


def test_subset_sizes_are_linear_and_round_a_half_up():
    assert [partition.subset_size(t, 11, 10, 2, "linear", "nearest") for t in (1, 2, 6, 10, 11)] == [10, 9, 6, 3, 2]
    sizes = {how: partition.subset_size(2, 3, 4, 1, "linear", how) for how in ("nearest", "floor", "ceil")}
    assert sizes == {"nearest": 3, "floor": 2, "ceil": 3}  # 2.5 classes
    assert partition.subset_size(1, 1, 10, 2, "linear", "nearest") == 10


@pytest.mark.parametrize(
    ("classes", "m_max", "m_min", "rounding", "first"),
    [(100, 50, 20, "floor", 2), (100, 50, 20, "nearest", 3), (200, 200, 40, "floor", 63), (200, 200, 40, "nearest", 64),
     (10, 10, 2, "floor", 63), (10, 10, 2, "nearest", 70)],
)  # fmt: skip
def test_two_members_stop_covering_all_classes_where_expected(classes, m_max, m_min, rounding, first):
    sizes = [partition.subset_size(t, 100, m_max, m_min, "linear", rounding) for t in range(1, 101)]
    assert next(t for t, m in enumerate(sizes, 1) if 2 * m < classes) == first
    plan = dict(m_max=m_max, m_min=m_min, m_round=rounding, **ONLY_PARTITION)
    given = dict(rounds=100, n_classes=classes)
    with pytest.raises(UserError, match=f"from round {first} on"):
        begun(given, coverage="strict", **plan)
    a, b = begun(given, **plan).classes[first - 1]
    assert not (a & b).any()  # infeasible: disjoint is the widest cover


def test_the_plan_is_fresh_each_round_and_repeatable():
    plans = [begun(m_max=3, m_min=3, **ONLY_PARTITION).classes for _ in range(2)]
    assert np.array_equal(*plans)
    assert len({p.tobytes() for p in plans[0]}) > 10
    other = CoFedMID(m_max=3, m_min=3, **ONLY_PARTITION)
    other.begin(coalition(key=2))
    assert not np.array_equal(other.classes, plans[0])


# -- shares and numbers of classes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "classes", "found"),
    [(0.5, 10, 5), (0.2, 10, 2), (0.5, 5, 3), (0.2, 12, 2), (0.25, 10, 3), (0.001, 10, 1), (1, 10, 10), (1.0, 7, 7), (2, 10, 2),
     (50, 100, 50), (0.29, 100, 29), (0.35, 10, 4)],
)  # fmt: skip
def test_up_to_one_is_a_share_of_all_classes_rounded_half_up_and_from_two_on_a_number(given, classes, found):
    assert planning.class_count(given, classes) == found
    assert planning.class_limits(CoFedMID(m_max=1, m_min=given).params, classes) == (classes, found)


def test_one_means_all_classes_however_it_is_written():
    written = [CoFedMID(**json.loads(text)).params for text in ('{"m_max": 1}', '{"m_max": 1.0}')]
    assert written[0] == written[1] and len({p.model_dump_json() for p in written}) == 1
    assert planning.sizes(written[0], facts(n_classes=10))[0] == 10


def test_defaults_are_the_shares_and_strengths_of_table_one():
    p = CoFedMID().params
    assert (p.m_max, p.m_min, p.sigma, p.ratio) == (0.5, 0.2, 0.1, 0.2)
    for classes, first, last in ((100, 50, 20), (10, 5, 2), (200, 100, 40)):
        sizes = planning.sizes(p, facts(n_classes=classes, rounds=100))
        assert (sizes[0], sizes[-1]) == (first, last)
    tiny = planning.sizes(CoFedMID(m_max=1.0).params, facts(n_classes=200, rounds=100))
    assert (tiny[0], tiny[-1]) == (200, 40)


@pytest.mark.parametrize("name", ["m_max", "m_min"])
@pytest.mark.parametrize("given", [1.5, 2.5, 1.0001])
def test_between_share_and_number_there_is_nothing(name, given):
    with pytest.raises(ValidationError, match=rf"{given:g} is neither a share of all classes \(at most 1\) nor a number"):
        CoFedMID(**{name: given})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [(dict(partition=False), "switch it off too, or partition on"), (dict(m_max=2, m_min=3), "m_min 3 exceeds m_max 2"),
     (dict(m_max=0.1, m_min=0.3), "m_min 0.3 exceeds m_max 0.1"), (dict(ratio=0), "greater than 0"),
     (dict(sigmas=1), "Extra inputs"), (dict(m_min=0), "greater than 0"), (dict(val_fraction=0.9), "less than or equal to 0.2"),
     (dict(mode="independent", coverage="strict"), "coverage strict is for a coalition to keep")],
)  # fmt: skip
def test_inconsistent_params_are_refused(wrong, said):
    with pytest.raises(ValidationError, match=said):
        CoFedMID(**wrong)


@pytest.mark.parametrize(
    ("params", "said"),
    [(dict(m_max=50), "m_max 50 asks for 50 classes, and there are 5: ask for at most 5"),
     (dict(m_max=1.0, m_min=6), "m_min 6 asks for 6 classes, and there are 5"),
     (dict(m_max=2, m_min=0.9), r"of 5 classes m_min 0\.9 is 5 and m_max 2 is 2.*lower m_min or raise m_max"),
     (dict(m_max=0.5, m_min=4), r"m_min 4 is 4 and m_max 0\.5 is 3"),
     (dict(recycle_from=21), "recycle_from 21 is after the last round, 20: start earlier, or set compensation false")],
)  # fmt: skip
def test_what_the_federation_does_not_have_is_refused_before_anything_is_trained(params, said):
    with pytest.raises(UserError, match=f"cofedmid: .*{said}"):
        CoFedMID(**params).check(facts())


def test_what_a_module_that_is_off_would_need_is_not_asked_for():
    CoFedMID(recycle_from=21, compensation=False).check(facts())
    CoFedMID(m_max=50, partition=False, compensation=False).check(facts())


def test_recycling_starts_in_round_ten_unless_told_and_in_the_last_of_fewer():
    found = [planning.first_recycling(CoFedMID().params, rounds) for rounds in (100, 10, 9, 1)]
    assert found == [10, 10, 9, 1]
    assert [planning.first_recycling(CoFedMID(recycle_from=t).params, 20) for t in (1, 20)] == [1, 20]


def test_strict_coverage_by_one_member_is_refused():
    lone = CoFedMID(coverage="strict", **ONLY_PARTITION)
    with pytest.raises(UserError, match=r"from round 1 on, 1 member x 3 classes cannot cover all 5 classes.*raise m_min"):
        lone.begin(coalition((1,)))
