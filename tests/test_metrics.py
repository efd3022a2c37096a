"""Metrics against scikit-learn, cases by hand and slow references."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp
from sklearn.metrics import roc_auc_score
from sklearn.metrics import roc_curve as sklearn_roc_curve

from fedbench.core import metrics as M
from fedbench.core.metrics.rounds import decision_report
from fedbench.plugins.analyses.groups import fairness_report

few = settings(max_examples=30)


@st.composite
def tied_scores(draw):
    """Scores from a handful of values, so that most of them are ties across the classes."""
    n = draw(st.integers(2, 60))
    values = draw(st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=1, max_size=6))
    scores = np.array(draw(st.lists(st.sampled_from(values), min_size=n, max_size=n)))
    member = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    member[0], member[-1] = True, False
    return scores, member


def leaky(rng, n_members=100, n_nonmembers=1000, shift=1.0):
    member = np.arange(n_members + n_nonmembers) < n_members
    return rng.normal(size=len(member)) + shift * member, member


# -- ROC, TPR at a FPR, thresholds -----------------------------------------------------------------


@given(tied_scores())
@few
def test_auc_and_curve_equal_scikit_learn_under_heavy_ties(case):
    scores, member = case
    assert M.auc(scores, member) == pytest.approx(roc_auc_score(member, scores), abs=1e-12)
    ours, theirs = (
        M.roc_curve(scores, member),
        sklearn_roc_curve(member, scores, drop_intermediate=False),
    )
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b)


@given(tied_scores(), st.floats(0.01, 1.0))
@settings(max_examples=60)
def test_tpr_at_a_low_fpr_equals_its_definition(case, fpr):
    scores, member = case
    x, y, _ = sklearn_roc_curve(member, scores, drop_intermediate=False)
    n = int((~member).sum())
    # by which chance a new non-member exceeds each threshold
    fits = (np.rint(x * n) + 1) / (n + 1) <= fpr
    assert M.tpr_at_fpr(scores, member, fpr) == pytest.approx(y[fits].max(initial=0))


@pytest.mark.parametrize(("above", "wanted"), [(9, 1.0), (10, 0.6), (11, 0.6)])
def test_tf01_allows_nine_false_positives_of_ten_thousand(above, wanted):
    """``above`` non-members are above 40 of 100 members, and below the other 60."""
    member = np.arange(10_100) < 100
    scores = np.r_[
        np.full(60, 9.0), np.full(40, 5.0), np.full(above, 7.0), np.zeros(10_000 - above)
    ]
    assert M.tpr_at_fpr(scores, member, 0.001) == wanted and M.tf01(scores, member) == 100 * wanted


def test_tf01_needs_so_many_nonmembers_that_one_false_positive_is_allowed():
    member = np.r_[np.ones(5, bool), np.zeros(1998, bool)]
    scores = np.r_[np.ones(5), 2.0, np.zeros(1997)]  # one non-member is above all members
    assert M.tf01(scores, member) is None
    assert M.tf01(np.r_[scores, 0.0], np.r_[member, False]) == 100.0
    assert M.tf01(np.r_[scores, 2.0], np.r_[member, False]) == 0.0
    assert M.tf01(np.ones(2010), np.arange(2010) < 10) == 0.0


@given(tied_scores())
@few
def test_advantage_is_the_best_over_all_thresholds(case):
    scores, member = case
    gains = [
        (scores[member] >= t).mean() - (scores[~member] >= t).mean() for t in [*scores, np.inf]
    ]
    assert M.advantage(scores, member) == pytest.approx(max(gains))
    right = [
        ((scores[member] >= t).mean() + (scores[~member] < t).mean()) / 2 for t in [*scores, np.inf]
    ]
    assert M.balanced_accuracy(scores, member) == pytest.approx(max(right))


RNG = np.random.default_rng(0)
SCORES, MEMBER = np.array([0.0, np.nan, 1.0]), np.array([True, False, False])
REFUSED = {
    "score": (
        lambda: M.auc(SCORES, MEMBER),
        "1 of 3 scores are not finite, the first at position 1",
    ),
    "bootstrap": (lambda: M.bootstrap(SCORES, MEMBER, RNG), "not finite"),
    "lengths": (lambda: M.auc(np.arange(3.0), np.ones(2, bool)), "one length"),
    "decisions": (
        lambda: decision_report(np.zeros(3), np.ones(3, bool), [0], 0.0, RNG),
        "both needed",
    ),
    "error": (lambda: M.combined_interval([0.5], []), "one standard error a value"),
    "value": (lambda: M.combined_interval([np.nan], [0.1]), "finite"),
    "test samples": (
        lambda: M.delta_accuracy([0.0], [np.ones(3, bool)], [np.ones(4, bool)], RNG),
        "same test samples",
    ),
    "covariance": (lambda: M.auc_covariance(np.arange(3.0), MEMBER), "at least 2 members"),
    "one class": (lambda: M.auc(np.arange(3.0), np.ones(3, bool)), "both classes"),
    "flags": (lambda: M.auc(np.arange(3.0), np.array([0, 1, 2])), "booleans"),
    "rate": (lambda: M.tpr_at_fpr(np.arange(3.0), MEMBER, fpr=0.0), "fpr"),
    "one value": (lambda: M.t_interval([1.0]), "at least 2"),
    "negative error": (lambda: M.combined_interval([0.5], [-0.1]), "negative"),
    "hits": (lambda: M.exact_interval(5, 4), "0 <= hits <= n"),
    "kind": (
        lambda: M.score_groups(np.arange(3.0), np.full(3, 3), MEMBER, RNG),
        "kind must be 0, 1, 2 or negative",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_judged_is_refused(name):
    call, told = REFUSED[name]
    with pytest.raises(ValueError, match=told):
        call()


# -- bootstrap and covariance ----------------------------------------------------------------------


@pytest.mark.parametrize("decimals", [6, 0])  # 0: heavy ties
def test_bootstrap_agrees_with_a_slow_loop_and_with_delong(decimals):
    scores, member = leaky(np.random.default_rng(1), n_nonmembers=2000, shift=2.5)
    scores, rng = scores.round(decimals), np.random.default_rng(3)
    fast = M.bootstrap(scores, member, np.random.default_rng(2), n=800)
    draws = (
        np.r_[rng.choice(scores[member], 100), rng.choice(scores[~member], 2000)]
        for _ in range(800)
    )
    slow = np.array(
        [(M.auc(d, np.arange(2100) < 100), M.tf01(d, np.arange(2100) < 100)) for d in draws]
    )
    # two estimates of a standard deviation from 800 draws differ by about 1/sqrt(800) = 3.5 % each
    assert fast.auc_se == pytest.approx(slow[:, 0].std(ddof=1), rel=0.15) == fast.auc.std(ddof=1)
    # TF01 jumps (one more tie and the whole bin is out), so its distribution is compared, not its
    # deviation
    assert ks_2samp(fast.tf01, slow[:, 1]).statistic < 0.08  # 1 % point for 800 against 800
    assert fast.tf01_se == fast.tf01.std(ddof=1) > 1
    assert fast.auc_se == pytest.approx(
        np.sqrt(M.auc_covariance(scores, member)[1][0, 0]), rel=0.15
    )
    assert fast.auc.mean() == pytest.approx(
        M.auc(scores, member), abs=4 * fast.auc_se / np.sqrt(800)
    )
    assert np.quantile(fast.auc, (0.025, 0.975)) == pytest.approx(
        np.quantile(slow[:, 0], (0.025, 0.975)), abs=0.01
    )


def test_bootstrap_repeats_with_its_generator_and_has_no_tf01_of_few():
    scores, member = leaky(np.random.default_rng(1), 100, 1900)
    a, b = (M.bootstrap(scores, member, np.random.default_rng(7)) for _ in range(2))
    assert (
        len(a.auc) == 200 and np.array_equal(a.auc, b.auc) and (a.tf01, a.tf01_se) == (None, None)
    )
    assert M.bootstrap(np.zeros(len(member)), member, np.random.default_rng(7)).auc_se == 0.0


@given(tied_scores(), st.integers(0, 99))
@few
def test_the_covariance_of_aucs_is_that_of_placements(case, seed):
    """DeLong et al., 1988, pair by pair; of scores with ties and of scores without."""
    scores, member = (np.tile(a, 2) for a in case)  # at least two of each class
    both = np.stack([scores, np.random.default_rng(seed).random(len(scores))])
    higher, equal = (
        op(both[:, member][:, :, None], both[:, ~member][:, None]) for op in (np.greater, np.equal)
    )
    won = higher + 0.5 * equal
    wanted = np.cov(won.mean(2)) / member.sum() + np.cov(won.mean(1)) / (~member).sum()
    aucs, found = M.auc_covariance(both, member)
    np.testing.assert_allclose(aucs, won.mean((1, 2)))
    np.testing.assert_allclose(found, wanted, atol=1e-12)


# -- intervals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "errors", "between", "half_width"),
    [
        ([0.1], [0.03], False, 1.959964 * 0.03),
        ([0.1, 0.9], [0.03, 0.04], True, 12.7062 * 0.4),  # t of one degree of freedom
        ([0.5, 0.5], [0.03, 0.04], True, 1.959964 * 0.05 / 2),
        ([1.0, 2.0, 3.0, 4.0, 5.0], [0.01] * 5, True, 2.7764 * np.sqrt(2.5 / 5)),
        ([0.5] * 5, [0.1] * 5, True, 1.959964 * 0.1 / np.sqrt(5)),
    ],
    ids=["one", "two", "alike", "spread", "within"],
)
def test_an_interval_is_students_and_never_narrower_than_within_the_runs(
    values, errors, between, half_width
):
    got = M.combined_interval(values, errors)
    assert (got.mean, got.n, got.between) == (pytest.approx(np.mean(values)), len(values), between)
    assert got.half_width == pytest.approx(half_width, rel=1e-4)
    assert (got.low, got.high) == (got.mean - got.half_width, got.mean + got.half_width)


def test_delta_accuracy_is_paired_over_samples_and_over_seeds():
    rng = np.random.default_rng(4)
    base = [rng.random(2000) < 0.8 for _ in range(3)]
    worse = [b & (rng.random(2000) < 0.95) for b in base]
    values = [w.mean() - b.mean() for w, b in zip(worse, base, strict=True)]
    got = M.delta_accuracy(values, worse, base, rng)
    assert got.mean == pytest.approx(np.mean(values))
    analytic = np.std(
        np.mean([w * 1.0 - b for w, b in zip(worse, base, strict=True)], axis=0)
    ) / np.sqrt(2000)
    # the seeds agree better than that by chance
    assert got.half_width == pytest.approx(1.96 * analytic, rel=0.15)
    once, thrice = (
        M.delta_accuracy(values[:1] * n, worse[:1] * n, base[:1] * n, np.random.default_rng(1))
        for n in (1, 3)
    )
    # nothing new
    assert (once.n, thrice.n) == (1, 3) and thrice.half_width == pytest.approx(
        once.half_width, rel=1e-6
    )


def test_delta_accuracy_between_seeds_and_on_unequal_test_sets():
    rng = np.random.default_rng(4)
    worse = [np.arange(1000) >= k for k in (0, 100, 200, 300, 400)]
    got = M.delta_accuracy([w.mean() - 1 for w in worse], worse, [np.ones(1000, bool)] * 5, rng)
    assert got.between and got.half_width == pytest.approx(
        M.t_interval([0, -0.1, -0.2, -0.3, -0.4]).half_width
    )
    ones = [np.ones(1000, bool), np.ones(500, bool)]
    uneven = M.delta_accuracy([-0.1, -0.1], [np.arange(1000) > 99, np.arange(500) > 49], ones, rng)
    within = np.sqrt(0.09 / 1000 + 0.09 / 500) / 2
    assert uneven.mean == pytest.approx(-0.1) and uneven.half_width == pytest.approx(
        1.96 * within, rel=0.1
    )


# -- an attack's own decisions ---------------------------------------------------------------------


def halves(member: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """[n] bool: the half on which a round is chosen, of each class."""
    first = np.zeros(len(member), bool)
    for group in (np.flatnonzero(member), np.flatnonzero(~member)):
        first[rng.permutation(group)[: len(group) // 2]] = True
    return first


@st.composite
def rounds_of_decisions(draw):
    """Scores [R, n] around a threshold, ties with it among them, some rounds without the target;
    both classes >= 2.
    """
    n, rounds = draw(st.integers(4, 30)), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scores = rng.integers(-2, 3, (rounds, n)).astype(np.float64)
    member = rng.permutation(n) < draw(st.integers(2, n - 2))
    if rounds > 1 and draw(st.booleans()):
        scores[draw(st.integers(0, rounds - 1))] = np.nan
    return scores, member, draw(st.sampled_from([-1.0, 0.0, 0.5]))


def counted(row, member, threshold):
    """(accuracy, precision, recall) by counting answers one by one."""
    hit = miss = false = right = 0
    for score, m in zip(row, member, strict=True):
        said = score > threshold
        hit, miss = hit + (said and m), miss + (not said and m)
        false, right = false + (said and not m), right + (not said and not m)
    precision = hit / (hit + false) if hit + false else None
    return (hit / (hit + miss) + right / (right + false)) / 2, precision, hit / (hit + miss)


@given(rounds_of_decisions())
@settings(max_examples=60)
def test_decisions_equal_a_naive_count(case):
    scores, member, threshold = case
    numbers = np.arange(len(scores))
    found = decision_report(
        scores, member, numbers, threshold, np.random.default_rng(0), shuffles=1
    )
    naive = {
        r: counted(row, member, threshold)
        for r, row in enumerate(scores)
        if not np.isnan(row).all()
    }
    assert (found.last_accuracy, found.last_precision, found.last_recall) == pytest.approx(
        naive[max(naive)]
    )
    best = max(naive, key=lambda r: naive[r][0])
    assert found.best_accuracy == pytest.approx(naive[best][0])
    assert (found.best_accuracy, found.best_precision, found.best_recall) == pytest.approx(
        naive[found.best_round]
    )
    rng = np.random.default_rng(0)
    shuffled = rng.permutation(member)  # the one shuffle for the null comes first
    assert found.null_best_accuracy == pytest.approx(
        max(counted(scores[r], shuffled, threshold)[0] for r in naive)
    )
    first = halves(member, rng)
    # the first of equal ones
    chosen = max(naive, key=lambda r: counted(scores[r, first], member[first], threshold)[0])
    expected = counted(scores[chosen, ~first], member[~first], threshold)
    assert (
        found.calibrated_accuracy,
        found.calibrated_precision,
        found.calibrated_recall,
    ) == pytest.approx(expected)


def test_a_single_member_leaves_no_round_to_choose():
    few = decision_report(np.arange(6.0), np.arange(6) < 1, [0], 0.0, np.random.default_rng(0))
    assert few.calibrated_accuracy is None and few.best_accuracy is not None


# -- Pareto, groups of candidates ------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=12))
@few
def test_hypervolume_and_front_equal_brute_force(grid):
    points = np.array(grid, dtype=float).reshape(-1, 2) / 10  # some lie beyond the reference
    centres = (np.arange(10) + 0.5) / 10
    dominated = [any(px <= x and py <= y for px, py in points) for x in centres for y in centres]
    assert M.hypervolume(points) == pytest.approx(np.mean(dominated))
    beaten = [any((q <= p).all() and (q < p).any() for q in points) for p in points]
    assert M.pareto_front(points).tolist() == [not b for b in beaten]


@pytest.mark.parametrize("points", [np.zeros((2, 3)), np.zeros(2), [[0.5, np.nan]]])
def test_points_of_a_front_are_pairs_of_finite_numbers(points):
    with pytest.raises(ValueError, match="finite and of shape"):
        M.hypervolume(points)


@given(st.sampled_from([3, 6, 12, 9000]), st.booleans(), st.integers(0, 99))
@few
def test_score_groups_are_the_metrics_of_their_candidates(n, narrow, seed):
    rng = np.random.default_rng(seed)
    kind, canary, in_mix = rng.integers(-1, 3, n), rng.random(n) < 0.3, rng.random(n) < 0.7
    # excluded ones must not matter
    scores = np.where(kind == -1, np.nan, rng.normal(size=n).round(1))
    outside = np.isin(kind, (0, 1))
    mix = (kind >= 0) & (in_mix if narrow else True)
    masks = {"mix": mix, "ofl": outside, "ifl": np.isin(kind, (0, 2)), "canary": outside & canary}
    wanted = {name: mask for name, mask in masks.items() if len(set(kind[mask] == 0)) == 2}
    found = M.score_groups(scores, kind, canary, rng, in_mix if narrow else None)
    assert list(found) == list(wanted)
    for name, mask in wanted.items():
        member, got = kind[mask] == 0, found[name]
        assert (got.n_members, got.n_nonmembers) == (member.sum(), (~member).sum())
        assert all(got.value(m.name) == m.value(scores[mask], member) for m in M.METRICS)
        # one candidate of a class cannot say how sure it is
        several = min(got.n_members, got.n_nonmembers) > 1
        assert (got.error("auc") is not None) == several
        assert (got.error("tf01") is not None) == (got.value("tf01") is not None) and got.error(
            "advantage"
        ) is None


# -- fairness between groups of clients ------------------------------------------------------------


def naive_fairness(predicted, y, group) -> list[float]:
    """The three notions, rate by rate: the largest over pairs of groups of the mean over
    classes.
    """
    found = []
    for pair in combinations(np.unique(group), 2):
        gaps: tuple[list, list, list] = ([], [], [])
        for c in np.union1d(predicted, y):
            for into, rows, occurs in zip(
                gaps, (y == y, y == c, y != c), (c in predicted, c in y, c in y), strict=True
            ):
                sides = [predicted[rows & (group == g)] == c for g in pair]
                if occurs and all(map(len, sides)):
                    into.append(abs(sides[0].mean() - sides[1].mean()))
        parity, tpr, fpr = (np.mean(g) if g else np.nan for g in gaps)
        found.append([parity, tpr, (tpr + fpr) / 2])
    return np.nanmax(found, axis=0).tolist()


@few
@given(st.integers(2, 5), st.integers(2, 3), st.integers(12, 60), st.integers(0, 10_000))
def test_fairness_is_the_naive_loop(classes, n_groups, n, seed):
    rng = np.random.default_rng(seed)
    predicted, y, group = (
        rng.integers(0, classes, n),
        rng.integers(0, classes, n) * 2,
        rng.integers(0, n_groups, n) * 5 - 1,
    )
    # every group is there and has a class in common
    group[:n_groups], y[:n_groups] = np.arange(n_groups) * 5 - 1, 0
    found = [value for value, _ in fairness_report(predicted, y, group, rng, n=2).values()]
    assert found == pytest.approx(naive_fairness(predicted, y, group))


def test_the_errors_of_fairness_resample_samples_within_their_group():
    rng = np.random.default_rng(3)
    y, group = rng.integers(0, 3, 180), np.repeat([0, 1], [60, 120])
    # far apart, so that 0 is out of reach
    predicted = np.where((group == 1) & (rng.random(180) < 0.6), (y + 1) % 3, y)
    values = []
    for _ in range(400):
        rows = np.concatenate(
            [rng.choice(np.flatnonzero(group == g), (group == g).sum()) for g in (0, 1)]
        )
        values.append(
            fairness_report(predicted[rows], y[rows], group[rows], rng, n=2)["equalised_odds"][0]
        )
    found = fairness_report(predicted, y, group, np.random.default_rng(4), n=400)
    assert found["equalised_odds"][1] == pytest.approx(np.std(values, ddof=1), rel=0.2)
    # each group has a class of its own: no rates to compare
    apart = fairness_report(predicted, group, group, rng, n=20)
    assert apart["equal_opportunity"] == (None, None) and apart["demographic_parity"][1] is not None
