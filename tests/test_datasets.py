"""Data sets: every sample of the official files with its own label, splits by seed, refusals of bad
files; LEAF's network.
"""

from __future__ import annotations

import gzip
import hashlib
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from archives import image_file, tar_of, zip_of
from PIL import Image
from torch.nn.functional import conv2d, linear, max_pool2d, relu

from fedbench.core import Data, UserError
from fedbench.core.toolkit import Remote
from fedbench.core.toolkit.arrays import check_data
from fedbench.plugins.datasets.cifar import Cifar10, Cifar100, Stl10
from fedbench.plugins.datasets.folders import DermNet, ImageFolder, TinyImageNet
from fedbench.plugins.datasets.handwriting import Digits, FashionMnist, Femnist, Mnist
from fedbench.plugins.datasets.sampling import split
from fedbench.plugins.datasets.tables import ChMnist, Fer2013
from fedbench.plugins.datasets.tabular import Location30, Purchase100, Texas100

pytestmark = pytest.mark.usefixtures("home")
PARTS = ("train", "test", "holdout")


class Wanted(NamedTuple):
    """How many samples of each part."""

    train: int | None
    test: int | float | None
    holdout: int | float


class Small(NamedTuple):
    """A data set cut down: its class with the attributes ``cut`` replaced, its files, and the
    samples that they hold, of which the last ``tests`` are the official test set.
    """

    cls: Any
    cut: dict[str, Any]
    files: dict[str, bytes]
    x: np.ndarray
    y: np.ndarray
    tests: int
    params: dict[str, Any]


def pixels(n: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)


def encoded(x: np.ndarray, kind: str = "PNG") -> bytes:
    """Of one image [C, H, W]."""
    return image_file(Image.fromarray(x.transpose(1, 2, 0) if len(x) == 3 else x[0]), kind)


def decoded(content: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).transpose(2, 0, 1)


def cifar(cls: Any, classes: int, train: int, test: int, label_bytes: int) -> Small:
    """The class is the last label byte; a coarse label precedes it where there are two."""
    x, y = (
        pixels(train + test, 3, 32, 32),
        np.r_[np.arange(train) % classes, np.arange(test) % classes],
    )
    y = np.random.default_rng(1).permuted(y.reshape(-1, classes), axis=1).ravel()
    records = np.concatenate(
        [np.stack([99 - y, y], 1)[:, -label_bytes:], x.reshape(len(x), -1)], 1
    ).astype(np.uint8)
    parts = [*np.split(records[:train], len(cls.files) - 1), records[train:]]
    files = {f"{cls.folder}/{n}": p.tobytes() for n, p in zip(cls.files, parts, strict=True)}
    return Small(cls, {"expected": (train, test)}, files, x, y, test, {"holdout": classes})


def idx(a: np.ndarray) -> bytes:
    return (
        bytes((0, 0, 8, a.ndim)) + np.array(a.shape, ">u4").tobytes() + a.astype(np.uint8).tobytes()
    )


def idx_files(stem: str, images: np.ndarray, y: np.ndarray) -> dict[str, bytes]:
    return {f"{stem}-images-idx3-ubyte": idx(images), f"{stem}-labels-idx1-ubyte": idx(y)}


def mnist(cls: Any) -> Small:
    x, y = pixels(100, 1, 28, 28), np.arange(100) % 10
    files = idx_files(f"{cls.folder}/train", x[:60, 0], y[:60])
    files |= idx_files(f"{cls.folder}/t10k", x[60:, 0], y[60:])
    return Small(cls, {"expected": (60, 40)}, files, x, y, 40, {"holdout": 10})


def emnist() -> Small:
    """Rows and columns are exchanged in the files."""
    x, y = pixels(310, 1, 28, 28), np.arange(310) % 62
    exchanged = x[:, 0].swapaxes(1, 2)
    files = idx_files("EMNIST/raw/emnist-byclass-train", exchanged[:186], y[:186])
    files |= idx_files("EMNIST/raw/emnist-byclass-test", exchanged[186:], y[186:])
    return Small(Femnist, {"expected": (186, 124)}, files, x, y, 124, {"holdout": 62})


