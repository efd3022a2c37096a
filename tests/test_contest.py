"""What an adversary gets out of each defense: every number by its definition, and what the
definitions are good for.
"""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from boards import Folder, sections_of
from contests import Reference, judged, world
from scipy import stats

from fedbench.core import EXCLUDED, MEMBER, OFL
from fedbench.core.metrics import auc, auc_covariance, t_interval
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.store.record import Utility
from fedbench.leaderboard.statistics.intervals import Estimate, UnitValue, smallest_shown
from fedbench.leaderboard.statistics.paired import difference, differences
from fedbench.plugins.analyses.strengths import PairedDifferences

KIND = np.repeat([MEMBER, OFL], 30)


def of_rows(purpose, leaks, seeds=3, attacks="a", kind=KIND):
    """Scores of one target a seed: label -> leak."""
    rng = numpy_rng(0, purpose)
    return {
        row: {
            a: {s: {0: rng.normal(size=len(kind)) + leak * (kind == MEMBER)} for s in range(seeds)}
            for a in attacks
        }
        for row, leak in leaks.items()
    }


# ---------------------------------------------------------------- definitions


# seeds, targets, decimals of the scores, whether targets share non-members, leak of each row
CASES = {
    "two seeds": (2, 1, 8, True, (1.5, 0.7, 0.3)),
    "shared non-members": (3, 2, 8, True, (1.5, 0.9, 0.9)),
    "own non-members": (3, 2, 8, False, (1.5, 0.9, 0.1)),
    "ties": (4, 2, 0, True, (2.0, 0.2, 1.0)),
    "six seeds": (6, 1, 1, True, (1.0, 0.8, 0.0, -1.0)),
}


def made(seeds, targets, decimals, shared, leaks):
    """(contest, reference) of the same scores, with three attacks: the second finds a third, the
    last the contrary.
    """
    rng, member = numpy_rng(0, "definitions", seeds, targets), np.arange(51) < 20
    common = rng.normal(size=(1, 1, seeds, targets, 51))
    own = rng.normal(size=(len(leaks), 3, seeds, targets, 51))
    of_attack = np.multiply.outer(leaks, [1.0, 0.33, -0.7])[:, :, None, None, None]
    scores = (common + own + of_attack * member).round(decimals)
    rows = ["none", *"xyz"[: len(leaks) - 1]]
    named = {
        row: {
            a: {s: dict(enumerate(of)) for s, of in enumerate(seeds)}
            for a, seeds in zip("abc", attacks, strict=True)
        }
        for row, attacks in zip(rows, scores, strict=True)
    }
    apart = 0 if shared else 1000
    kind = np.where(member, MEMBER, OFL)
    contest = judged(named, kind, ids=lambda seed, target, n: np.arange(n) + apart * target)
    contest.settle()
    return contest, Reference(scores, member, shared)


@pytest.fixture(scope="module")
def both():
    """Name of the case -> (contest, reference)."""
    return {name: made(*case) for name, case in CASES.items()}


def ends(interval):
    return interval.mean, interval.half_width


def numbers(contest):
    """As ``Reference.numbers``."""
    rows = [row.label for row in contest.rows]
    worst = [contest.worst(row) for row in rows]
    tests = contest.pairwise.tests.among(tuple(rows))
    return {
        "signed": [[ends(contest.signed(row, a)) for a in contest.attacks] for row in rows],
        "worst": [(*ends(w.interval), w.largest[1]) for w in worst],
        "mean": [ends(contest.mean(row)) for row in rows],
        "against": [(*ends(d.interval), d.p) for d in contest.against("none").values()],
        "tests": [tests[pair] for pair in combinations(rows, 2)],
    }


@pytest.mark.parametrize("quantity", ["signed", "worst", "mean", "against", "tests"])
def test_every_number_of_a_contest_is_what_its_definition_gives(both, quantity):
    for contest, reference in both.values():
        expected = np.array(reference.numbers()[quantity])
        assert np.array(numbers(contest)[quantity]) == pytest.approx(expected, rel=1e-7, abs=1e-11)


