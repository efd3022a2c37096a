"""Groups of clients and what deforms their images, FEMNIST and LEAF's network."""

from __future__ import annotations

import gzip
import hashlib
import json
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import map_coordinates
from torch import nn
from torch.nn.functional import conv2d, linear, max_pool2d, relu

from fedbench.core import Remote, UserError
from fedbench.core.population.groups import Groups, deform, make_groups, rotate, thresholds
from fedbench.core.registry.components import Registry
from fedbench.core.toolkit.check import check_data
from fedbench.plugins.datasets import femnist
from fedbench.plugins.datasets.digits import Digits
from fedbench.plugins.datasets.femnist import Femnist, read_part, upright
from fedbench.plugins.datasets.imageset import moments

NAN = float("nan")
TWO = [
    {"name": "minority", "fraction": 0.15, "rotation": [0, 25], "brightness": None},
    {"name": "majority", "fraction": None, "rotation": [25, 50], "brightness": [0.5, 0.8]},
]


def images(n: int = 6, c: int = 1, h: int = 9, w: int = 9, seed: int = 0, dtype=np.uint8) -> np.ndarray:
    x = np.random.default_rng(seed).integers(0, 256, (n, c, h, w)).astype(np.uint8)
    return x if dtype == np.uint8 else (x / 255).astype(dtype)


def groups(rotation=(), brightness=()) -> Groups:
    k = max(len(rotation), len(brightness))
    full = [np.array([*values, *[NAN] * (k - len(values))], float) for values in (rotation, brightness)]
    return Groups(("all",), np.zeros(k, int), *full)


def all_of(k: int, x: np.ndarray) -> np.ndarray:
    return np.full(len(x), k)


# -- groups ----------------------------------------------------------------------------------------------------------


def test_groups_are_blocks_of_clients_with_angles_of_their_own():
    found = make_groups(TWO, 200, 3)
    assert found.names == ("minority", "majority") and found.of_client.tolist() == [0] * 30 + [1] * 170
    assert ((found.rotation[:30] >= 0) & (found.rotation[:30] <= 25)).all()
    assert ((found.rotation[30:] >= 25) & (found.rotation[30:] <= 50)).all()
    assert np.isnan(found.brightness[:30]).all()
    assert ((found.brightness[30:] >= 0.5) & (found.brightness[30:] <= 0.8)).all()
    assert len(np.unique(found.rotation)) == 200 and len(np.unique(found.brightness[30:])) == 170
    assert found.rotation[:30].max() - found.rotation[:30].min() > 15  # uniform, not one angle a group
    assert abs(np.corrcoef(found.rotation[30:], found.brightness[30:])[0, 1]) < 0.4


def test_a_clients_angle_depends_on_seed_and_client_alone():
    a, b, c = make_groups(TWO, 200, 3), make_groups(TWO, 200, 3), make_groups(TWO, 200, 4)
    assert np.array_equal(a.rotation, b.rotation) and np.array_equal(a.brightness, b.brightness, equal_nan=True)
    assert (a.rotation != c.rotation).all()
    fewer = make_groups([{**TWO[0], "brightness": [1, 2]}, TWO[1]], 100, 3)
    assert np.array_equal(fewer.rotation[:15], a.rotation[:15])  # no draw shifts another


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.integers(5, 300), st.booleans(), st.integers(0, 4))
def test_everybody_has_one_group_and_sizes_are_as_asked(weights, clients, rest, where):
    fractions = [w / sum(weights) for w in weights]
    spec = [{"name": f"g{i}", "fraction": f} for i, f in enumerate(fractions)]
    position = where % len(spec)
    if rest:
        spec[position] = {"name": "rest"}
    try:
        found = make_groups(spec, clients, 0)
    except UserError as error:
        assert f"{clients} clients are divided as" in str(error) and min(fractions) * clients < max(1, len(spec))
        return
    sizes = np.bincount(found.of_client, minlength=len(spec))
    assert sizes.sum() == clients and sizes.min() >= 1 and (np.diff(found.of_client) >= 0).all()
    exact = np.array(fractions) * clients
    others = np.arange(len(spec)) != position if rest else np.ones(len(spec), bool)
    assert (np.abs(sizes - exact)[others] <= (0.5 + 1e-6 if rest else 1)).all()