def tiny_imagenet() -> Small:
    """The classes count in sorted order, not in that of wnids.txt."""
    top, names = "tiny-imagenet-200", ["n03", "n01", "n02"]
    y = np.r_[np.repeat([2, 0, 1], 4), np.tile([2, 0, 1], 2)]
    jpegs = [encoded(a, "JPEG") for a in pixels(18, 3, 64, 64)]
    jpegs[1] = encoded(pixels(1, 1, 64, 64, seed=5)[0], "JPEG")  # a grey one
    files = {
        f"{top}/wnids.txt": "\n".join(names).encode(),
        f"{top}/test/images/test_0.JPEG": jpegs[0],
    }
    for i, content in enumerate(jpegs):
        files[
            f"{top}/train/{names[i // 4]}/images/{i}.JPEG"
            if i < 12
            else f"{top}/val/images/val_{i}.JPEG"
        ] = content
    lines = [f"val_{12 + i}.JPEG\t{names[i % 3]}\t0\t0\t9\t9\n" for i in range(6)]
    files[f"{top}/val/val_annotations.txt"] = "".join(lines).encode()
    x = np.stack([decoded(content) for content in jpegs])
    return Small(
        TinyImageNet, {"expected": (12, 6), "n_classes": 3}, files, x, y, 6, {"holdout": 3}
    )


def class_folders(
    cls: Any, root: str, counts: dict[str, dict[str, int]], side: int, **params: Any
) -> Small:
    """``counts``: tree ("" for one alone) -> class -> images, all of another content."""
    classes = [
        (tree, c, name, n)
        for tree, named in counts.items()
        for c, (name, n) in enumerate(named.items())
    ]
    where = [
        (Path(root, tree, name, f"{i:03}.png"), tree, c)
        for tree, c, name, n in classes
        for i in range(n)
    ]
    x, tests = (
        pixels(len(where), 3, side, side),
        sum(tree in ("test", "val") for _, tree, _ in where),
    )
    files = {str(path): encoded(a) for (path, _, _), a in zip(where, x, strict=True)}
    cut = {} if cls is ImageFolder else {"expected": (len(x) - tests, tests)}
    return Small(cls, cut, files, x, np.array([c for _, _, c in where]), tests, params)


def each(names: Any, n: int) -> dict[str, int]:
    return dict.fromkeys(names, n)


def stl10() -> Small:
    x, y = pixels(50, 3, 96, 96), np.arange(50) % 10
    files = {}
    for name, s in (("train", slice(30)), ("test", slice(30, None))):
        # stored column by column
        files[f"{Stl10.folder}/{name}_X.bin"] = x[s].transpose(0, 1, 3, 2).tobytes()
        files[f"{Stl10.folder}/{name}_y.bin"] = (y[s] + 1).astype(np.uint8).tobytes()
    return Small(Stl10, {"expected": (30, 20)}, files, x, y, 0, {})


def fer2013(
    name: str = "fer2013.csv", columns: tuple[str, ...] = ("emotion", "pixels", "Usage")
) -> Small:
    x, usage = pixels(70, 1, 48, 48), ["Training"] * 42 + ["PublicTest"] * 14 + ["PrivateTest"] * 14
    rows = [
        {"emotion": str(i % 7), "pixels": " ".join(map(str, x[i].ravel())), "Usage": usage[i]}
        for i in range(70)
    ]
    text = (
        "\n".join([", ".join(columns), *(",".join(row[c] for c in columns) for row in rows)]) + "\n"
    )
    content = text.encode()
    table = Remote(name, ("https://",), f"md5:{hashlib.md5(content).hexdigest()}", len(content))
    return Small(
        Fer2013,
        {"tables": (table,)},
        {f"fer2013/{name}": content},
        x,
        np.arange(70) % 7,
        0,
        {"test": 7, "holdout": 7},
    )