@pytest.mark.parametrize("case", CASES)
def test_attacks_that_count_and_what_is_picked_are_what_their_definitions_give(both, case):
    contest, reference = both[case]
    assert contest.eligible == tuple("abc"[a] for a in reference.eligible())
    for i, row in enumerate(contest.rows):
        found = contest.worst(row.label)
        picked, plain, _ = reference.side(i, reference.eligible())
        expected = [
            ("abc"[a], picked[i, a, s])
            for s in range(picked.shape[2])
            for a in np.flatnonzero(picked[i, :, s])
        ]
        names = [a for a, _ in expected]
        assert list(found.picks.values()) == expected
        assert found.attack == max(names, key=names.count)
        assert found.largest[0] == "abc"[np.flatnonzero(plain[i, :, 0])[0]]


def test_rows_are_tied_by_the_test_of_their_pair_though_their_ranges_overlap():
    """``b`` varies so much that no test distinguishes it, and its place leaves those of ``a`` and
    ``c`` open.
    """
    aucs = np.array([0.9, 0.6, 0.65, 0.7])[:, None, None]
    aucs = aucs + 0.004 * numpy_rng(0, "tied").normal(size=(4, 1, 6))
    aucs[2] += 0.15 * np.array([1, -1, 1, -1, 1, -1])
    contest = world(aucs, 0.004, ["none", "a", "b", "c"])
    assert contest.ranks == {"a": (1, 2), "b": (1, 3), "c": (2, 3), "none": (4, 4)}
    assert {pair for pair in contest.pairwise.better if "none" not in pair} == {("a", "c")}
    assert {row: contest.pairwise.tied(row) for row in "abc"} == {
        "a": ("b",),
        "b": ("a", "c"),
        "c": ("b",),
    }
    assert contest.pairwise.tied("free-rider") == ()


def of_seeds(values, error=0.0):
    """One target a seed."""
    return {(seed, 0): UnitValue(float(v), error) for seed, v in enumerate(values)}


@pytest.mark.parametrize(
    ("values", "error", "expected"),
    [
        ([0.3], 0.01, 1.0),  # one training says nothing of the next
        ([0.0, 0.0], 0.0, 1.0),
        ([0.3, 0.3, 0.3], 0.2, 2 * 0.00468),  # 2.598 errors of the candidates
        ([0.1, 0.3, 0.2], np.nan, 0.0742),  # Student's t of 3.464 with 2 degrees of freedom
    ],
)
def test_a_p_value_needs_two_seeds_and_is_the_larger_of_both_kinds_of_error(
    values, error, expected
):
    assert Estimate(of_seeds(values, error)).p_value() == pytest.approx(expected, rel=0.002)


@pytest.mark.parametrize(("seeds", "tests"), [(2, 1), (5, 1), (5, 10)])
def test_the_smallest_difference_is_shown_with_a_power_of_80_percent(seeds, tests):
    shift = smallest_shown([0.01, 0.07], seeds, tests) / 0.05 * np.sqrt(seeds)
    critical = stats.t.ppf(1 - 0.025 / tests, seeds - 1)
    assert stats.nct.sf(critical, seeds - 1, shift) == pytest.approx(0.8)
    assert smallest_shown([0.02], 1) is smallest_shown([], 5) is None


# ---------------------------------------------------------------- what is chosen, and without what


def test_an_attack_that_is_inverted_under_one_defense_is_a_leak_that_wins_nothing():
    """``flip`` has .35 on every seed, as far from one half as .65."""
    means = np.array([[0.8, 0.75], [0.35, 0.6], [0.6, 0.6]])
    contest = world(
        means[:, :, None] + 0.004 * numpy_rng(0, "inverted").normal(size=(3, 2, 5)),
        0.004,
        ["none", "flip", "calm"],
    )
    assert contest.leaks.of("flip", "attack0").turned
    assert not contest.leaks.of("calm", "attack0").turned
    assert contest.signed("flip", "attack0").mean == pytest.approx(0.65, abs=0.01)
    assert contest.pairwise.leader("attack0") == "calm"
    assert contest.ranks == {"calm": (1, 1), "flip": (2, 2), "none": (3, 3)}


def test_the_attack_for_tf01_is_not_chosen_with_the_scores_of_the_judged_seed():
    rng, kind, moved = numpy_rng(0, "tf01 picks"), np.repeat([MEMBER, OFL], [60, 700]), 0
    for i in range(4):
        scores = of_rows(f"tf01 {i}", {"none": 0.0}, 4, "abc", kind)
        before = judged(scores, kind)
        for a in scores["none"].values():
            a[0] = {0: rng.normal(size=760) + rng.choice([-2, 2]) * (kind == MEMBER)}
        after = judged(scores, kind)
        before.eligible = after.eligible = before.attacks
        one, other = (c.worst_cases.of("none").worst_tf01.picks for c in (before, after))
        assert one[0] == other[0]
        moved += one != other
    assert moved  # the change is large enough to be seen on the other seeds