@pytest.mark.parametrize(("spec", "clients", "text"), [
    ([], 4, "none given"),
    ([{"name": "a", "fraction": 0.7}, {"name": "b", "fraction": 0.7}], 10, "sum to 1.4, not 1; lower them"),
    ([{"name": "a", "fraction": 0.7}, {"name": "b", "fraction": 0.2}], 10, "sum to 0.9, not 1; raise them, or leave one out"),
    ([{"name": "a", "fraction": 1.0}, {"name": "b"}], 10, "10 clients are divided as a 10, b 0: each group needs one"),
    ([{"name": "a", "fraction": 0.01}, {"name": "b"}], 10, "10 clients are divided as a 0, b 10"),
    ([{"name": "a"}, {"name": "b"}, {"name": "c", "fraction": 0.5}], 10, "2 groups have no fraction"),
    ([{"name": "a", "fraction": 0.0}, {"name": "b"}], 10, "the fraction 0 is not above 0"),
    ([{"name": "a", "fraction": NAN}, {"name": "b"}], 10, "the fraction nan is not above 0"),
    ([{"name": "a", "fraction": 0.5}, {"name": "a"}], 10, "'a' is given 2 times"),
    ([{"name": "a", "rotation": [20, 10]}], 10, r"'a': rotation \[20, 10\] is no range \[low, high\] in degrees"),
    ([{"name": "a", "rotation": [0, float("inf")]}], 10, "rotation"),
    ([{"name": "a", "brightness": [-0.1, 1]}], 10, "brightness .* a factor, 0 or more"),
    ([{"name": "a", "brightness": [1]}], 10, "brightness"),
])  # fmt: skip
def test_every_bad_group_has_its_message(spec, clients, text):
    with pytest.raises(UserError, match=text):
        make_groups(spec, clients, 0)


def test_one_group_of_all():
    found = make_groups([{"name": "all"}], 3, 0)
    assert found.of_client.tolist() == [0, 0, 0] and np.isnan(found.rotation).all() and np.isnan(found.brightness).all()


def test_thresholds_are_keyed_and_in_range():
    found = thresholds(0.5, 0.8, 400, 7)
    assert found.shape == (400,) and ((found >= 0.5) & (found <= 0.8)).all() and abs(found.mean() - 0.65) < 0.02
    assert np.array_equal(found[:10], thresholds(0.5, 0.8, 10, 7)) and (found != thresholds(0.5, 0.8, 400, 8)).any()
    assert thresholds(0.6, 0.6, 2, 0).tolist() == [0.6, 0.6]
    for low, high in ((0.8, 0.5), (-0.1, 0.5), (0.5, 1.1), (NAN, 1)):
        with pytest.raises(UserError, match=r"no range within 0\.\.1"):
            thresholds(low, high, 2, 0)


# -- rotation --------------------------------------------------------------------------------------------------------

BOTH = pytest.mark.parametrize("dtype", [np.uint8, np.float32])


@BOTH
@pytest.mark.parametrize("side", [8, 9])
@pytest.mark.parametrize("quarters", [1, 2, 3, -1])
def test_quarter_turns_are_numpys(dtype, side, quarters):
    x = images(h=side, w=side, c=3, dtype=dtype)
    found = deform(x, all_of(0, x), groups([90.0 * quarters]))
    expected = np.rot90(x, quarters, axes=(2, 3))
    assert found.dtype == dtype and np.allclose(found, expected, rtol=0, atol=0 if dtype == np.uint8 else 1e-5)


def test_half_a_turn_is_both_flips_of_any_rectangle():
    x = images(h=5, w=12)
    assert np.array_equal(deform(x, all_of(0, x), groups([180.0])), x[:, :, ::-1, ::-1])


