"""The equations, seen in the series."""

import numpy as np
import pytest
from fedbench_control_charts.control_charts import NAMES, ControlCharts


def series(**params):
    """(y(t) in the units of the equations [n, length], classes [n]) of the training split."""
    data = ControlCharts(**params).load(0)
    return 10 * data.train_x[:, 0] + 30, data.train_y


def of(name, **params):
    """The series of one class."""
    x, y = series(**params)
    return x[y == NAMES.index(name)]


def test_a_seed_gives_the_same_bits_and_another_seed_others():
    first, again, other = (ControlCharts().load(seed).digest() for seed in (3, 3, 4))
    assert first == again != other


def test_no_series_is_in_two_splits_and_classes_are_balanced():
    data = ControlCharts(train=120, other=60).load(0)
    every = np.concatenate([data.train_x, data.test_x, data.holdout_x])
    assert every.shape == (240, 1, 60) and len(np.unique(every, axis=0)) == 240
    assert (
        np.bincount(data.train_y).tolist() == [20] * 6
        and np.bincount(data.test_y).tolist() == [10] * 6
    )


def test_normal_ones_stay_within_three_spreads_of_the_mean():
    normal = of("normal")
    assert np.abs(normal - 30).max() <= 6.001
    assert normal.mean() == pytest.approx(30, abs=0.2) and normal.std() == pytest.approx(
        2 * 3**0.5, rel=0.02
    )


@pytest.mark.parametrize(("name", "sign"), [("increasing", 1), ("decreasing", -1)])
def test_trends_have_the_slopes_of_the_equations(name, sign):
    slopes = sign * np.polyfit(np.arange(60), of(name).T, 1)[0]
    assert (
        slopes.min() > 0.1 and slopes.max() < 0.6 and slopes.mean() == pytest.approx(0.35, abs=0.02)
    )


@pytest.mark.parametrize(("name", "sign"), [("upward shift", 1), ("downward shift", -1)])
def test_shifts_come_in_the_middle_third_and_stay(name, sign):
    shifted = sign * (of(name) - 30)
    assert np.abs(shifted[:, :20]).max() <= 6.001
    after = shifted[:, 40:].mean(1)
    assert after.min() > 7.5 - 2 and after.max() < 20 + 2


def test_cycles_have_periods_of_ten_to_fifteen_points():
    x = of("cyclic") - of("cyclic").mean(1, keepdims=True)
    strongest = np.abs(np.fft.rfft(x, axis=1)).argmax(1)
    assert set(strongest) <= {4, 5, 6}  # 60 / 15 to 60 / 10


def test_canaries_are_mislabelled_and_nothing_else_is():
    clean, noisy = (ControlCharts(label_noise=noise).load(0) for noise in (0.0, 0.3))
    assert np.array_equal(clean.train_x, noisy.train_x) and np.array_equal(
        clean.test_y, noisy.test_y
    )
    assert (
        np.array_equal(noisy.train_canary, clean.train_y != noisy.train_y)
        and noisy.train_canary.sum() == 360
    )
    assert noisy.holdout_canary.sum() == 180 and not clean.train_canary.any()


def test_a_longer_series_rises_as_high():
    rise = {
        n: np.polyfit(np.arange(n), of("increasing", length=n).T, 1)[0].mean() * n
        for n in (60, 240)
    }
    assert rise[240] == pytest.approx(rise[60], rel=0.1)