def test_halves_of_a_single_seed_are_disjoint_and_choose_for_each_other():
    scores = of_rows("halves", {"none": 0.0}, 1)
    contest, own = judged(scores, KIND), scores["none"]["a"][0][0]
    one, two = (p.entries["none", "a"].sample for p in contest.leaks.parts)
    assert not set(one.ids) & set(two.ids) and len(one.ids) == len(two.ids) == len(one.member) == 15
    mine = np.isin(own, np.concatenate([one.member, one.nonmember])) & (KIND == MEMBER)
    for shift in (-5.0, 5.0):
        scores["none"]["a"][0][0] = own + shift * mine
        assert judged(scores, KIND).leaks.of("none", "a").signs == {
            0: contest.leaks.of("none", "a").signs[0],
            1: np.sign(shift),
        }


# ---------------------------------------------------------------- noise


def of_noise(n, rows, attacks, seeds, error=0.03, leak=0.0, common=0.0):
    """Contests of AUCs of 1/2 + leak that vary by .03, with a part that all rows have in common."""
    rng = numpy_rng(0, "noise", rows, attacks)
    for _ in range(n):
        shared, own = rng.normal(size=(1, attacks, seeds)), rng.normal(size=(rows, attacks, seeds))
        contest = world(
            0.5 + leak + 0.03 * (np.sqrt(common) * shared + np.sqrt(1 - common) * own), error
        )
        contest.eligible = contest.attacks
        yield contest


def test_rows_whose_picks_are_below_one_half_are_not_told_apart():
    """Every other seed asks for the wrong sign, so what is picked is .4 and .45, of no leak at
    all.
    """
    contest = world([[[0.6, 0.4, 0.6, 0.4]], [[0.55, 0.45, 0.55, 0.45]]], 1e-4)
    contest.eligible = contest.attacks
    assert contest.worst("row0").interval.mean == pytest.approx(0.4)
    assert set(contest.ranks.values()) == {(1, 2)}


def test_the_worst_case_of_noise_is_all_but_one_half_on_average_and_the_plain_maximum_is_not():
    found = [contest.worst("row0") for contest in of_noise(300, 1, 7, 3)]
    assert 0.5 < np.mean([w.interval.mean for w in found]) < 0.51
    assert np.mean([w.largest[1] for w in found]) > 0.52


@pytest.mark.parametrize(
    ("leak", "seeds", "settled"), [(1.0, 2, True), (0.3, 2, False), (0.0, 6, False)]
)
def test_an_interval_spans_both_signs_unless_the_other_seeds_of_each_settle_it(
    leak, seeds, settled
):
    contest = judged(of_rows("signs", {"none": leak}, seeds), KIND)
    found = contest.signed("none", "a")
    assert contest.settled("none", "a") == settled
    assert settled != (found.low < 1 - found.mean < found.high)
    assert settled != bool(found.ends)


def test_equal_rows_are_given_an_order_in_at_most_five_percent_of_cases():
    """With what is picked alone it would be 18 %."""
    claims = [
        set(c.ranks.values()) != {(1, 5)}
        for c in of_noise(100, 5, 7, 6, error=0.015, leak=0.3, common=0.5)
    ]
    assert np.mean(claims) < 0.05 + 2 * np.sqrt(0.05 * 0.95 / 100)


# ---------------------------------------------------------------- missing cells and few candidates


def everything(contest):
    """Every number of a contest."""
    results = [contest.worst_cases.eligible, contest.pairwise.ranks]
    for row in contest.scores.rows:
        case = contest.worst_cases.of(row.label)
        results += [case.worst, case.worst_tf01, case.mean, contest.pairwise.against(row.label)]
        for attack in contest.attacks:
            cell = contest.leaks.of(row.label, attack)
            results += [cell.auc, cell.tf01, cell.turned]
    return [*results, *map(contest.pairwise.leader, contest.attacks)]


@pytest.mark.parametrize(
    ("members", "outside", "seeds"), [(1, 1, 1), (1, 30, 2), (30, 1, 2), (2, 3, 2)]
)
def test_hardly_any_candidates_tell_no_rows_apart(members, outside, seeds):
    kind = np.repeat([0, 1, 2], [members, outside, 5])
    contest = judged(of_rows("few", {"none": 2, "x": 2}, seeds, "ab", kind), kind)
    assert everything(contest) and all(high == 2 for _, high in contest.ranks.values())


