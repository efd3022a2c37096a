"""Data sets, models and the partition of the poisoning papers."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import avg_pool2d, batch_norm, conv2d, group_norm, linear, relu

from fedbench.core import UserError
from fedbench.core.models.mlp_512_128 import MLP512x128
from fedbench.core.models.resnet20 import ResNet20
from fedbench.core.numerics.gradients import gradient_features
from fedbench.core.numerics.per_sample import per_sample_gradients
from fedbench.core.population.partition import partition
from fedbench.core.toolkit.check import check_data
from fedbench.core.toolkit.download import Remote, fetch
from fedbench.core.toolkit.folders import decoded_folder
from fedbench.plugins.datasets.fer2013 import Fer2013
from fedbench.plugins.datasets.location30 import Location30
from fedbench.plugins.datasets.purchase100 import Purchase100
from fedbench.plugins.datasets.records import Shape, most_bytes, read_features, read_labelled, read_labels
from fedbench.plugins.datasets.stl10 import Stl10
from fedbench.plugins.datasets.texas100 import Texas100

REAL = os.environ.get("FEDBENCH_DATA")
SMALL = Shape(rows=240, features=21, classes=6)
BITS = np.random.default_rng(0).integers(0, 2, (240, 21))
LABELS = np.random.default_rng(1).permutation(np.arange(240) % 6)

pytestmark = pytest.mark.usefixtures("home")


# -- binary records ----------------------------------------------------------------------------------------------------

FEATURES = "".join(",".join(map(str, row)) + "\n" for row in BITS).encode()
Y_LINES = "".join(f"{y + 1}\n" for y in LABELS).encode()
LABELLED = "".join(f"{y + 1},{','.join(map(str, r))}\n" for y, r in zip(LABELS, BITS, strict=True)).encode()
QUOTED = "".join(f'"{y + 1}",{",".join(map(str, r))}\n' for y, r in zip(LABELS, BITS, strict=True)).encode()
CONTENT = {
    Texas100: {"texas/100/feats": FEATURES, "texas/100/labels": Y_LINES},
    Purchase100: {"dataset_purchase": LABELLED},
    Location30: {"bangkok": QUOTED},
}
PUBLISHED = {cls: (cls.shape, cls.n_classes) for cls in CONTENT}  # before `small` cuts them
SETS = pytest.mark.parametrize("cls", CONTENT, ids=lambda c: c.name)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """The three sets of records, cut to 240 lines of 21 features and 6 classes."""
    for cls in CONTENT:
        monkeypatch.setattr(cls, "shape", SMALL)
        monkeypatch.setattr(cls, "n_classes", 6)


def put(folder: Path, content: dict[str, bytes]) -> None:
    for name, text in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text)


def tgz(path: Path, content: dict[str, bytes], prefix: str = "") -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in {"read.me": b"?", **content}.items():
            info = tarfile.TarInfo(prefix + name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text))
    return path


def everything(data) -> np.ndarray:
    x, y = (np.concatenate([getattr(data, f"{part}_{a}") for part in ("train", "test", "holdout")]) for a in "xy")
    rows = np.column_stack([x.reshape(len(x), -1), y])
    return rows[np.lexsort(rows.T)]


@SETS
def test_records_are_read_whole_and_split_without_overlap(cls, home):
    put(home, CONTENT[cls])
    data = check_data(cls().load(0), cls.name)
    assert data.train_x.dtype == np.float32 and data.input_shape == (21,) and data.n_classes == 6
    assert (len(data.train_y), len(data.test_y), len(data.holdout_y)) == (120, 60, 60)
    wanted = np.column_stack([BITS, LABELS])
    assert np.array_equal(everything(data), wanted[np.lexsort(wanted.T)])  # each record once, with its own label
    for y, n in ((data.train_y, 20), (data.test_y, 10), (data.holdout_y, 10)):
        assert np.bincount(y).tolist() == [n] * 6
    assert cls().load(0).digest() == data.digest() != cls().load(1).digest()
    assert len(list(decoded_folder().iterdir())) == 1


@SETS
@pytest.mark.parametrize("below", [True, False])
@pytest.mark.parametrize("prefix", ["", "./"])
def test_archive_and_files_in_either_folder_are_the_same_data(cls, home, below, prefix):
    put(home / "elsewhere", CONTENT[cls])
    folder = home / cls.name if below else home
    folder.mkdir(exist_ok=True)
    assert cls.here() is False
    archive = tgz(folder / cls.remote.name, CONTENT[cls], prefix)
    assert cls.here() == str(archive)
    packed = cls().load(3).digest()
    assert [p.name for p in folder.iterdir() if p.name not in (".decoded", "elsewhere")] == [archive.name]  # read in place
    put(folder, CONTENT[cls])
    assert cls.here() == str(folder / cls.files[0])
    assert cls().load(3).digest() == packed


@SETS
def test_counts_shares_and_canaries(cls, home):
    put(home, CONTENT[cls])
    data, whole = cls(train=30, test=24, holdout=0.1, label_noise=0.5).load(0), cls(test=24, holdout=0.1).load(0)
    assert (len(data.train_y), len(data.test_y), len(data.holdout_y)) == (30, 24, 24) and len(whole.train_y) == 192
    assert data.train_canary.sum() == 15 and data.holdout_canary.sum() == 12
    assert np.array_equal(data.test_x, whole.test_x) and np.array_equal(data.test_y, whole.test_y)
    for bad in ({"train": 0}, {"test": 1.5}, {"holdout": 0}, {"rows": 3}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            cls(**bad)
    with pytest.raises(UserError, match=f"{cls.name} has 192 training records, 200 asked for"):
        cls(train=200, test=24, holdout=24).load(0)


@SETS
def test_missing_records_say_what_from_where_and_where_to(cls, home):
    with pytest.raises(UserError) as caught:
        cls().load(0)
    text = str(caught.value)
    assert f"https://github.com/privacytrustlab/datasets/raw/master/{cls.remote.name}" in text
    assert "no published checksum" in text and f"put it at {home / cls.remote.name}" in text


def test_features_without_labels_are_named(home):
    put(home, {"texas/100/feats": FEATURES})
    with pytest.raises(UserError, match=r"texas/100/labels is missing beside .*feats"):
        Texas100().load(0)


def damaged(lines: bytes, row: int, change) -> bytes:
    parts = lines.splitlines(keepends=True)
    parts[row] = change(parts[row])
    return b"".join(parts)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("change", "text"), [
    (lambda t: damaged(t, 6, lambda r: r[:-3] + b"\n"), r":7: 20 features, 21 expected"),
    (lambda t: damaged(t, 6, lambda r: r[:-1] + b",1\n"), r":7: 22 features, 21 expected"),
    (lambda t: damaged(t, 0, lambda r: r[:-2] + b"2\n"), r":1: feature 21 is '2', neither 0 nor 1"),
    (lambda t: damaged(t, 3, lambda r: r[:-4] + b"x,1\n"), r":4: feature 20 is 'x', neither"),
    (lambda t: damaged(t, 9, lambda r: r.replace(b",", b";", 2)), r":10: "),
    (lambda t: damaged(t, 4, lambda r: b'"0"' + r[r.index(b","):]), r""":5: the label is '"0"', not 1\.\.6"""),
    (lambda t: damaged(t, 4, lambda r: b'"7"' + r[r.index(b","):]), r""":5: the label is '"7"', not 1\.\.6"""),
    (lambda t: damaged(t, 4, lambda r: b"-1" + r[r.index(b","):]), r":5: the label is '-1', not"),
    (lambda t: t[:-5], r":240: \d+ features, 21 expected: truncated"),
    (lambda t: b"".join(t.splitlines(keepends=True)[:200]), r":200: the file ends here, 240 lines expected: truncated"),
    (lambda t: b"", r":0: the file ends here"),
    (lambda t: t + t[:60], r":241: more than the 240 lines expected"),
    (lambda t: damaged(t, 2, lambda r: b"0" * 5000), r":3: more than \d+ bytes in a line"),
    (lambda t: t.replace(b'"6",', b'"5",'), r"no record of class 6 of 1\.\.6"),
])  # fmt: skip
def test_bad_records_are_named_by_file_and_line(home, change, text, packed):
    content = {"bangkok": change(QUOTED)}
    if packed:
        tgz(home / Location30.remote.name, content)
    else:
        put(home / "location30", content)
    with pytest.raises(UserError, match=text) as caught:
        Location30().load(0)
    assert (f"{Location30.remote.name}" if packed else str(home / "location30" / "bangkok")) in str(caught.value)
    assert not decoded_folder().exists()


@pytest.mark.parametrize("keep", [0.0, 0.4, 0.9])
def test_a_truncated_archive_is_a_users_error(home, keep):
    archive = tgz(home / Texas100.remote.name, CONTENT[Texas100])
    archive.write_bytes(archive.read_bytes()[: int(keep * archive.stat().st_size)])
    with pytest.raises(UserError, match=r"dataset_texas\.tgz: (a damaged archive|holds no)|truncated"):
        Texas100().load(0)


def test_another_archive_and_links_in_it_are_refused(home):
    archive = home / Location30.remote.name
    with tarfile.open(archive, "w:gz") as tar:
        link = tarfile.TarInfo("bangkok")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with pytest.raises(UserError, match="not unpacked: it holds a link or device: 'bangkok'; get it from its official home"):
        Location30().load(0)
    tgz(archive, {"paris": b"1,0"})
    with pytest.raises(UserError, match=r"holds no bangkok: not location30; download https"):
        Location30().load(0)
    archive.write_bytes(gzip.compress(b"no archive" * 100))
    with pytest.raises(UserError, match="damaged archive"):
        Location30().load(0)


def test_an_archive_that_would_unpack_without_end_is_refused(home):
    most = most_bytes(Location30.shape)  # every line as long as it may be
    tgz(home / Location30.remote.name, {"big": bytes(most + 1), **CONTENT[Location30]})
    with pytest.raises(UserError, match=f"more than {most:,} bytes unpacked"):
        Location30().load(0)


@given(
    rows=st.integers(1, 9), features=st.integers(1, 20), seed=st.integers(0, 99), style=st.sampled_from(["0", "0.0", " 0", "\r"])
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_every_way_of_writing_records_gives_the_bits(rows, features, seed, style):
    rng = np.random.default_rng(seed)
    bits, y = rng.integers(0, 2, (rows, features)), rng.integers(0, 5, rows)
    pattern, end = {"0.0": ("{}.0", "\n"), " 0": (" {}", "\n"), "\r": ("{}", "\r\n")}.get(style, ("{}", "\n"))
    lines = [",".join(pattern.format(b) for b in row) for row in bits]
    shape = Shape(rows, features, 5)
    alone = read_features(io.BytesIO("".join(f"{line}{end}" for line in lines).encode()), "f", shape)
    labels = read_labels(io.BytesIO("".join(f"{c + 1}{end}" for c in y).encode()), "f", shape)
    text = end.join(f"{c + 1},{line}" for c, line in zip(y, lines, strict=True))  # no end of line at the end
    together = read_labelled(io.BytesIO(text.encode()), "f", shape)
    assert np.array_equal(np.unpackbits(alone, axis=1, count=features), bits) and np.array_equal(labels, y)
    assert np.array_equal(together[0], alone) and np.array_equal(together[1], y)


def test_real_location30_has_the_published_shape(home, monkeypatch):
    if not REAL or not (Path(REAL) / "location30").is_dir():
        pytest.skip(f"needs location30/ in $FEDBENCH_DATA (now {REAL or 'unset'})")
    for name, value in zip(("shape", "n_classes"), PUBLISHED[Location30], strict=True):
        monkeypatch.setattr(Location30, name, value)
    (home / "location30").symlink_to(Path(REAL) / "location30")
    data = check_data(Location30().load(0), "location30")
    assert [len(y) for y in (data.train_y, data.test_y, data.holdout_y)] == [2506, 1252, 1252]
    rows = np.array([[float(v.strip('"')) for v in line.split(",")] for line in (home / "location30/bangkok").open()])
    rows = np.column_stack([rows[:, 1:], rows[:, 0] - 1])
    assert np.array_equal(everything(data), rows[np.lexsort(rows.T)])


def test_the_shapes_are_the_published_ones():
    wanted = {Texas100: (67_330, 6_169, 100), Purchase100: (197_324, 600, 100), Location30: (5_010, 446, 30)}
    assert {c: (s.rows, s.features, s.classes) for c, (s, _) in PUBLISHED.items()} == wanted
    assert all(s.classes == classes for s, classes in PUBLISHED.values())


# -- downloads without a published checksum ----------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDBENCH_OFFLINE")
    (tmp_path / "www").mkdir()
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_request(self, *_) -> None:
            asked.append(self.command)

        def log_error(self, *_) -> None:
            """Quiet."""

    s = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path / "www")))
    thread = threading.Thread(target=s.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{s.server_port}", tmp_path / "www", asked
    s.shutdown()
    s.server_close()
    thread.join()


def test_a_set_is_downloaded_once_from_the_first_address_that_has_it(server, home, monkeypatch):
    url, www, asked = server
    tgz(www / "b.tgz", CONTENT[Location30])
    monkeypatch.setattr(Location30, "remote", Remote("b.tgz", (f"{url}/gone", f"{url}/b.tgz"), None, 10**6))
    first, second = Location30().load(0), Location30().load(0)
    assert first.digest() == second.digest() and asked == ["HEAD", "HEAD", "GET"]
    assert (home / "b.tgz").read_bytes() == (www / "b.tgz").read_bytes()


def test_without_a_checksum_an_old_part_is_not_continued(server, home):
    url, www, _ = server
    (www / "a").write_bytes(b"new" * 1000)
    (home / "a.part").write_bytes(b"old")
    assert fetch(Remote("a", (f"{url}/a",), None, 3000), home).read_bytes() == b"new" * 1000


def test_without_a_checksum_a_file_too_large_is_not_taken(server, home):
    url, www, asked = server
    (www / "a").write_bytes(bytes(3001))
    with pytest.raises(UserError, match=r"it announces 3001 bytes, 1 to 3,000 expected.*at most 3,000 bytes, no published"):
        fetch(Remote("a", (f"{url}/a",), None, 3000), home)
    assert asked == ["HEAD"] and not (home / "a").exists() and not (home / "a.part").exists()


# -- STL-10 ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def stl10(home, monkeypatch):
    monkeypatch.setattr(Stl10, "expected", (30, 20))
    (home / Stl10.folder).mkdir()
    rng, pixels = np.random.default_rng(0), []
    for part, n in (("train", 30), ("test", 20)):
        x = rng.integers(0, 256, (n, 3, 96, 96), dtype=np.uint8)
        x.transpose(0, 1, 3, 2).tofile(home / Stl10.folder / f"{part}_X.bin")  # stored column by column
        (np.arange(n) % 10 + 1).astype(np.uint8).tofile(home / Stl10.folder / f"{part}_y.bin")
        pixels += list(zip(x, np.arange(n) % 10, strict=True))
    return pixels


def test_stl10_is_merged_turned_upright_and_split(stl10):
    data = check_data(Stl10().load(0), "stl10")
    assert (len(data.train_y), len(data.test_y), len(data.holdout_y)) == (30, 10, 10) and data.input_shape == (3, 96, 96)
    label = {x.tobytes(): y for x, y in stl10}
    seen = [(x.tobytes(), y) for part in ("train", "test", "holdout") for x, y in
            zip(getattr(data, f"{part}_x"), getattr(data, f"{part}_y"), strict=True)]  # fmt: skip
    assert len(dict(seen)) == 50 and all(label[x] == y for x, y in seen)
    whole = np.stack([x for x, _ in stl10]) / 255
    assert np.allclose(data.mean, whole.mean((0, 2, 3)), atol=1e-4) and np.allclose(data.std, whole.std((0, 2, 3)), atol=1e-4)
    assert Stl10(normalise="half").load(0).mean == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(("name", "change", "text"), [
    ("test_X.bin", lambda raw: raw[:-1], r"test_X\.bin: 552,959 bytes for 20 labels.*truncated"),
    ("train_y.bin", lambda raw: raw[:-1], r"train_X\.bin: .* for 29 labels"),
    ("test_y.bin", lambda raw: b"\x0b" + raw[1:], r"test_y\.bin .*: 1 labels are not 0\.\.9 \(the first: 10 at position 0\)"),
    ("test_y.bin", lambda raw: b"\x00" + raw[1:], r"test_y\.bin .*the first: -1"),
    ("train_X.bin", None, r"train_X\.bin is missing: delete"),
])  # fmt: skip
def test_a_damaged_stl10_file_is_named(stl10, home, name, change, text):
    file = home / Stl10.folder / name
    if change is None:
        file.unlink()
    else:
        file.write_bytes(change(file.read_bytes()))
    with pytest.raises(UserError, match=text):
        Stl10().load(0)


def test_a_missing_stl10_says_what_from_where_and_where_to(home):
    wanted = r"stl10_binary\.tar\.gz \(2640\.4 MB, md5 91f7769df0f17e558f3565bffb0c7dfb\) and put it at"
    with pytest.raises(UserError, match=wanted):
        Stl10().load(0)


# -- FER2013 -----------------------------------------------------------------------------------------------------------

USAGE = ["Training"] * 42 + ["PublicTest"] * 14 + ["PrivateTest"] * 14
FACES = np.random.default_rng(2).integers(0, 256, (70, 48 * 48), dtype=np.uint8)


def fer_csv(order, columns=("emotion", "pixels", "Usage"), gap: str = "") -> str:
    cells = [{"emotion": str(i % 7), "pixels": " ".join(map(str, FACES[i])), "Usage": USAGE[i]} for i in order]
    return "\n".join([("," + gap).join(columns)] + [",".join(c[n] for n in columns) for c in cells]) + "\n"


@pytest.fixture
def fer(home, monkeypatch):
    monkeypatch.setattr(Fer2013, "expected", (42, 28))
    (home / "fer2013").mkdir()
    return home / "fer2013"


def test_fer2013_is_the_same_from_either_file(fer):
    shuffled = np.random.default_rng(3).permutation(70)
    (fer / "icml_face_data.csv").write_text(fer_csv(shuffled, ("emotion", "Usage", "pixels"), " "))
    one = check_data(Fer2013(test=7, holdout=7).load(0), "fer2013")
    (fer / "fer2013.csv").write_text(fer_csv(range(70)))
    assert Fer2013.here() == str(fer / "fer2013.csv")
    assert Fer2013(test=7, holdout=7).load(0).digest() == one.digest()
    assert one.input_shape == (1, 48, 48) and (len(one.train_y), len(one.test_y), len(one.holdout_y)) == (56, 7, 7)
    label = {FACES[i].tobytes(): i % 7 for i in range(70)}
    assert [label[x.tobytes()] for x in one.train_x] == one.train_y.tolist()
    assert len(Fer2013().load(0).train_y) == 70 - 2 * round(70 / 18)


def test_fer2013_in_three_channels(fer):
    (fer / "fer2013.csv").write_text(fer_csv(range(70)))
    grey, colour = (check_data(Fer2013(channels=c).load(0), "fer2013") for c in (1, 3))
    assert np.array_equal(np.repeat(grey.train_x, 3, axis=1), colour.train_x)
    assert colour.mean == grey.mean * 3 and colour.std == grey.std * 3
    assert Fer2013(channels=3, normalise="half").load(0).std == (0.5,) * 3


@pytest.mark.parametrize(("change", "text"), [
    (lambda t: "", r"fer2013\.csv:0: the columns are none"),
    (lambda t: t.replace("Usage", "use", 1), r":1: the columns are emotion, pixels, use, not"),
    (lambda t: t.replace("\n3,", "\n7,", 1), r":5: the label is '7', not 0\.\.6"),
    (lambda t: t.replace("\n3,", "\n3,9 ", 1), r":5: 2,305 pixels, 2,304 expected"),
    (lambda t: t.replace(f"\n3,{FACES[3][0]} ", "\n3,256 ", 1), r":5: a pixel above 255"),
    (lambda t: t.replace(f"\n3,{FACES[3][0]} ", "\n3,-1 ", 1), r":5: a pixel that is no whole number"),
    (lambda t: t.replace("PublicTest", "Test", 1), r":44: the usage is 'Test'"),
    (lambda t: t[:-9000], r":70: .*truncated"),
    (lambda t: t + t.splitlines()[3] + "\n", r":72: more than 70 images"),
    (lambda t: t.replace("PublicTest", "Training", 1), r"43 \+ 27 images .*fer2013 has 42 \+ 28"),
])  # fmt: skip
def test_a_bad_fer2013_file_is_named_with_its_line(fer, change, text):
    (fer / "fer2013.csv").write_text(change(fer_csv(range(70))))
    with pytest.raises(UserError, match=text):
        Fer2013().load(0)


def test_missing_fer2013_says_exactly_what_to_put_where(fer):
    (fer / "train.csv").write_text("emotion,pixels\n")
    with pytest.raises(UserError) as caught:
        Fer2013().load(0)
    text = str(caught.value)
    assert Fer2013.home in text and "train.csv and test.csv are not enough" in text
    assert f"{fer / 'icml_face_data.csv'} (md5 b114b9e04e6949e5fe8b6a98b3892b1d)" in text
    assert f"{fer / 'fer2013.csv'} (md5 f8428a1edbd21e88f42c73edd2a14f95)" in text


# -- models ------------------------------------------------------------------------------------------------------------


def size(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def randn(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def resnet20(shape=(3, 32, 32), classes=10, **params) -> torch.nn.Module:
    """In float64, with norms and biases that do something."""
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(0)
        module = ResNet20(**params).build(shape, classes).double()
    with torch.no_grad():
        for i, p in enumerate(q for q in module.parameters() if q.dim() == 1):
            p.add_(0.3 * randn(len(p), seed=i))
    return module


@pytest.mark.parametrize(("shape", "classes"), [((446,), 30), ((600,), 100), ((6169,), 100), ((1, 4, 4), 10)])
def test_mlp_512_128_is_three_layers(shape, classes):
    module, x = MLP512x128().build(shape, classes).double(), randn(5, *shape)
    (w1, b1, w2, b2, w3, b3) = module.parameters()
    hidden = relu(linear(relu(linear(x.flatten(1), w1, b1)), w2, b2))
    torch.testing.assert_close(module(x), linear(hidden, w3, b3))
    width = x[0].numel()
    assert size(module) == (width + 1) * 512 + 513 * 128 + 129 * classes
    if shape == (6169,):
        assert size(module) == 3_237_604


def by_hand(x: torch.Tensor, p, norm: str, shortcut: str) -> torch.Tensor:
    """He et al., section 4.2, on the parameters in their order; BatchNorm with the batch's statistics."""
    def conv(x, stride, padding):
        x = conv2d(x, next(p), None, stride, padding)
        return group_norm(x, 8, next(p), next(p)) if norm == "group" else batch_norm(x, None, None, next(p), next(p), True)

    x = relu(conv(x, 1, 1))
    for stage in range(3):
        for block in range(3):
            change = stage > 0 and block == 0
            out = conv(relu(conv(x, 2 if change else 1, 1)), 1, 1)
            if change and shortcut == "conv":
                x = conv(x, 2, 0)
            elif change:
                half = x[:, :, ::2, ::2]
                x = torch.cat([half, torch.zeros_like(half)], 1)
            x = relu(out + x)
    return linear(avg_pool2d(x, x.shape[2:]).flatten(1), next(p), next(p))


