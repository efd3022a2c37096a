"""Metrics against scikit-learn, hand-made cases and slow obvious references."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp
from sklearn.metrics import roc_auc_score
from sklearn.metrics import roc_curve as sklearn_roc_curve

from fedbench.core import metrics as M
from fedbench.core.metrics.bestround import round_report
from fedbench.core.metrics.decision import decision_report


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
    member = np.r_[np.ones(n_members, bool), np.zeros(n_nonmembers, bool)]
    return rng.normal(size=len(member)) + shift * member, member


# ---------------------------------------------------------------- ROC and AUC


@given(tied_scores())
@settings(max_examples=200, deadline=None)
def test_auc_and_curve_equal_scikit_learn_under_heavy_ties(case):
    scores, member = case
    assert M.auc(scores, member) == pytest.approx(roc_auc_score(member, scores), abs=1e-12)
    ours, theirs = M.roc_curve(scores, member), sklearn_roc_curve(member, scores, drop_intermediate=False)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b)


@given(tied_scores(), st.floats(0.01, 1.0))
@settings(max_examples=200, deadline=None)
def test_tpr_conventions_equal_their_definitions(case, fpr):
    scores, member = case
    x, y, _ = sklearn_roc_curve(member, scores, drop_intermediate=False)
    step, strict, between, above = (
        M.tpr_at_fpr(scores, member, fpr, c) for c in ("step", "strict", "interpolate", "first_above")
    )
    n = int((~member).sum())
    fits = (np.rint(x * n) + 1) / (n + 1) <= fpr  # by which chance a new non-member exceeds each threshold
    assert M.tpr_at_fpr(scores, member, fpr) == pytest.approx(y[fits].max(initial=0))
    assert M.tpr_at_fpr(scores, member, fpr) <= step + 1e-12
    assert step == pytest.approx(y[x <= fpr].max())
    assert above == pytest.approx(y[x >= fpr][0])
    dropped_x, dropped_y, _ = sklearn_roc_curve(member, scores)
    assert strict == pytest.approx(dropped_y[dropped_x < fpr][-1])
    assert strict <= step + 1e-12 and step <= between + 1e-12


def test_without_a_leak_the_conformal_convention_finds_its_share_of_the_members_and_the_step_convention_more():
    rng, members, nonmembers, fpr = np.random.default_rng(11), 200, 500, 0.01
    member = np.arange(members + nonmembers) < members
    found = {c: [M.tpr_at_fpr(rng.random(700), member, fpr, c) for _ in range(2000)] for c in ("conformal", "step")}
    error = {c: np.std(f) / np.sqrt(len(f)) for c, f in found.items()}
    for convention, allowed in (("conformal", 4), ("step", 5)):
        expected = (allowed + 1) / (nonmembers + 1)
        assert abs(np.mean(found[convention]) - expected) < 4 * error[convention]
    assert np.mean(found["conformal"]) < fpr + 4 * error["conformal"]
    assert np.mean(found["step"]) > fpr + 4 * error["step"]


def test_auc_counts_ties_as_one_half():
    assert M.auc(np.zeros(10), np.arange(10) < 3) == 0.5
    assert M.auc(np.array([1, 1, 0]), np.array([True, False, False])) == 0.75


def test_oracle_random_and_inverted_attack():
    member = np.arange(3000) % 3 == 0
    assert M.auc(member.astype(float), member) == 1.0
    assert M.auc(-member.astype(float), member) == 0.0
    assert M.tf01(member.astype(float), member) == 100.0 and M.tf01(-member.astype(float), member) == 0.0
    assert abs(M.auc(np.random.default_rng(0).normal(size=3000), member) - 0.5) < 0.04


@given(tied_scores())
@settings(max_examples=50, deadline=None)
def test_scores_are_judged_by_their_order_alone(case):
    scores, member = case
    ranks = np.unique(scores, return_inverse=True)[1]
    for metric in (M.auc, M.advantage, M.balanced_accuracy):
        assert metric(scores, member) == metric(np.exp(ranks), member)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_not_finite_is_refused(bad):
    scores, member = np.array([0.0, bad, 1.0]), np.array([True, False, False])
    for metric in (M.auc, M.tf01, M.tpr_at_fpr, M.advantage, M.roc_curve):
        with pytest.raises(ValueError, match="1 of 3 scores are not finite, the first at position 1"):
            metric(scores, member)
    with pytest.raises(ValueError, match="not finite"):
        M.bootstrap(scores, member, np.random.default_rng(0))


def test_inputs_that_cannot_be_judged_are_refused():
    with pytest.raises(ValueError, match="both classes"):
        M.auc(np.arange(3.0), np.ones(3, bool))
    with pytest.raises(ValueError, match="one length"):
        M.auc(np.arange(3.0), np.ones(2, bool))
    with pytest.raises(ValueError, match="booleans"):
        M.auc(np.arange(3.0), np.array([0, 1, 2]))


# ---------------------------------------------------------------- TF01


def ten_thousand_negatives(n_above: int):
    """10,000 non-members of which ``n_above`` beat 40 of 100 members, and all lose against the other 60."""
    member = np.r_[np.ones(100, bool), np.zeros(10_000, bool)]
    scores = np.r_[np.full(60, 9.0), np.full(40, 5.0), np.full(n_above, 7.0), np.zeros(10_000 - n_above)]
    return scores, member


def test_tf01_allows_nine_false_positives_and_the_step_convention_ten():
    for n_above, ours, step, strict in ((9, 1.0, 1.0, 1.0), (10, 0.6, 1.0, 0.6), (11, 0.6, 0.6, 0.6)):
        scores, member = ten_thousand_negatives(n_above)
        assert M.tpr_at_fpr(scores, member) == ours
        assert M.tf01(scores, member) == 100 * ours
        assert M.tpr_at_fpr(scores, member, convention="step") == step
        assert M.tpr_at_fpr(scores, member, convention="strict") == strict


def test_the_other_conventions_are_more_generous_where_one_negative_is_too_many():
    member = np.r_[np.ones(150, bool), np.zeros(150, bool)]
    scores = np.r_[np.full(30, 3.0), np.full(120, 1.0), [2.0], np.zeros(149)]
    assert M.tpr_at_fpr(scores, member) == 0.0  # of 150 non-members none may be allowed, and the largest one is too many
    assert M.tpr_at_fpr(scores, member, convention="step") == 0.2
    assert M.tpr_at_fpr(scores, member, convention="interpolate") == pytest.approx(0.2)
    assert M.tpr_at_fpr(scores, member, convention="first_above") == 0.2
    tied = np.where(scores == 1.0, 2.0, scores)  # the members share the non-member's score
    assert M.tpr_at_fpr(tied, member, convention="step") == 0.2
    assert M.tpr_at_fpr(tied, member, convention="interpolate") == pytest.approx(0.2 + 0.8 * 0.001 * 150)
    assert M.tpr_at_fpr(tied, member, convention="first_above") == 1.0


def test_tf01_needs_so_many_nonmembers_that_one_false_positive_is_allowed():
    member = np.r_[np.ones(5, bool), np.zeros(1998, bool)]
    scores = np.r_[np.ones(5), 2.0, np.zeros(1997)]  # one non-member is above all members
    assert M.tf01(scores, member) is None
    assert M.tf01(np.r_[scores, 0.0], np.r_[member, False]) == 100.0
    assert M.tf01(np.r_[scores, 2.0], np.r_[member, False]) == 0.0


def test_tpr_is_zero_when_the_top_score_is_a_crowd_of_nonmembers():
    member = np.r_[np.ones(10, bool), np.zeros(2000, bool)]
    assert M.tf01(np.ones(2010), member) == 0.0


def test_unknown_convention_and_rate_are_refused():
    scores, member = ten_thousand_negatives(3)
    with pytest.raises(ValueError, match="unknown convention"):
        M.tpr_at_fpr(scores, member, convention="best")
    with pytest.raises(ValueError, match="fpr"):
        M.tpr_at_fpr(scores, member, fpr=0.0)


# ---------------------------------------------------------------- thresholds


@given(tied_scores())
@settings(max_examples=100, deadline=None)
def test_advantage_is_the_best_over_all_thresholds(case):
    scores, member = case
    gains = [(scores[member] >= t).mean() - (scores[~member] >= t).mean() for t in [*scores, np.inf]]
    assert M.advantage(scores, member) == pytest.approx(max(gains))
    right = [((scores[member] >= t).mean() + (scores[~member] < t).mean()) / 2 for t in [*scores, np.inf]]
    assert M.balanced_accuracy(scores, member) == pytest.approx(max(right))


def test_advantage_of_an_inverted_attack_is_zero():
    member = np.arange(100) < 50
    assert M.advantage(-member.astype(float), member) == 0.0


# ---------------------------------------------------------------- bootstrap


def loop_bootstrap(scores, member, rng, n):
    pos, neg = scores[member], scores[~member]
    flags = np.r_[np.ones(len(pos), bool), np.zeros(len(neg), bool)]
    draws = [np.r_[rng.choice(pos, len(pos)), rng.choice(neg, len(neg))] for _ in range(n)]
    return np.array([(M.auc(d, flags), M.tf01(d, flags)) for d in draws])


@pytest.mark.parametrize("decimals", [6, 0])  # 0: heavy ties
def test_bootstrap_agrees_with_a_slow_loop_and_with_delong(decimals):
    scores, member = leaky(np.random.default_rng(1), n_nonmembers=2000, shift=2.5)
    scores = scores.round(decimals)
    fast = M.bootstrap(scores, member, np.random.default_rng(2), n=800)
    slow = loop_bootstrap(scores, member, np.random.default_rng(3), 800)
    # two estimates of a standard deviation from 800 draws differ by about 1/sqrt(800) = 3.5 % each
    assert fast.auc_se == pytest.approx(slow[:, 0].std(ddof=1), rel=0.15)
    # TF01 jumps (one more tie and the whole bin is out), so its distribution is compared, not its deviation
    assert ks_2samp(fast.tf01, slow[:, 1]).statistic < 0.08  # 1 % point for 800 against 800
    assert fast.tf01_se == fast.tf01.std(ddof=1) > 1
    assert fast.auc_se == pytest.approx(np.sqrt(M.auc_covariance(scores, member)[1][0, 0]), rel=0.15)
    assert fast.auc.mean() == pytest.approx(M.auc(scores, member), abs=4 * fast.auc_se / np.sqrt(800))
    assert np.quantile(fast.auc, (0.025, 0.975)) == pytest.approx(np.quantile(slow[:, 0], (0.025, 0.975)), abs=0.01)


def test_bootstrap_repeats_with_its_generator_and_respects_a_total_tie():
    scores, member = leaky(np.random.default_rng(1), n_nonmembers=2000)
    a, b = (M.bootstrap(scores, member, np.random.default_rng(7)) for _ in range(2))
    assert a.auc_se == b.auc_se and a.tf01_se == b.tf01_se and np.array_equal(a.tf01, b.tf01)
    assert M.bootstrap(np.zeros(len(member)), member, np.random.default_rng(7)).auc_se == 0.0
    assert M.bootstrap(scores[:600], member[:600], np.random.default_rng(7)).tf01_se is None


def test_bootstrap_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(5)
    truth = 0.7602  # Phi(1 / sqrt(2)), the AUC of two unit normals one apart
    hits = 0
    for _ in range(100):
        low, high = np.quantile(M.bootstrap(*leaky(rng, 60, 200), rng, n=150).auc, (0.025, 0.975))
        hits += low <= truth <= high
    assert 87 <= hits <= 100


def test_delong_knows_that_two_attacks_on_the_same_candidates_go_together():
    rng = np.random.default_rng(8)
    first, member = leaky(rng, shift=1.0)
    both = np.stack([first, first + 0.2 * rng.normal(size=len(first)) - 0.1 * member])
    _, c = M.auc_covariance(both, member)
    error = np.sqrt(c[0, 0] + c[1, 1] - 2 * c[0, 1])
    assert error < np.sqrt(c[0, 0] + c[1, 1]) / 3
    pos, neg = np.flatnonzero(member), np.flatnonzero(~member)
    picks = [np.r_[rng.choice(pos, len(pos)), rng.choice(neg, len(neg))] for _ in range(400)]  # the same for both
    paired = [M.auc(both[0, pick], member[pick]) - M.auc(both[1, pick], member[pick]) for pick in picks]
    assert error == pytest.approx(np.std(paired, ddof=1), rel=0.2)


# ---------------------------------------------------------------- intervals


def test_t_interval_matches_the_textbook():
    got = M.t_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (got.mean, got.n, got.between) == (3.0, 5, True)
    assert got.half_width == pytest.approx(2.7764 * np.sqrt(2.5 / 5), rel=1e-4)
    with pytest.raises(ValueError, match="at least 2"):
        M.t_interval([1.0])


def test_combined_interval_uses_the_spread_from_two_values_on_and_is_never_narrower_than_within():
    one = M.combined_interval([0.1], [0.03])
    assert not one.between and one.half_width == pytest.approx(1.96 * 0.03, rel=1e-3)
    few = M.combined_interval([0.1, 0.9], [0.03, 0.04])
    assert few.between and few.half_width == pytest.approx(12.7062 * 0.4, rel=1e-4)  # t of one degree of freedom
    alike = M.combined_interval([0.5, 0.5], [0.03, 0.04])
    assert alike.between and alike.half_width == pytest.approx(1.96 * 0.05 / 2, rel=1e-3)
    spread = M.combined_interval([0.1, 0.3, 0.5, 0.7, 0.9], [0.01] * 5)
    assert spread.between and spread.half_width == M.t_interval([0.1, 0.3, 0.5, 0.7, 0.9]).half_width
    same = M.combined_interval([0.5] * 5, [0.1] * 5)
    assert same.between and same.half_width == pytest.approx(1.96 * 0.1 / np.sqrt(5), rel=1e-3)
    assert (same.low, same.high) == (0.5 - same.half_width, 0.5 + same.half_width)
    with pytest.raises(ValueError, match="standard error"):
        M.combined_interval([0.5], [])
    with pytest.raises(ValueError, match="finite"):
        M.combined_interval([np.nan], [0.1])


def test_delta_accuracy_is_paired_over_samples_and_over_seeds():
    rng = np.random.default_rng(4)
    base = [rng.random(2000) < 0.8 for _ in range(3)]
    worse = [b & (rng.random(2000) < 0.95) for b in base]
    got = M.delta_accuracy(worse, base, rng)
    per_seed = [w.mean() - b.mean() for w, b in zip(worse, base, strict=True)]
    assert got.mean == pytest.approx(np.mean(per_seed)) and got.n == 3 and got.between
    analytic = np.std(np.mean([w * 1.0 - b for w, b in zip(worse, base, strict=True)], axis=0)) / np.sqrt(2000)
    assert got.half_width == pytest.approx(1.96 * analytic, rel=0.15)  # the seeds agree better than that by chance
    assert got.half_width < 1.96 * np.sqrt(2 * 0.16 / 2000 / 3) / 2  # what unpaired sampling would give, halved


def test_delta_accuracy_with_one_shared_test_set_gains_nothing_from_repeating_the_same_run():
    rng = np.random.default_rng(4)
    base = rng.random(2000) < 0.8
    worse = base & (rng.random(2000) < 0.9)
    once = M.delta_accuracy([worse], [base], np.random.default_rng(1))
    thrice = M.delta_accuracy([worse] * 3, [base] * 3, np.random.default_rng(1))
    assert thrice.half_width == pytest.approx(once.half_width, rel=1e-6)


def test_delta_accuracy_between_seeds_and_on_unequal_test_sets():
    rng = np.random.default_rng(4)
    base = [np.ones(1000, bool)] * 5
    worse = [np.arange(1000) >= k for k in (0, 100, 200, 300, 400)]
    got = M.delta_accuracy(worse, base, rng)
    assert got.between and got.half_width == pytest.approx(M.t_interval([0, -0.1, -0.2, -0.3, -0.4]).half_width)
    uneven = M.delta_accuracy([np.arange(100) > 9, np.arange(50) > 4], [np.ones(100, bool), np.ones(50, bool)], rng)
    assert uneven.mean == pytest.approx(-0.1) and uneven.half_width > 0
    with pytest.raises(ValueError, match="same test samples"):
        M.delta_accuracy([np.ones(3, bool)], [np.ones(4, bool)], rng)


# ---------------------------------------------------------------- best of R


def test_the_best_of_many_rounds_beats_chance_on_noise_and_its_null_says_so():
    rng = np.random.default_rng(9)
    member = np.arange(200) < 100
    noise = rng.normal(size=(50, 200))
    got = round_report(noise, member, rng)
    aucs = [M.auc(row, member) for row in noise]
    assert abs(np.mean(aucs) - 0.5) < 0.02  # a round chosen beforehand is honest
    assert got.best_auc > 0.56 and got.null_best_auc > 0.56  # the oracle is not, and its null shows how much
    assert got.best_index == np.argmax(aucs) and got.best_auc == max(aucs)
    assert abs(got.best_auc - got.null_best_auc) < 0.06


# ---------------------------------------------------------------- Pareto


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=12))
@settings(max_examples=150, deadline=None)
def test_hypervolume_and_front_equal_brute_force(grid):
    points = np.array(grid, dtype=float).reshape(-1, 2) / 10  # some lie beyond the reference
    centres = (np.arange(10) + 0.5) / 10
    dominated = [any(px <= x and py <= y for px, py in points) for x in centres for y in centres]
    assert M.hypervolume(points) == pytest.approx(np.mean(dominated))
    beaten = [any((q <= p).all() and (q < p).any() for q in points) for p in points]
    assert M.pareto_front(points).tolist() == [not b for b in beaten]


def test_hypervolume_by_hand():
    assert M.hypervolume(np.array([[0.0, 0.0]])) == 1.0
    assert M.hypervolume(np.array([[0.2, 0.5], [0.6, 0.1]])) == pytest.approx(0.8 * 0.5 + 0.4 * 0.4)
    assert M.hypervolume(np.zeros((0, 2))) == 0.0
    with pytest.raises(ValueError, match="finite"):
        M.hypervolume(np.array([[np.nan, 0.0]]))


# ---------------------------------------------------------------- groups


def test_score_groups_splits_nonmembers_and_leaves_excluded_ones_out():
    rng = np.random.default_rng(0)
    kind = np.r_[np.zeros(100, int), np.ones(500, int), np.full(1700, 2), np.full(50, -1)]
    scores = rng.normal(size=len(kind)) - (kind == 2)
    scores[kind == -1] = np.nan  # excluded: must not matter
    got = M.score_groups(scores, kind, np.zeros(len(kind), bool), np.random.default_rng(1))
    assert list(got) == ["mix", "ofl", "ifl"]
    assert [(s.n_members, s.n_nonmembers) for s in got.values()] == [(100, 2200), (100, 500), (100, 1700)]
    for name, others in (("mix", (1, 2)), ("ofl", (1,)), ("ifl", (2,))):
        mask = np.isin(kind, (0, *others))
        assert set(got[name].values) == {m.name for m in M.METRICS}
        assert got[name].value("auc") == M.auc(scores[mask], kind[mask] == 0)
        assert got[name].value("balanced_accuracy") == (1 + got[name].value("advantage")) / 2
    assert got["mix"].value("tf01") is not None and got["mix"].error("tf01") is not None
    assert got["ofl"].value("tf01") is None and got["ofl"].error("tf01") is None


def test_score_groups_with_canaries_and_with_missing_classes():
    kind = np.array([0, 0, 0, 1, 1, 2, 2])
    scores = np.array([5.0, 1, 1, 4, 0, 6, 0])
    canary = np.array([1, 0, 0, 1, 0, 1, 0], bool)
    got = M.score_groups(scores, kind, canary, np.random.default_rng(0))
    # against the outside one alone: the other client's scores higher
    assert (got["canary"].n_members, got["canary"].n_nonmembers, got["canary"].value("auc")) == (1, 1, 1.0)
    assert got["canary"].error("auc") is None  # one member cannot say how sure it is
    assert "canary" not in M.score_groups(scores, kind, canary & (kind == 0), np.random.default_rng(0))
    assert list(M.score_groups(scores, np.where(kind == 2, 1, kind), ~canary & False, np.random.default_rng(0))) == [
        "mix", "ofl",
    ]  # fmt: skip
    assert M.score_groups(scores, np.ones(7, int), canary, np.random.default_rng(0)) == {}
    with pytest.raises(ValueError, match="kind"):
        M.score_groups(scores, np.full(7, 3), canary, np.random.default_rng(0))


# ---------------------------------------------------------------- an attack's own decisions


@st.composite
def rounds_of_decisions(draw):
    """Scores [R, n] around a threshold, ties with it among them, some rounds without the target; both classes >= 2."""
    n, rounds = draw(st.integers(4, 30)), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scores = rng.integers(-2, 3, (rounds, n)).astype(np.float64)
    member = np.zeros(n, bool)
    member[rng.permutation(n)[: draw(st.integers(2, n - 2))]] = True
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
@settings(max_examples=150, deadline=None)
def test_decisions_equal_a_naive_count(case):
    scores, member, threshold = case
    found = decision_report(scores, member, threshold, np.random.default_rng(0))
    naive = {r: counted(row, member, threshold) for r, row in enumerate(scores) if not np.isnan(row).all()}
    last = naive[max(naive)]
    assert (found.last_accuracy, found.last_precision, found.last_recall) == pytest.approx(last)
    best = max(naive, key=lambda r: naive[r][0])
    assert naive[found.best_index][0] == pytest.approx(naive[best][0]) and found.best_accuracy == pytest.approx(naive[best][0])
    assert (found.best_precision, found.best_recall) == pytest.approx(naive[found.best_index][1:])


@given(rounds_of_decisions())
@settings(max_examples=50, deadline=None)
def test_the_calibrated_round_is_judged_on_the_other_half(case):
    scores, member, threshold = case
    found = decision_report(scores, member, threshold, np.random.default_rng(1), shuffles=1)
    rng = np.random.default_rng(1)
    rng.permutation(member)  # the one shuffle for the null comes first
    first = np.zeros(len(member), bool)
    for group in (np.flatnonzero(member), np.flatnonzero(~member)):
        first[rng.permutation(group)[: len(group) // 2]] = True
    rounds = [row for row in scores if not np.isnan(row).all()]
    on_first = [counted(row[first], member[first], threshold)[0] for row in rounds]
    chosen = rounds[int(np.argmax(on_first))]
    expected = counted(chosen[~first], member[~first], threshold)
    assert (found.calibrated_accuracy, found.calibrated_precision, found.calibrated_recall) == pytest.approx(expected)


def test_the_best_of_many_null_rounds_beats_one_half_and_its_null_value_says_so():
    rng = np.random.default_rng(0)
    member = np.arange(300) < 150
    found = [decision_report(rng.normal(size=(80, 300)), member, 0.0, rng) for _ in range(20)]
    # one look at 150 + 150 coin tosses has the deviation 0.5 / sqrt(300) = 0.029; the best of 80 is about 2.4 of them up
    bias = 2.43 * 0.5 / np.sqrt(300)
    assert np.mean([d.last_accuracy for d in found]) == pytest.approx(0.5, abs=0.025)
    assert np.mean([d.calibrated_accuracy for d in found]) == pytest.approx(0.5, abs=0.035)
    assert np.mean([d.best_accuracy for d in found]) == pytest.approx(0.5 + bias, abs=0.015)
    assert np.mean([d.null_best_accuracy for d in found]) == pytest.approx(0.5 + bias, abs=0.01)
    alone = [decision_report(rng.normal(size=300), member, 0.0, rng).null_best_accuracy for _ in range(20)]
    assert np.mean(alone) == pytest.approx(0.5, abs=0.01)  # a single round leaves nothing to choose


def test_nobody_called_a_member_has_no_precision_and_impossible_inputs_are_refused():
    member = np.arange(6) < 3
    quiet = decision_report(np.full(6, -1.0), member, 0.0, np.random.default_rng(0))
    assert (quiet.last_accuracy, quiet.last_precision, quiet.last_recall) == (0.5, None, 0.0)
    assert decision_report(np.zeros(6), member, 0.0, np.random.default_rng(0)).last_recall == 0  # equal is not above
    few = decision_report(np.arange(6.0), np.arange(6) < 1, 0.0, np.random.default_rng(0))
    assert few.calibrated_accuracy is None and few.best_accuracy is not None
    with pytest.raises(ValueError, match="no round has scores"):
        decision_report(np.full((2, 6), np.nan), member, 0.0, np.random.default_rng(0))
    with pytest.raises(ValueError, match="both needed"):
        decision_report(np.zeros(6), np.ones(6, bool), 0.0, np.random.default_rng(0))