def test_constant_scores_are_one_half_and_share_their_ranks():
    scores = of_rows("constant", {"none": 1.5})
    scores |= {
        row: {"a": {s: {0: np.full(60, value)} for s in range(3)}}
        for row, value in (("flat", 0.25), ("even", 7.0))
    }
    contest = judged(scores, KIND)
    assert ends(contest.signed("flat", "a")) == (0.5, 0)
    assert contest.ranks == {"flat": (1, 2), "even": (1, 2), "none": (3, 3)}


def test_a_row_whose_cells_all_failed_has_no_numbers_and_changes_none_of_the_others():
    scores = of_rows("failed", {"none": 2, "x": 2}, attacks="ab")
    before = judged(scores, KIND)
    failed = {seed: {0: None} for seed in range(3)}
    contest = judged({**scores, "broken": {"a": failed, "b": failed}}, KIND)
    assert contest.worst("broken") is None and contest.mean("broken") is None
    assert contest.worst("x") == before.worst("x")
    assert contest.against("none") == before.against("none")
    assert contest.ranks == before.ranks
    assert judged({"none": {"a": {0: {0: None}}}}, KIND).eligible == ()


def test_a_seed_that_one_row_lacks_is_left_out_of_its_comparisons_alone():
    scores = of_rows("missing", {"none": 2, "x": 1, "y": 1}, 4)
    whole = judged(scores, KIND)
    without = judged(
        {row: {"a": {s: of for s, of in a["a"].items() if s != 1}} for row, a in scores.items()},
        KIND,
    )
    scores["x"]["a"][1] = {0: None}
    contest = judged(scores, KIND)
    assert contest.signed("x", "a").n == 3 and set(contest.ranks) == {"none", "y"}
    for row, same in (("x", without), ("y", whole)):
        assert contest.against("none")[row].interval == same.against("none")[row].interval
        found, expected = (c.pairwise.tests.among(("none", "x", "y")) for c in (contest, same))
        assert found["none", row] == pytest.approx(expected["none", row])


def test_inside_nonmembers_decide_nothing():
    kind = np.repeat([0, 1, 2], [30, 30, 60])
    scores = of_rows("inside", {"none": 2, "x": 0.5}, kind=kind)
    before = everything(judged(scores, kind))
    for own in scores["x"]["a"].values():
        own[0] = own[0] + 9.0 * (kind == 2)
    assert everything(judged(scores, kind)) == before


def test_targets_may_differ_by_seed():
    own = of_rows("targets", {"none": 2}, 3)["none"]["a"]
    scores = {"none": {"a": {0: {0: own[0][0], 1: own[1][0]}, 1: {2: own[2][0]}}}}
    found = judged(scores, KIND).signed("none", "a")
    aucs = [auc(of[0], KIND == MEMBER) for of in own.values()]
    assert (found.n, found.mean) == (3, pytest.approx(np.mean(aucs)))
    assert found.half_width == pytest.approx(t_interval([np.mean(aucs[:2]), aucs[2]]).half_width)


def test_a_candidate_that_one_row_excludes_is_left_out_of_comparisons_and_counts_for_the_others():
    scores = of_rows("excluded", {"none": 1, "x": 1}, 2)
    part = judged(scores, {"none": KIND, "x": np.r_[np.full(6, EXCLUDED), KIND[6:]]}).leaks.parts[0]
    pulls = part.pulls([0, 1])
    none, x = (scores[row]["a"][0][0] for row in ("none", "x"))
    (auc_of_none,), variance = auc_covariance(none[None], KIND == MEMBER)
    entry = part.entries["none", "a"]
    assert (entry.auc, entry.error**2) == pytest.approx((auc_of_none, variance.item()))
    aucs, covariance = auc_covariance(np.array([none, x])[:, 6:], KIND[6:] == MEMBER)
    np.testing.assert_allclose(part.aucs, aucs)
    np.testing.assert_allclose(pulls @ pulls.T, covariance)


