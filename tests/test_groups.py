"""Groups of clients and the deformation of their images."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import map_coordinates

from fedbench.core import UserError
from fedbench.core.population.groups import Groups, deform, make_groups, thresholds

NAN = float("nan")
TWO = [
    {"name": "minority", "fraction": 0.15, "rotation": [0, 25], "brightness": None},
    {"name": "majority", "fraction": None, "rotation": [25, 50], "brightness": [0.5, 0.8]},
]


def images(n: int = 6, c: int = 1, h: int = 9, w: int = 9, dtype: type = np.uint8) -> np.ndarray:
    x = np.random.default_rng(0).integers(0, 256, (n, c, h, w)).astype(np.uint8)
    return x if dtype == np.uint8 else (x / 255).astype(dtype)


def groups(rotation: list[float], brightness: list[float] | None = None) -> Groups:
    """One client for each angle."""
    lit = brightness or [NAN] * len(rotation)
    return Groups(
        ("all",), np.zeros(len(rotation), int), np.array(rotation, float), np.array(lit, float)
    )


def test_groups_are_blocks_of_clients_with_angles_and_factors_of_their_own():
    found = make_groups(TWO, 200, 3)
    assert (
        found.names == ("minority", "majority") and found.of_client.tolist() == [0] * 30 + [1] * 170
    )
    for drawn, low, high in (
        (found.rotation[:30], 0, 25),
        (found.rotation[30:], 25, 50),
        (found.brightness[30:], 0.5, 0.8),
        (thresholds(0.5, 0.8, 400, 7), 0.5, 0.8),
    ):
        assert ((drawn >= low) & (drawn <= high)).all() and len(np.unique(drawn)) == len(drawn)
        assert abs(drawn.mean() - (low + high) / 2) < 3 * (high - low) / np.sqrt(12 * len(drawn))
        assert np.ptp(drawn) > 0.6 * (high - low)
    assert np.isnan(found.brightness[:30]).all()
    assert abs(np.corrcoef(found.rotation[30:], found.brightness[30:])[0, 1]) < 0.4
    alone = make_groups([{"name": "all"}], 3, 0)
    assert (
        alone.of_client.tolist() == [0, 0, 0] and np.isnan([alone.rotation, alone.brightness]).all()
    )


def test_what_a_client_draws_depends_on_seed_and_client_alone():
    a, b, c = make_groups(TWO, 200, 3), make_groups(TWO, 200, 3), make_groups(TWO, 200, 4)
    assert np.array_equal(a.rotation, b.rotation) and np.array_equal(
        a.brightness, b.brightness, equal_nan=True
    )
    assert (a.rotation != c.rotation).all()
    fewer = make_groups([{**TWO[0], "brightness": [1, 2]}, TWO[1]], 100, 3)
    assert np.array_equal(fewer.rotation[:15], a.rotation[:15])
    assert np.array_equal(thresholds(0.5, 0.8, 10, 7), thresholds(0.5, 0.8, 400, 7)[:10])
    assert (thresholds(0.5, 0.8, 10, 7) != thresholds(0.5, 0.8, 10, 8)).all() and thresholds(
        0.6, 0.6, 2, 0
    ).tolist() == [0.6] * 2


@settings(max_examples=30)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=5),
    st.integers(5, 300),
    st.booleans(),
    st.integers(0, 4),
)
def test_every_client_has_one_group_and_sizes_are_as_asked(weights, clients, rest, where):
    fractions = [w / sum(weights) for w in weights]
    spec = [{"name": f"g{i}", "fraction": f} for i, f in enumerate(fractions)]
    position = where % len(spec)
    if rest:
        spec[position] = {"name": "rest"}
    try:
        found = make_groups(spec, clients, 0)
    except UserError as error:
        assert f"{clients} clients are divided as" in str(error) and min(fractions) * clients < max(
            1, len(spec)
        )
        return
    sizes = np.bincount(found.of_client, minlength=len(spec))
    assert sizes.sum() == clients and sizes.min() >= 1 and (np.diff(found.of_client) >= 0).all()
    others = np.arange(len(spec)) != position if rest else np.ones(len(spec), bool)
    assert (
        np.abs(sizes - np.array(fractions) * clients)[others] <= (0.5 + 1e-6 if rest else 1)
    ).all()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            [{"name": "a", "fraction": 0.7}, {"name": "b", "fraction": 0.2}],
            "sum to 0.9, not 1; raise them, or leave one out",
        ),
        (
            [{"name": "a", "fraction": 1.0}, {"name": "b"}],
            "10 clients are divided as a 10, b 0: each group needs one",
        ),
        (
            [{"name": "a"}, {"name": "b"}, {"name": "c", "fraction": 0.5}],
            "2 groups have no fraction",
        ),
    ],
)
def test_groups_that_cannot_be_are_refused(spec, message):
    with pytest.raises(UserError, match=message):
        make_groups(spec, 10, 0)


# -- deformation -----------------------------------------------------------------------------------


def slowly_deformed(image: np.ndarray, angle: float, factor: float) -> np.ndarray:
    """[C, H, W] turned counter-clockwise, bilinear, 0 outside; times the factor, cut at full
    intensity.
    """
    h, w = image.shape[1:]
    radians = np.deg2rad(angle)
    rows, columns = np.mgrid[:h, :w].astype(float)
    up, right = (h - 1) / 2 - rows, columns - (w - 1) / 2
    came_right, came_up = (
        np.cos(radians) * right + np.sin(radians) * up,
        np.cos(radians) * up - np.sin(radians) * right,
    )
    where = [(h - 1) / 2 - came_up + 2, came_right + (w - 1) / 2 + 2]
    turned = np.stack(
        [map_coordinates(np.pad(plane, 2).astype(float), where, order=1, cval=0) for plane in image]
    )
    return np.clip(turned * factor, 0, 255 if image.dtype == np.uint8 else 1)


@settings(max_examples=20)
@given(
    angle=st.floats(-400, 400),
    factor=st.sampled_from([1.0, 0.0, 0.5, 1.7]),
    shape=st.sampled_from([(9, 9), (8, 8), (11, 8)]),
    dtype=st.sampled_from([np.uint8, np.float32]),
)
def test_a_rotation_is_bilinear_and_brightness_a_factor(angle, factor, shape, dtype):
    x = images(2, 2, *shape, dtype)
    found = deform(x, np.array([0, 1]), groups([angle, NAN], [factor, factor]))
    assert found.dtype == dtype
    off = 0.51 if dtype == np.uint8 else 2e-5  # bytes are rounded once, at the end
    assert np.abs(found[0] - slowly_deformed(x[0], angle, factor)).max() <= off + 1e-2 * (
        dtype == np.uint8
    )
    assert np.abs(found[1] - slowly_deformed(x[1], 0, factor)).max() <= off


def test_quarter_turns_are_exact():
    x = images(c=3)
    for quarters in (1, 2, 3, -1):
        found = deform(x, np.zeros(6, int), groups([90.0 * quarters]))
        assert np.array_equal(found, np.rot90(x, quarters, axes=(2, 3))), quarters
    odd = x.astype(np.float32) - 300  # no intensities: they may be turned, and left alone
    assert np.array_equal(deform(odd, np.zeros(6, int), groups([360.0], [1.0])), odd)
    assert np.allclose(
        deform(odd, np.zeros(6, int), groups([180.0])), odd[:, :, ::-1, ::-1], rtol=1e-5
    )


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_each_sample_is_deformed_as_its_clients_are_whatever_else_is_there(dtype):
    x = images(n=40, dtype=dtype)
    of_client = np.random.default_rng(1).integers(0, 4, 40)
    who, before = groups([10.0, 360.0, 30.0, NAN], [NAN, 1.0, 1.2, 0.7]), x.copy()
    found = deform(x, of_client, who)
    assert np.array_equal(x, before) and np.array_equal(found[of_client == 1], x[of_client == 1])
    assert np.array_equal(
        found, np.concatenate([deform(x[i : i + 1], of_client[i : i + 1], who) for i in range(40)])
    )
    assert all((found[of_client == k] != x[of_client == k]).any() for k in (0, 2, 3))
    assert deform(x[:0], of_client[:0], who).shape == (0, 1, 9, 9)


def flat(*values: float) -> np.ndarray:
    return np.array(values, np.float32).reshape(-1, 1, 1, 1)


@pytest.mark.parametrize(
    ("x", "of_client", "who", "kind", "message"),
    [
        (
            np.zeros((3, 600), np.float32),
            [0] * 3,
            groups([10.0]),
            UserError,
            r"the samples are \[600\] float32",
        ),
        (np.zeros((3, 1, 4, 4)), [0] * 3, groups([10.0]), UserError, "float64"),
        (flat(-1, 3), [0, 0], groups([NAN], [1.2]), UserError, r"reach from -1 to 3"),
    ],
    ids=["no images", "doubles", "no intensities"],
)
def test_what_cannot_be_deformed_is_refused(x, of_client, who, kind, message):
    with pytest.raises(kind, match=message):
        deform(x, np.array(of_client), who)