@BOTH
@pytest.mark.parametrize("factor", [NAN, 1.0])
@pytest.mark.parametrize("angle", [0.0, NAN, 360.0, -360.0])
def test_nothing_to_do_keeps_every_bit(dtype, factor, angle):
    x = images(dtype=dtype)
    found = deform(x, all_of(0, x), groups([angle], [factor]))
    assert np.array_equal(found, x) and found.dtype == dtype
    if dtype == np.float32 and np.isnan(factor):
        odd = (x - 0.5) * 7  # not intensities: no matter
        assert np.array_equal(deform(odd, all_of(0, x), groups([angle], [factor])), odd)


@pytest.mark.parametrize("angle", [20.0, 65.0, -33.0])
def test_a_rotation_is_bilinear_with_zeros_outside(angle):
    x = images(n=3, c=2, h=11, w=8, dtype=np.float32)
    radians, (h, w) = np.deg2rad(angle), x.shape[2:]
    rows, columns = np.mgrid[:h, :w].astype(float)
    up, right = (h - 1) / 2 - rows, columns - (w - 1) / 2  # the mathematician's axes
    came_right, came_up = np.cos(radians) * right + np.sin(radians) * up, np.cos(radians) * up - np.sin(radians) * right
    where = [(h - 1) / 2 - came_up, came_right + (w - 1) / 2]
    expected = [[map_coordinates(np.pad(p, 2).astype(float), [a + 2 for a in where], order=1, cval=0) for p in s] for s in x]
    found = rotate(x, angle)
    assert found.dtype == np.float32 and np.allclose(found, expected, atol=1e-5)
    assert (found == 0).any() and not np.allclose(found, rotate(x, -angle), atol=0.1)


def test_turning_to_and_fro_gives_a_smooth_image_back():
    rows, columns = np.mgrid[-14:14, -14:14] + 0.5
    blob = (200 * np.exp(-((rows - 3) ** 2 + columns**2) / 30)).astype(np.uint8)[None, None]
    there = deform(blob, np.array([0]), groups([40.0, -40.0]))
    back = deform(there, np.array([1]), groups([40.0, -40.0]))
    assert np.abs(there.astype(int) - blob).max() > 30 and np.abs(back.astype(int) - blob).max() <= 6


# -- brightness ------------------------------------------------------------------------------------------------------


def test_brightness_multiplies_rounds_and_cuts():
    x = images()
    dark, light = (deform(x, all_of(k, x), groups([], [0.5, 1.5])) for k in (0, 1))
    assert np.array_equal(dark, np.rint(x * 0.5)) and np.array_equal(light, np.minimum(np.rint(x * 1.5), 255))
    assert light.max() == 255 and (light == 255).mean() > 0.25
    assert not deform(x, all_of(0, x), groups([], [0.0])).any()
    f = images(dtype=np.float32)
    assert np.allclose(deform(f, all_of(1, f), groups([], [0.5, 1.5])), np.minimum(f * 1.5, 1))


def test_rotation_and_brightness_are_rounded_once():
    x = images()
    found = deform(x, all_of(0, x), groups([30.0], [1.3]))
    assert np.array_equal(found, np.rint(np.clip(rotate(x, 30.0) * np.float32(1.3), 0, 255)))


# -- whose image -----------------------------------------------------------------------------------------------------


@BOTH
def test_each_sample_is_its_clients_whatever_else_is_there(dtype, monkeypatch):
    x = images(n=40, dtype=dtype)
    client = np.random.default_rng(1).integers(0, 4, 40)
    who, before = groups([10.0, NAN, 30.0, 40.0], [NAN, NAN, 1.2, 0.7]), x.copy()
    found = deform(x, client, who)
    assert np.array_equal(x, before) and np.array_equal(found[client == 1], x[client == 1])
    one_by_one = np.concatenate([deform(x[i : i + 1], client[i : i + 1], who) for i in range(40)])
    assert np.array_equal(found, one_by_one) and np.array_equal(found, deform(x, client, who))
    monkeypatch.setattr("fedbench.core.population.groups._CHUNK", 3 * 81)
    assert np.array_equal(found, deform(x, client, who))
    for k in (0, 2, 3):
        assert (found[client == k] != x[client == k]).any()