def ch_mnist() -> Small:
    x, y = pixels(80, 1, 64, 64), np.arange(80) % 8
    lines = [",".join(map(str, [*a.ravel(), c + 1])) for a, c in zip(x, y, strict=True)]
    text = "\n".join([",".join(f"pixel{i:04}" for i in range(4096)) + ",label", *lines]) + "\n"
    return Small(
        ChMnist, {"per_class": 10}, {"ch-mnist/hmnist_64_64_L.csv": text.encode()}, x, y, 0, {}
    )


def of_records(cls: Any) -> Small:
    """Each of the three written in another of the ways that are read."""
    x = np.random.default_rng(0).integers(0, 2, (240, 21))
    y = np.random.default_rng(1).permutation(np.arange(240) % 6)
    pattern, end, quote = {
        Texas100: ("{}.0", "\n", ""),
        Purchase100: (" {}", "\r\n", ""),
        Location30: ("{}", "\n", '"'),
    }[cls]
    rows, named = (
        [",".join(pattern.format(v) for v in row) for row in x],
        [f"{quote}{c + 1}{quote}" for c in y],
    )
    parts = (
        [rows, named]
        if len(cls.files) == 2
        else [[f"{label},{row}" for label, row in zip(named, rows, strict=True)]]
    )
    files = {
        file: "".join(line + end for line in lines).encode()
        for file, lines in zip(cls.files, parts, strict=True)
    }
    cut = {"rows": 240, "features": 21, "n_classes": 6}
    return Small(cls, cut, files, x.astype(np.float32), y, 0, {})


TEN, SKIN = "0123456789", [f"skin {i:02}" for i in range(23)]
SETS: dict[str, Callable[[], Small]] = {
    "cifar10": lambda: cifar(Cifar10, 10, 200, 40, 1),
    "cifar100": lambda: cifar(Cifar100, 100, 200, 200, 2),
    "cifar10, folders": lambda: class_folders(
        Cifar10, "cifar10", {"train": each(TEN, 3), "test": each(TEN, 2)}, 32, holdout=10
    ),
    "mnist": lambda: mnist(Mnist),
    "fashion-mnist": lambda: mnist(FashionMnist),
    "femnist": emnist,
    "tiny-imagenet": tiny_imagenet,
    "dermnet": lambda: class_folders(
        DermNet, "dermnet", {"train": each(SKIN, 2), "test": each(SKIN, 2)}, 64, holdout=23
    ),
    "image-folder": lambda: class_folders(
        ImageFolder, "mine", {"": {"a": 30, "b": 20, "c": 10}}, 8, path="mine"
    ),
    "image-folder, val": lambda: class_folders(
        ImageFolder,
        "mine",
        {"train": each("ab", 5), "val": each("ab", 10)},
        8,
        path="mine",
        holdout=0.2,
    ),
    "stl10": stl10,
    "fer2013": fer2013,
    "fer2013, icml": lambda: fer2013("icml_face_data.csv", ("emotion", "Usage", "pixels")),
    "ch-mnist": ch_mnist,
    "texas100": lambda: of_records(Texas100),
    "purchase100": lambda: of_records(Purchase100),
    "location30": lambda: of_records(Location30),
}


@pytest.fixture
def install(home, monkeypatch):
    """Puts the files of a small data set in place, each as ``change`` (name, content) makes it,
    None to leave it out.
    """

    def installed(
        small: Small, change: Callable[[str, bytes], bytes | None] = lambda name, content: content
    ) -> Small:
        for name, value in small.cut.items():
            monkeypatch.setattr(small.cls, name, value)
        for name, content in small.files.items():
            if (put := change(name, content)) is not None:
                (home / name).parent.mkdir(parents=True, exist_ok=True)
                (home / name).write_bytes(put)
        return small

    return installed