@pytest.mark.parametrize("side", [32, 48, 96])
@pytest.mark.parametrize("shortcut", ["conv", "identity"])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_resnet20_layers_and_their_order(norm, shortcut, side):
    module, x = resnet20(norm=norm, groups=8, shortcut=shortcut), randn(2, 3, side, side)
    parameters = iter(module.parameters())
    wanted = by_hand(x, parameters, norm, shortcut)
    assert next(parameters, None) is None
    torch.testing.assert_close(module(x), wanted)  # in training mode


def test_resnet20_has_the_published_size():
    """He et al., table 6: 20 layers, 0.27 M, with parameter-free shortcuts; two 1x1 convolutions with norm add 2,752."""
    stages, width, total = (16, 32, 64), 16, 3 * 16 * 9 + 2 * 16
    for wider in stages:
        total += width * wider * 9 + 5 * wider * wider * 9 + 6 * 2 * wider
        width = wider
    total += 64 * 10 + 10
    for norm in ("batch", "group"):
        identity, conv = (size(resnet20(norm=norm, shortcut=s)) for s in ("identity", "conv"))
        assert identity == total == 269_722 and f"{identity / 1e6:.2f}" == "0.27"
        assert conv == 272_474 == identity + 16 * 32 + 32 * 64 + 2 * (32 + 64)
    assert size(resnet20(classes=7)) == 272_474 - 3 * 65