def test_the_contest_of_one_kind_of_samples_never_sees_the_other_kind():
    canary = np.arange(60) % 3 == 0
    scores = of_rows("canaries", {"none": 0.0, "half": 0.0}, attacks="ab")
    for row, leak in (("none", 6.0), ("half", 3.0)):
        for of in (of for seeds in scores[row].values() for of in seeds.values()):
            of[0] = of[0] + leak * canary * (KIND == MEMBER)
    clean, odd = judged(scores, KIND, canary).by_kind
    assert everything(clean) == everything(judged(scores, np.where(canary, EXCLUDED, KIND), canary))
    assert everything(odd) == everything(judged(scores, np.where(canary, KIND, EXCLUDED), canary))
    assert clean.worst_cases.of("none").worst is None
    assert odd.worst_cases.of("none").worst.interval.mean > 0.95


# ---------------------------------------------------------------- pairs of defenses


@pytest.mark.parametrize("seeds", [1, 4])
def test_all_pairs_at_once_are_the_differences_of_each_pair(seeds):
    """Of rows that lack a seed, or a target of one, and of halves of a single seed."""
    rows = {"none": 1.0, "x": 0.5, "y": 0.5, "z": 0.0, "nothing": 0.0}
    scores = of_rows("all pairs", rows, seeds, "ab")
    for row, attacks in scores.items():
        for of_seeds in attacks.values():
            for seed, targets in of_seeds.items():
                targets[1] = targets[0][::-1] + seed
                if row == "z" and seed == 1:
                    del targets[0]
                if row == "nothing" or (row == "y" and seed == 2):
                    targets.update(dict.fromkeys(targets))
    contest = judged(scores, KIND)
    contest.eligible = contest.attacks
    rivals = [contest.worst_cases.of(row).rival for row in rows]
    means = [contest.worst_cases.of(row).mean_rival for row in rows]
    firsts, seconds = [r.picked for r in rivals], [r.plain for r in means]
    sums = differences(contest.leaks.parts, firsts, seconds)
    for (i, first), (j, second) in product(enumerate(firsts), enumerate(seconds)):
        expected = difference(contest.leaks.parts, first, second)
        if expected is None:
            assert not sums.n[:, i, j].any()
            continue
        assert sums.mean[i, j] == pytest.approx(expected.mean)
        assert sums.error[i, j] == pytest.approx(expected.error)
        assert sums.p_value(0.01)[i, j] == pytest.approx(expected.p_value(0.01))


def test_what_is_left_without_a_seed_is_the_estimate_of_the_others():
    rng = numpy_rng(0, "without each")
    units = {
        (seed, target): UnitValue(rng.normal(), 1.0, rng.normal(size=10), rng.permutation(14)[:10])
        for seed, target in ((0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (2, 2))
    }
    without = Estimate(units).sums.without_each
    for seed in range(3):
        others = Estimate({unit: value for unit, value in units.items() if unit[0] != seed})
        assert without.error[seed] == pytest.approx(others.error)
        assert without.p_value()[seed] == pytest.approx(others.p_value())


def test_a_pair_is_compared_as_with_one_row_and_its_reverse_is_the_negative(tmp_path):
    leaks = {"none": 2.0, "shield": 0.0, "twin": 0.0, "mixup": 1.5}
    section = sections_of(Folder(tmp_path / "r", leaks, ("fedmia-server",)).fill(range(6)))[0]
    pairwise, others = section.comparison.pairwise, ("twin", "gone", "shield")
    pairs = [("shield", "mixup"), ("mixup", "shield"), *(("shield", row) for row in others)]
    one, other, alike = section.differences(pairs)
    assert one.worst == pairwise.against("mixup")["shield"].interval
    assert one.shown and one.worst.mean < -0.2
    assert other.worst.mean == pytest.approx(-one.worst.mean)
    assert other.accuracy.mean == pytest.approx(-one.accuracy.mean)
    assert not alike.shown and abs(alike.worst.mean) <= alike.worst.half_width
    (table,) = PairedDifferences(pairs=pairs).draw(section, "pairs")
    assert [(row[1].mean, row[2].text) for row in table.rows] == [
        (one.worst.mean, "less"),
        (other.worst.mean, "MORE"),
        (alike.worst.mean, "no difference shown"),
    ]
    section.__dict__["utility"] = Utility(accuracy=0.8, n_test=100, name="loss", direction="lower")
    (without,) = PairedDifferences(pairs=pairs).draw(section, "pairs")
    assert [len(row) for row in without.rows] == [3] * 3 and len(without.columns) == 3
    first, _, third, *_ = pairs
    alone, adjusted = pairwise.between([first]), pairwise.between([first, third])
    assert adjusted[first].p == pytest.approx(2 * alone[first].p)