def pairs(x: np.ndarray, y: np.ndarray) -> list[tuple[bytes, int]]:
    return sorted((a.tobytes(), int(c)) for a, c in zip(x, y, strict=True))


def part(data: Data, name: str) -> list[tuple[bytes, int]]:
    return pairs(getattr(data, f"{name}_x"), getattr(data, f"{name}_y"))


@pytest.mark.parametrize("name", SETS)
def test_a_data_set_is_read_whole_and_split_by_seed(name, install):
    cls, _, _, x, y, tests, params = small = install(SETS[name]())
    data = check_data(cls(**params).load(0), name)
    found, cut = {p: part(data, p) for p in PARTS}, len(x) - tests
    # each sample once, with its own label
    assert sorted(found["train"] + found["test"] + found["holdout"]) == pairs(x, y)
    if small.tests:
        assert found["train"] == pairs(x[:cut], y[:cut])
    for p in PARTS:  # each class keeps its share
        pool, drawn = y[cut:] if tests and p != "train" else y[:cut], getattr(data, f"{p}_y")
        assert (np.bincount(drawn) * len(pool) == np.bincount(pool) * len(drawn)).all() and len(
            drawn
        )
    assert data.n_classes == len(np.unique(y)) and cls.here()
    assert cls(**params).load(0).digest() == data.digest() != cls(**params).load(1).digest()


def test_digits_are_split_and_mislabelled_as_asked():
    noisy, again, other, clean = (
        Digits(label_noise=n).load(s) for n, s in ((0.3, 0), (0.3, 0), (0.3, 1), (0, 0))
    )
    assert noisy.digest() == again.digest() != other.digest()
    pixels_of = np.concatenate([getattr(noisy, f"{p}_x") for p in PARTS]).reshape(-1, 64)
    # no digit stands in two splits
    assert len(pixels_of) == len(np.unique(pixels_of, axis=0)) == 1797
    assert noisy.train_canary.sum() == 360 and noisy.holdout_canary.sum() == 60
    assert np.array_equal(clean.test_y, noisy.test_y) and np.array_equal(
        clean.train_y != noisy.train_y, noisy.train_canary
    )


@pytest.mark.parametrize("name", ["cifar10", "image-folder", "texas100"])
def test_counts_shares_and_canaries(name, install):
    cls, *_, params = small = install(SETS[name]())
    sizes = {"train": 30, "test": 12, "holdout": 12}
    data, clean = (cls(**params | sizes | {"label_noise": noise}).load(0) for noise in (0.5, 0.0))
    assert [len(getattr(data, f"{p}_y")) for p in PARTS] == [30, 12, 12]
    assert data.train_canary.sum() == 15 and data.holdout_canary.sum() == 6
    for p in ("train", "holdout"):
        assert np.array_equal(
            getattr(data, f"{p}_canary"), getattr(data, f"{p}_y") != getattr(clean, f"{p}_y")
        )
        assert np.array_equal(getattr(data, f"{p}_x"), getattr(clean, f"{p}_x"))
    assert part(data, "test") == part(clean, "test")  # the test set is never mislabelled
    for y in (clean.train_y, clean.test_y):  # each class keeps its share, rounded
        assert (abs(np.bincount(y) - len(y) * np.bincount(small.y) / len(small.y)) <= 1).all()
    assert not {a for a, _ in part(data, "test")} & {a for a, _ in part(data, "holdout")}
    fewer = cls(**params | sizes | {"train": 20}).load(0)
    assert [part(fewer, p) for p in PARTS[1:]] == [part(clean, p) for p in PARTS[1:]]