def test_resnet20_batchnorm_ties_a_batch_in_training_only():
    x = randn(4, 3, 16, 16)
    batch, group = resnet20(norm="batch"), resnet20(norm="group")
    assert not torch.allclose(batch.train()(x)[:1], batch(torch.cat([x[:1], 3 * x[1:]]))[:1])
    for module in (batch.eval(), group.eval(), group.train()):
        torch.testing.assert_close(module(x)[:1], module(x[:1]))


def test_resnet20_gradient_features_in_eval_mode():
    module, x, y = resnet20((3, 8, 8), 4), randn(3, 3, 8, 8), torch.tensor([0, 3, 1])
    module(randn(8, 3, 8, 8, seed=5))  # running statistics that are not 0 and 1
    updates = randn(2, size(module), seed=2)
    found, grads = gradient_features(module, x, y, updates), per_sample_gradients(module.eval(), x, y)
    torch.testing.assert_close(found.dot, updates @ grads.T)
    torch.testing.assert_close(found.sq, grads.square().sum(1))


# -- the partition by groups -------------------------------------------------------------------------------------------


def labels(n: int, classes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(np.arange(n) % classes)


@given(
    clients=st.integers(1, 40), classes=st.integers(1, 30), bias=st.sampled_from([0.0, 0.1, 0.5, 1.0]), seed=st.integers(0, 9)
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_group_bias_is_disjoint_complete_and_keyed(clients, classes, bias, seed):
    y = labels(400, classes)
    shards, again, other = (partition(y, clients, s, "group-bias", min_samples=0, bias=bias) for s in (seed, seed, seed + 1))
    assert len(shards) == clients and np.array_equal(np.sort(np.concatenate(shards)), np.arange(400))
    assert all((np.diff(s) > 0).all() for s in shards)
    assert all(np.array_equal(a, b) for a, b in zip(shards, again, strict=True))
    if clients > 1 and 0 < bias < 1:
        assert any(not np.array_equal(a, b) for a, b in zip(shards, other, strict=True))


@pytest.mark.parametrize(("clients", "classes"), [(10, 10), (10, 100), (10, 30), (50, 10), (7, 5)])
@pytest.mark.parametrize("bias", [0.1, 0.5, 0.9])
def test_the_own_group_gets_its_share_and_the_others_equal_parts(clients, classes, bias):
    n = 20_000
    y, groups = labels(n, classes), min(clients, classes)
    shards = partition(y, clients, 4, "group-bias", bias=bias)
    where = np.empty(n, int)
    for k, shard in enumerate(shards):
        where[shard] = k % groups
    distance = (where - y % groups) % groups
    wanted = np.r_[bias, np.full(groups - 1, (1 - bias) / (groups - 1))]
    found = np.bincount(distance, minlength=groups)
    assert (np.abs(found - n * wanted) < 5 * np.sqrt(n * wanted * (1 - wanted))).all()  # binomial
    for g in range(groups):  # a group's clients have equal shares
        sizes = [len(shards[k]) for k in range(g, clients, groups)]
        assert max(sizes) - min(sizes) <= 1


def test_bias_one_over_groups_is_iid_and_a_larger_one_skews():
    y, clients = labels(20_000, 10), 20

    def chi2(shards) -> float:
        table = np.stack([np.bincount(y[s], minlength=10) for s in shards])
        wanted = table.sum(1, keepdims=True) * table.sum(0) / table.sum()
        return float(((table - wanted) ** 2 / wanted).sum())

    found = [chi2(partition(y, clients, 0, "group-bias", bias=b)) for b in (0.1, 0.3, 0.6)]
    freedom = 19 * 9
    assert abs(found[0] - freedom) < 5 * np.sqrt(2 * freedom)  # as a random permutation's
    assert found[0] < chi2(partition(y, clients, 0, "iid")) + 10 * np.sqrt(2 * freedom) < found[1] < found[2]


@pytest.mark.parametrize(("clients", "classes"), [(10, 10), (10, 100), (25, 10), (3, 10)])
def test_without_mixing_each_class_is_in_one_group(clients, classes):
    y, groups = labels(3000, classes), min(clients, classes)
    for k, shard in enumerate(partition(y, clients, 0, "group-bias", bias=1.0)):
        assert set(y[shard] % groups) == {k % groups}


def test_group_bias_numbers_the_labels_that_occur():
    y = labels(1000, 4) * 7 + 3  # 3, 10, 17, 24
    shards = partition(y, 4, 0, "group-bias", bias=1.0)
    assert [sorted(set(y[s])) for s in shards] == [[3], [10], [17], [24]]


def test_group_bias_refuses_short_clients_and_no_probability():
    y = np.r_[np.zeros(990, int), np.ones(10, int)]
    with pytest.raises(UserError, match=r"group-bias partition leaves client \d+ with \d samples .*use a smaller bias, fewer"):
        partition(y, 10, 0, "group-bias", min_samples=5, bias=1.0)
    for bias in (-0.1, 1.1, float("nan")):
        with pytest.raises(UserError, match=r"partition\.bias is a probability"):
            partition(y, 10, 0, "group-bias", bias=bias)