def test_what_is_no_image_and_who_is_no_client():
    with pytest.raises(UserError, match=r"the samples are \[600\] float32: .* need a data set with samples \[channels"):
        deform(np.zeros((3, 600), np.float32), np.zeros(3, int), groups([10.0]))
    with pytest.raises(UserError, match="float64"):
        deform(np.zeros((3, 1, 4, 4)), np.zeros(3, int), groups([10.0]))
    with pytest.raises(UserError, match=r"reach from -1 to 3"):
        deform(np.array([-1, 3], np.float32).reshape(2, 1, 1, 1), np.zeros(2, int), groups([], [1.2]))
    for client in ([0, 1, 2], [0, -1, 0], [0, 0]):
        with pytest.raises(ValueError, match="client must hold"):
            deform(images(n=3), np.array(client), groups([10.0, NAN]))
    assert deform(images(n=0), np.zeros(0, int), groups([10.0])).shape == (0, 1, 9, 9)


def test_digits_are_images_already():
    data = Digits().load(0)
    assert data.train_x.shape[1:] == (1, 8, 8) and data.train_x.dtype == np.float32
    turned = deform(data.train_x, np.arange(len(data.train_x)) % 2, groups([90.0, NAN]))
    assert np.allclose(turned[::2], np.rot90(data.train_x[::2], axes=(2, 3)), atol=1e-5)
    assert np.array_equal(turned[1::2], data.train_x[1::2])


# -- FEMNIST ---------------------------------------------------------------------------------------------------------


def idx(a: np.ndarray) -> bytes:
    return bytes((0, 0, 8, a.ndim)) + np.array(a.shape, ">u4").tobytes() + a.astype(np.uint8).tobytes()


def emnist_files(train: int = 186, test: int = 124) -> dict[str, bytes]:
    """Images as EMNIST stores them: a bright bar in the first row of the upright image is a column there."""
    files = {}
    for part, n in (("train", train), ("test", test)):
        y = np.arange(n) % 62
        x = np.zeros((n, 28, 28), np.uint8)
        x[:, 0, :] = (y * 4 + 3)[:, None]  # upright: row 0
        files[f"emnist-byclass-{part}-images-idx3-ubyte"] = idx(x.transpose(0, 2, 1))
        files[f"emnist-byclass-{part}-labels-idx1-ubyte"] = idx(y)
    return files


@pytest.fixture
def emnist(home, monkeypatch):
    folder = home / "EMNIST" / "raw"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "gzip.zip", "w") as z:
        z.writestr("gzip/emnist-letters-mapping.txt", "1 65 97")
        for name, content in emnist_files().items():
            z.writestr(f"gzip/{name}.gz", gzip.compress(content))
    content = (folder / "gzip.zip").read_bytes()
    remote = Remote("gzip.zip", Femnist.remote.urls, f"md5:{hashlib.md5(content).hexdigest()}", len(content))
    monkeypatch.setattr(Femnist, "remote", remote)
    monkeypatch.setattr(Femnist, "expected", (186, 124))
    return folder


def expect_bars(x: np.ndarray, y: np.ndarray) -> None:
    assert x.dtype == np.uint8 and x.shape[1:] == (1, 28, 28)
    assert (x[:, 0, 0, :] == (y * 4 + 3)[:, None]).all() and not x[:, 0, 1:, :].any()


def test_emnist_is_read_upright_from_the_archive(emnist):
    data = check_data(Femnist(holdout=62).load(0), "femnist")
    assert data.n_classes == 62 and (len(data.train_y), len(data.test_y), len(data.holdout_y)) == (186, 62, 62)
    for part in ("train", "test", "holdout"):
        expect_bars(getattr(data, f"{part}_x"), getattr(data, f"{part}_y"))
    assert Femnist.here() == f"{emnist} (EMNIST ByClass, writers: no)"
    found = moments(data.train_x)
    assert (tuple(found["mean"]), tuple(found["std"])) == (data.mean, data.std)
    small = Femnist(train=124, test=62, holdout=62).load(1)
    assert len(small.train_y) == 124 and np.bincount(small.train_y).tolist() == [2] * 62


