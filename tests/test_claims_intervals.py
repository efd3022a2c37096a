"""How sure an interval makes a claim: a value against it, and two of them that nothing pairs."""

from __future__ import annotations

import numpy as np
import pytest

from fedbench.core.metrics import Interval
from fedbench.leaderboard.statistics.claims_measures import p_of_interval, separate


def test_a_value_at_the_end_of_the_interval_has_five_percent():
    found = Interval(0.6, 0.02, 10, between=True)
    assert p_of_interval(found, 0.62, 5) == pytest.approx(0.05) and p_of_interval(found, 0.58, 5) == pytest.approx(0.05)
    assert p_of_interval(found, 0.65, 5) < p_of_interval(found, 0.65, 3) < 0.05 < p_of_interval(found, 0.61, 5)
    assert p_of_interval(found, 0.9, 1) == 1  # one training says nothing of the next
    assert p_of_interval(Interval(0.6, float("nan"), 2, between=True), 0.9, 5) == 1
    lopsided = Interval(1.0, 1.5, 5, between=True, ends=(0.5, 3.5))
    assert p_of_interval(lopsided, 3.5, 5) == pytest.approx(0.05) and p_of_interval(lopsided, 0.5, 5) == pytest.approx(0.05)


def test_two_separate_intervals():
    found = separate(Interval(0.7, 0.03, 5, between=True), Interval(0.6, 0.04, 5, between=True))
    assert (found.mean, found.low, found.high) == pytest.approx((0.1, 0.05, 0.15))
    low = separate(Interval(0.0, 1.0, 5, between=True, ends=(0.0, 2.0)), Interval(3.0, 2.0, 5, between=True, ends=(1.5, 5.5)))
    assert (low.low, low.high) == pytest.approx((-3.0 - 2.5, -3.0 + np.hypot(2.0, 1.5)))
