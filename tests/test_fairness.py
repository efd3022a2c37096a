"""Fairness between groups of clients next to a naive loop."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbench.plugins.analyses.fairness import (
    demographic_parity,
    equal_opportunity,
    equalised_odds,
    fairness_report,
)

NAN = float("nan")


def naive(predicted, y, group) -> tuple[float, float, float]:
    """The three notions, sample by sample: the largest over pairs of the mean over classes."""
    worst = [-1.0, -1.0, -1.0]
    for a, b in combinations(sorted(set(group.tolist())), 2):
        gaps: tuple[list, list, list] = ([], [], [])
        for c in sorted({*predicted.tolist(), *y.tolist()}):
            rates = []
            for g in (a, b):
                mine = [(p, t) for p, t, s in zip(predicted, y, group, strict=True) if s == g]
                share = [p == c for p, _ in mine]
                rates.append((share, [p == c for p, t in mine if t == c], [p == c for p, t in mine if t != c]))
            for i, occurs in enumerate((c in predicted, c in y, c in y)):
                if occurs and rates[0][i] and rates[1][i]:
                    gaps[i].append(abs(np.mean(rates[0][i]) - np.mean(rates[1][i])))
        parity, tpr, fpr = (np.mean(g) if g else NAN for g in gaps)
        worst = [max(w, v) if v == v else w for w, v in zip(worst, (parity, tpr, (tpr + fpr) / 2), strict=True)]
    return tuple(worst)


@settings(max_examples=80, deadline=None)
@given(st.integers(2, 5), st.integers(2, 3), st.integers(12, 60), st.integers(0, 10_000))
def test_fairness_is_the_naive_loop(classes, n_groups, n, seed):
    rng = np.random.default_rng(seed)
    predicted, y, group = rng.integers(0, classes, n), rng.integers(0, classes, n) * 2, rng.integers(0, n_groups, n) * 5 - 1
    group[:n_groups], y[:n_groups] = np.arange(n_groups) * 5 - 1, 0  # every group is there and has a class in common
    expected = naive(predicted, y, group)
    found = demographic_parity(predicted, group), equal_opportunity(predicted, y, group), equalised_odds(predicted, y, group)
    assert found == pytest.approx(expected)
    assert all(0 <= v <= 1 for v in found)


def test_fairness_by_hand():
    group = np.array([0] * 4 + [1] * 4)
    y = np.array([0, 0, 1, 1, 0, 0, 1, 1])
    assert equalised_odds(y, y, group) == equal_opportunity(y, y, group) == demographic_parity(y, group) == 0
    predicted = np.array([0, 0, 1, 1, 1, 1, 1, 1])  # right for group 0; always class 1 for group 1
    assert demographic_parity(predicted, group) == 0.5  # class 0: 0.5 - 0, class 1: 0.5 - 1
    assert equal_opportunity(predicted, y, group) == 0.5  # TPR of class 0: 1 - 0, of class 1: 1 - 1
    assert equalised_odds(predicted, y, group) == 0.5  # FPR of class 0: 0 - 0, of class 1: 0 - 1
    crossed = np.array([0, 0, 1, 1, 1, 1, 0, 0])
    assert demographic_parity(crossed, group) == 0 and equalised_odds(crossed, y, group) == 1
    three = np.array([0, 0, 1, 1, 2, 2, 1, 1])  # groups 0 and 1 always right, group 2 always wrong
    assert equal_opportunity(np.array([0, 1, 0, 1, 1, 0, 0, 1]), np.array([0, 1] * 4), three) == 1


def test_fairness_refuses_what_it_cannot_compare():
    group = np.array([0, 0, 1, 1])
    with pytest.raises(ValueError, match="no two groups have a class in common"):
        equal_opportunity(np.zeros(4, int), group, group)
    assert demographic_parity(np.zeros(4, int), group) == 0
    with pytest.raises(ValueError, match="at least two groups, got 1"):
        demographic_parity(np.zeros(4, int), np.zeros(4, int))
    with pytest.raises(ValueError, match="one length"):
        equalised_odds(np.zeros(4, int), np.zeros(3, int), group)
    with pytest.raises(ValueError, match="at least 2 replicates"):
        fairness_report(group, group, np.array([0, 1, 0, 1]), np.random.default_rng(0), n=1)


def test_the_report_has_the_points_and_the_spread_of_fresh_samples():
    def sample(rng, n=600):
        y, group = rng.integers(0, 4, n), np.repeat([0, 1], n // 2)
        wrong = rng.random(n) < np.where(group == 0, 0.1, 0.45)
        return np.where(wrong, (y + 1) % 4, y), y, group

    predicted, y, group = sample(np.random.default_rng(0))
    report = fairness_report(predicted, y, group, np.random.default_rng(1))
    assert report == fairness_report(predicted, y, group, np.random.default_rng(1))
    assert report.equal_opportunity == equal_opportunity(predicted, y, group) == pytest.approx(0.35, abs=0.1)
    assert report.equalised_odds == equalised_odds(predicted, y, group)
    assert report.demographic_parity == demographic_parity(predicted, group)
    rng = np.random.default_rng(2)
    spread = np.std([equal_opportunity(*sample(rng)) for _ in range(150)], ddof=1)
    assert report.equal_opportunity_se == pytest.approx(spread, rel=0.35)
    assert 0 < report.equalised_odds_se < report.equal_opportunity_se and report.demographic_parity_se > 0
    quarter = fairness_report(*(a[::4] for a in (predicted, y, group)), np.random.default_rng(1))
    assert 1.4 < quarter.equal_opportunity_se / report.equal_opportunity_se < 2.9  # 1 / sqrt(n)


def test_the_report_resamples_samples_within_their_group():
    rng = np.random.default_rng(3)
    y, group = rng.integers(0, 3, 180), np.repeat([0, 1], [60, 120])
    predicted = np.where((group == 1) & (rng.random(180) < 0.6), (y + 1) % 3, y)  # far apart, so that 0 is out of reach
    values = []
    for _ in range(600):
        rows = np.concatenate([rng.choice(np.flatnonzero(group == g), (group == g).sum()) for g in (0, 1)])
        values.append(equalised_odds(predicted[rows], y[rows], group[rows]))
    found = fairness_report(predicted, y, group, np.random.default_rng(4), n=600)
    assert found.equalised_odds_se == pytest.approx(np.std(values, ddof=1), rel=0.15)


@given(groups=st.integers(2, 4), n=st.integers(2, 12), seed=st.integers(0, 99))
@settings(max_examples=30)
def test_groups_without_a_class_in_common_have_no_gap_of_rates_and_no_failure(groups, n, seed):
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), n)
    predicted = rng.integers(0, groups, len(group))
    found = fairness_report(predicted, group, group, np.random.default_rng(0), n=20)  # y: each group has a class of its own
    assert (found.equal_opportunity, found.equal_opportunity_se) == (None, None)
    assert found.demographic_parity == demographic_parity(predicted, group) and found.demographic_parity_se is not None