def test_emnist_as_torchvision_unpacks_it_is_the_same(emnist):
    packed = Femnist(holdout=62).load(0).digest()
    for name, content in emnist_files().items():
        (emnist / name).write_bytes(content)
    (emnist / "gzip.zip").unlink()
    assert Femnist(holdout=62, form="emnist").load(0).digest() == packed


def test_upright_is_a_transpose_however_long(monkeypatch):
    x = images(n=7, h=5, w=5)[:, 0]
    expected = x.transpose(0, 2, 1).copy()
    monkeypatch.setattr(femnist, "_CHUNK", 3)
    assert np.array_equal(upright(x), expected)


def test_a_missing_or_damaged_emnist_says_what_to_do(emnist, home):
    files = emnist_files()
    name = "emnist-byclass-test-labels-idx1-ubyte"
    for content, text in (
        (files[name][:-1], "is not the idx file of bytes"),
        (files[name] + b"x", "is not the idx file of bytes"),
        (b"", "is not the idx file of bytes"),
        (idx(np.arange(124) % 63), r"labels are not 0\.\.61"),
        (emnist_files(test=123)[name], r"bytes \[124\] of EMNIST ByClass"),
    ):
        for stem, good in files.items():
            (emnist / stem).write_bytes(content if stem == name else good)
        with pytest.raises(UserError, match=text):
            Femnist(holdout=62).load(0)
    (emnist / name).unlink()
    with zipfile.ZipFile(emnist / "other.zip", "w") as z:
        z.writestr(f"gzip/{name}.gz", gzip.compress(files[name])[:-9])
    for stem in (name, "absent"):
        with pytest.raises(UserError, match=r"other\.zip: .* cannot be read .*delete it"):
            read_part(emnist / "other.zip", stem, (124,))
    (emnist / "gzip.zip").unlink()
    assert Femnist.here() is False
    with pytest.raises(UserError, match=r"FEDBENCH_OFFLINE is set: download https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip"):
        Femnist().load(0)


def leaf_json(first: int, n: int, writer: str) -> dict:
    """One writer of LEAF: white paper (1.0), the first row inked."""
    y = [(first + i) % 62 for i in range(n)]
    x = [[1 - (c * 4 + 3) / 255] * 28 + [1.0] * 756 for c in y]
    return {"users": [writer], "num_samples": [n], "user_data": {writer: {"x": x, "y": y}}}


@pytest.fixture
def leaf(home):
    folder = home / "femnist" / "data"
    for part, writers, n in (("train", 4, 62), ("test", 4, 31)):
        (folder / part).mkdir(parents=True)
        for w in range(writers):
            (folder / part / f"all_data_{w}.json").write_text(json.dumps(leaf_json(w * 31, n, f"f000{w}_14")))
    return folder


def test_leafs_files_are_read_and_preferred(leaf, home):
    data = check_data(Femnist(holdout=62).load(0), "femnist")
    assert (len(data.train_y), len(data.test_y), len(data.holdout_y)) == (248, 62, 62) and data.n_classes == 62
    assert data.train_y[:3].tolist() == [0, 1, 2] and data.train_y[62] == 31  # writer by writer
    for part in ("train", "test", "holdout"):
        expect_bars(getattr(data, f"{part}_x"), getattr(data, f"{part}_y"))
    assert Femnist.here() == f"{leaf} (LEAF, writers: yes)"
    with pytest.raises(UserError, match=r"gzip\.zip is not in"):
        Femnist(form="emnist").load(0)


def test_without_leafs_files_it_says_how_to_make_them(home):
    with pytest.raises(UserError, match=r"no json file in .*femnist/data/train: run 'preprocess.sh .* -t sample'"):
        Femnist(form="leaf").load(0)