def packed(small: Small, home: Path, monkeypatch) -> None:
    """The archive of a data set in place of its files, with its own checksum where one is
    published.
    """
    archive = home / small.cls.remote.name
    if archive.suffix == ".zip":
        zip_of(archive, small.files)
    else:
        tar_of(archive, {f"./{name}": content for name, content in small.files.items()})
    if small.cls.remote.checksum is not None:
        sha = "sha256:" + hashlib.sha256(archive.read_bytes()).hexdigest()
        monkeypatch.setattr(
            small.cls,
            "remote",
            replace(small.cls.remote, checksum=sha, size=archive.stat().st_size),
        )


@pytest.mark.parametrize("name", ["cifar10", "tiny-imagenet", "stl10", "texas100"])
def test_an_archive_is_the_same_data_as_its_files(name, install, home, monkeypatch):
    small = install(SETS[name](), lambda *file: None)
    assert small.cls.here() is False
    packed(small, home, monkeypatch)
    assert small.cls.here()
    found = small.cls(**small.params).load(0)
    install(small)
    assert small.cls(**small.params).load(0).digest() == found.digest()


def test_gzipped_files_are_the_same_data(install, home, monkeypatch):
    small = install(SETS["femnist"]())
    digest = Femnist(**small.params).load(0).digest()
    archive = replace(Femnist.remote, name="EMNIST/raw/gzip.zip")
    monkeypatch.setattr(Femnist, "remote", archive)
    zipped = {f"gzip/{Path(n).name}.gz": gzip.compress(c) for n, c in small.files.items()}
    packed(small._replace(files=zipped), home, monkeypatch)
    monkeypatch.setattr(Femnist, "remote", replace(Femnist.remote, name="gzip.zip"))
    for name in small.files:
        (home / name).unlink()
    assert Femnist(**small.params).load(0).digest() == digest


def test_changed_labels_are_not_answered_from_the_cache(install, home):
    small = install(SETS["tiny-imagenet"]())
    before = TinyImageNet(**small.params).load(0)
    table = home / "tiny-imagenet-200/val/val_annotations.txt"
    table.write_bytes(
        table.read_bytes().replace(b"n03", b"n0?").replace(b"n01", b"n03").replace(b"n0?", b"n01")
    )
    assert TinyImageNet(**small.params).load(0).digest() != before.digest()