def changed(**changes) -> str:
    whole = leaf_json(0, 62, "w")
    whole["user_data"]["w"] |= {k: v for k, v in changes.items() if k in "xy"}
    return json.dumps({**whole, **{k: v for k, v in changes.items() if k not in "xy"}})


PIXELS = [[1.0] * 784] * 62


@pytest.mark.parametrize(("text", "told"), [
    ("{", "cannot be read"),
    ("[" * 200_000, "cannot be read"),
    ("[]", "not LEAF's format"),
    (changed(users=["w", "w"]), "not LEAF's format: 'users' must list"),
    (changed(users=["v"]), "not LEAF's format"),
    (changed(num_samples=[1, 2]), "one count per user"),
    (changed(num_samples=[61]), "62 images, 62 labels, num_samples 61"),
    (changed(user_data={"w": []}), "no lists 'x' and 'y'"),
    (changed(x=PIXELS[:-1]), "61 images, 62 labels"),
    (changed(x=[[1.0] * 783] * 62), "784 numbers"),
    (changed(x=[*PIXELS[:-1], [1.0] * 783]), "inhomogeneous"),
    (changed(x=[*PIXELS[:-1], [NAN] * 784]), "784 numbers"),
    (changed(x=[*PIXELS[:-1], [1.01] * 784]), "784 numbers"),
    (changed(x=[["1"] * 784] * 62), "784 numbers"),
    (changed(x=[[None] * 784] * 62), "784 numbers"),
    (changed(y=[0.5] * 62), "labels must be whole numbers"),
    (changed(y=[62] * 62), r"writer 'w': 62 labels are not 0\.\.61"),
    (changed(y=[[1]] * 62), "labels must be whole numbers"),
    (changed(y=[5] * 62), "62 images, none of class 0"),
    (json.dumps({"users": [], "user_data": {}}), "no writer in 1 json files"),
])  # fmt: skip
def test_every_bad_json_has_its_message(leaf, text, told):
    for file in (leaf / "train").glob("*.json"):
        file.unlink()
    (leaf / "train" / "all_data_0.json").write_text(text)
    with pytest.raises(UserError, match=told) as caught:
        Femnist(holdout=62).load(0)
    assert "train" in str(caught.value)


def test_leafs_files_are_bounded(leaf, monkeypatch):
    monkeypatch.setattr(femnist, "_MOST_IMAGES", 247)
    with pytest.raises(UserError, match=r"all_data_3\.json: more than 247 images"):
        Femnist(holdout=62).load(0)
    monkeypatch.setattr(femnist, "_MOST_BYTES", 1000)
    with pytest.raises(UserError, match=r"all_data_0\.json: cannot be read .*more than 1,000 bytes"):
        Femnist(holdout=62).load(0)


# -- LEAF's network --------------------------------------------------------------------------------------------------


def leaf_cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Registry.discover().get("model", "leaf-cnn").load()().build(shape, classes)


@pytest.mark.parametrize(("shape", "classes", "size"), [((1, 28, 28), 62, 6_603_710), ((3, 32, 32), 10, 8_464_842)])
def test_leafs_network_has_its_size(shape, classes, size):
    module = leaf_cnn(shape, classes)
    assert sum(p.numel() for p in module.parameters()) == size
    assert module(torch.zeros(2, *shape)).shape == (2, classes)


def test_leafs_network_layer_by_layer():
    module = leaf_cnn((1, 13, 9), 5).double()
    x = torch.randn(3, 1, 13, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    p = iter(module.parameters())
    h = x
    for _ in range(2):
        h = max_pool2d(relu(conv2d(h, next(p), next(p), padding=2)), 2)
    h = relu(linear(h.flatten(1), next(p), next(p)))
    torch.testing.assert_close(module(x), linear(h, next(p), next(p)))
    with pytest.raises(UserError, match=r"leaf-cnn needs images \[channels, height >= 4, width >= 4\], not \[600\]"):
        leaf_cnn((600,), 2)