@pytest.mark.parametrize(
    ("name", "params", "mean", "std"),
    [
        ("cifar10", {}, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        ("cifar100", {"normalise": "fedmia"}, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        ("mnist", {}, (0.1307,), (0.3081,)),
        ("image-folder", {"normalise": "imagenet"}, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ],
)
def test_published_statistics_are_taken_by_name(name, params, mean, std, install):
    small = install(SETS[name]())
    data = small.cls(**small.params | params).load(0)
    assert (data.mean, data.std) == (mean, std)


@pytest.mark.parametrize("name", ["tiny-imagenet", "stl10", "fer2013", "femnist"])
def test_statistics_are_those_of_the_pixels_to_train_on(name, install):
    small = install(SETS[name]())
    data, x = small.cls(**small.params).load(0), small.x[: len(small.x) - small.tests] / 255
    np.testing.assert_allclose(
        [data.mean, data.std], [x.mean((0, 2, 3)), x.std((0, 2, 3))], atol=6e-5
    )


# -- splits ----------------------------------------------------------------------------------------


Y = np.repeat(np.arange(4), 10)


@pytest.mark.parametrize(
    ("test_y", "wanted", "told"),
    [
        (Y, Wanted(41, None, 4), "set has 40 training samples, 41 asked for"),
        (
            Y,
            Wanted(None, 37, 4),
            r"the test set of set has 40 samples: a hold-out of 4 \(holdout\) and 37 to test",
        ),
        (
            None,
            Wanted(None, 0.6, 0.6),
            r"set has 40 samples: a hold-out of 24 \(holdout\) and 24 to test",
        ),
    ],
    ids=["train", "test", "shares"],
)
def test_more_samples_than_there_are_is_refused(test_y, wanted, told):
    with pytest.raises(UserError, match=told):
        split(Y, test_y, wanted, 0, "set")


def test_a_hold_out_beyond_the_test_set_has_training_images_that_are_not_trained_on():
    drawn = split(Y, Y, Wanted(24, 36, 16), 0, "set")
    assert [len(part) for part in drawn] == [24, 36, 4, 12]
    assert not set(drawn.train) & set(drawn.spare) and not set(drawn.test) & set(drawn.holdout)
    assert np.bincount(Y[drawn.spare]).tolist() == [3, 3, 3, 3]
    # what the others are does not depend on it
    fewer = split(Y, Y, Wanted(24, 36, 4), 0, "set")
    for part in ("train", "test", "holdout"):
        assert getattr(fewer, part).tolist() == getattr(drawn, part).tolist()
    assert len(fewer.spare) == 0


# -- refusals --------------------------------------------------------------------------------------


def test_every_built_in_data_set_says_what_it_is_and_whether_it_is_here(registry):
    found = {c.name: c.load() for c in registry.own("dataset")}
    assert found.keys() >= {name.partition(",")[0] for name in SETS}
    for name, cls in found.items():
        assert cls.licence != "unknown" and cls.citation, name
        here = dict.fromkeys(("digits", "denoising"), "built in")
        here |= {
            "image-folder": "wherever 'path' says",
            "table": "wherever 'file' says",
            "recorded": "wherever 'folders' say",
        }
        assert cls.here() == here.get(name, False), name
        yours = name in ("image-folder", "table", "femnist-writers", "recorded")
        assert (cls.home.startswith("http") and cls.size_mb is not None) != yours, name


MISSING = {
    Cifar10: r"cifar-10-binary.tar.gz \(170.1 MB, md5 c32a1d4ab5d03f1284b67883e8d87530\) and put "
    r"it at HOME/.*HOME/cifar10/{",
    Stl10: r"stl10_binary\.tar\.gz \(2640\.4 MB, md5 91f7769df0f17e558f3565bffb0c7dfb\) and put it "
    r"at HOME/",
    ChMnist: r"tiles_5000.zip \(258.1 MB, sha256 936d0b95.*put it at HOME/.*Kaggle's "
    r"hmnist_64_64_L.csv at HOME/ch-mnist/hmnist",
    Fer2013: r"train.csv and test.csv are not enough",
    Location30: r"github.com/privacytrustlab/.*no published checksum.*put it at HOME/",
}


@pytest.mark.parametrize("cls", MISSING, ids=lambda c: c.name)
def test_missing_data_says_what_to_get_and_where_to_put_it(cls, home):
    with pytest.raises(UserError, match=MISSING[cls].replace("HOME", str(home))):
        cls().load(0)


def at(row: int, change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """A change of one line of a file."""

    def changed(content: bytes) -> bytes:
        lines = content.splitlines(keepends=True)
        lines[row] = change(lines[row])
        return b"".join(lines)

    return changed


DAMAGED: list[tuple[str, str, Callable[[bytes], bytes | None], str]] = [
    (
        "cifar10",
        "data_batch_2.bin",
        lambda c: c[:-1],
        r"data_batch_2\.bin: cannot be read .*; delete .*bin and run again, or download",
    ),
    (
        "cifar10",
        "data_batch_2.bin",
        lambda c: bytes([10]) + c[1:],
        r"1 labels are not 0\.\.9 \(the first: 10 at position 40\)",
    ),
    ("mnist", "t10k-images", lambda c: c[:-1], r"t10k-images-.*: cannot be read .*; delete it"),
    ("mnist", "t10k-labels", lambda c: None, r"raw/t10k-labels-idx1-ubyte.gz"),
    ("dermnet", "train/skin 00/000.png", lambda c: None, "skin 00: 1 images, at least 2 needed"),
    ("stl10", "test_X.bin", lambda c: c[:-1], r"stl10_binary: cannot be read .*; delete"),
    ("stl10", "test_y.bin", lambda c: None, r"stl10_binary/test_y\.bin: No such file .*; delete"),
    ("fer2013", ".csv", at(4, lambda r: r.replace(b",", b",9 ", 1)), "csv: its checksum is md5:"),
    ("ch-mnist", ".csv", at(4, lambda r: b"1," + r), r"csv: cannot be read .*4098.*Kaggle"),
    (
        "location30",
        "bangkok",
        at(6, lambda r: r[:-3] + b"\n"),
        r"bangkok:7: cannot be read .*21 values, 22 expected",
    ),
    (
        "location30",
        "bangkok",
        at(6, lambda r: r[:-2] + b"2\n"),
        r"bangkok:7: cannot be read .*a feature is neither 0 nor 1",
    ),
    (
        "location30",
        "bangkok",
        lambda c: b"".join(c.splitlines(keepends=True)[:200]),
        r":201: cannot be read .*0 values, 22 expected",
    ),
    ("texas100", "labels", lambda c: None, r"texas/100/labels: No such file .*; put it there, or"),
    ("femnist", "train-labels", lambda c: None, r"train-labels-idx1-ubyte: No such file"),
    ("image-folder, val", "train/b/00", lambda c: None, "val/b: a class that the"),
    ("image-folder, val", "/val/", lambda c: None, "mine: a folder 'train' but no 'test'"),
    (
        "image-folder",
        "mine/b/001.png",
        lambda c: encoded(pixels(1, 3, 9, 9)[0]),
        r"b/001\.png: 9x9 pixels.*set 'size'",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "file", "change", "told"),
    DAMAGED,
    ids=[f"{i}-{row[0]}" for i, row in enumerate(DAMAGED)],
)
def test_a_damaged_file_is_refused_with_its_place(name, file, change, told, install):
    small = install(
        SETS[name](), lambda path, content: change(content) if file in path else content
    )
    with pytest.raises(UserError, match=told):
        small.cls(**small.params).load(0)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"train_y": np.array([0, 1, 2, 3, 0, 1])},
            r"dataset 'mine': train: 1 labels are not 0\.\.2 \(the first: 3 at position 3\)",
        ),
        ({"holdout_y": np.arange(5)}, "holdout has 6 samples but 5 labels"),
        (
            {"test_x": np.zeros((6, 3, 5, 4), np.uint8)},
            r"test samples are \[3, 5, 4\] uint8, train samples \[3, 4, 4\]",
        ),
        ({"std": (0.5,)}, "need 'mean' and 'std' with 3 values each"),
        ({"std": (0.5, float("inf"), 0.5)}, r"std is \(0.5, inf, 0.5\), expected finite numbers"),
        ({"mean": (0.5, 0.5, float("nan"))}, r"mean is \(0.5, 0.5, nan\), expected finite numbers"),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else "",
)
def test_the_data_of_any_data_set_are_checked(changes, told):
    x, y = np.zeros((6, 3, 4, 4), np.uint8), np.arange(6) % 3
    fields = {f"{p}_{k}": v for p in PARTS for k, v in (("x", x), ("y", y))} | {
        "mean": (0.5,) * 3,
        "std": (0.5,) * 3,
    }
    assert check_data(Data(n_classes=3, **fields), "mine").n_classes == 3
    with pytest.raises(UserError, match=told):
        check_data(Data(n_classes=3, **fields | changes), "mine")


# -- the network of FEMNIST's paper ----------------------------------------------------------------


def test_leafs_network_layer_by_layer(registry):
    module = registry.get("model", "leaf-cnn").load()().build((1, 13, 9), 5).double()
    x = torch.randn(3, 1, 13, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    p, h = iter(module.parameters()), x
    for _ in range(2):
        h = max_pool2d(relu(conv2d(h, next(p), next(p), padding=2)), 2)
    h = relu(linear(h.flatten(1), next(p), next(p)))
    torch.testing.assert_close(module(x), linear(h, next(p), next(p)))
