"""Handwritten digits and characters: scikit-learn's digits, MNIST and Fashion-MNIST, FEMNIST."""

from __future__ import annotations

import gzip
import json
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedbench.core import Data, Dataset, Params, UserError
from fedbench.core.toolkit import (
    Arrays,
    Remote,
    cached,
    check_labels,
    check_size,
    data_folder,
    fetch,
    file_lines,
)
from fedbench.plugins.datasets.imageset import ImageSet, Statistics, check_counts, moments
from fedbench.plugins.datasets.sampling import mislabel


class Digits(Dataset):
    """1,797 8x8 images, pixel values 0..16 scaled to 0..1; split at random by seed.

    ``label_noise`` mislabels a share of train and hold-out, never of test: clean digits hardly
    leak.
    """

    default_model = "mlp"
    licence = "CC BY 4.0"
    citation = "E. Alpaydin, C. Kaynak: Optical recognition of handwritten digits. UCI, 1998 (scikit-learn's copy)"
    home = "https://archive.ics.uci.edu/dataset/80"
    size_mb = 0.0

    class Params(Params):
        test: int = Field(397, ge=1, le=1795, description="test samples, clean labels")
        holdout: int = Field(
            200, ge=1, le=1795, description="outside non-members, never trained on"
        )
        label_noise: float = Field(
            0.0,
            ge=0,
            le=1,
            description="share of mislabelled canaries in train and hold-out, as a fraction",
        )

    @classmethod
    def here(cls) -> str | bool:
        """Always: it comes with scikit-learn."""
        return "built in"

    def load(self, seed: int) -> Data:
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        p = self.params
        if p.test + p.holdout >= len(x):
            raise UserError(
                f"digits has {len(x)} samples: test ({p.test}) + holdout ({p.holdout}) leave none "
                "to train on; lower them"
            )
        rng = np.random.Generator(np.random.Philox([seed, 0xD161]))
        order = rng.permutation(len(x))
        x = (x[order] / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
        y = y[order].astype(np.int64)
        test, hold = slice(0, p.test), slice(p.test, p.test + p.holdout)
        train = slice(p.test + p.holdout, None)
        train_y, train_canary = mislabel(y[train], p.label_noise, 10, rng)
        hold_y, hold_canary = mislabel(y[hold], p.label_noise, 10, rng)
        return Data(
            train_x=x[train],
            train_y=train_y,
            test_x=x[test],
            test_y=y[test],
            holdout_x=x[hold],
            holdout_y=hold_y,
            n_classes=10,
            train_canary=train_canary,
            holdout_canary=hold_canary,
        )


# --- MNIST and Fashion-MNIST ----------------------------------------------------------------------

_STEMS = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_MOST_BYTES = 64_000_000  # of one unpacked file; the largest has 47,040,016
_UINT8 = 8  # the idx format's code of the element type
_DAMAGED = (
    OSError,
    EOFError,
    zlib.error,
    zipfile.BadZipFile,
    KeyError,
    NotImplementedError,
    RuntimeError,
)


class Mnist(ImageSet):
    """70,000 handwritten digits, 28x28 grey, 10 classes; official split 60,000 / 10,000.

    Read from ``MNIST/raw``, packed (.gz, downloaded, checksum verified) or unpacked.
    """

    name = "mnist"
    n_classes = 10
    expected = (60_000, 10_000)
    size_mb = 11.6
    home = "http://yann.lecun.com/exdb/mnist/"
    licence = "CC BY-SA 3.0"
    citation = (
        "Y. LeCun, L. Bottou, Y. Bengio, P. Haffner: Gradient-based learning applied to document "
        "recognition. "
        "Proceedings of the IEEE, 1998"
    )
    folder: ClassVar[str] = "MNIST/raw"
    mirrors: ClassVar[tuple[str, ...]] = (
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
    )
    packed: ClassVar[tuple[tuple[str, int], ...]] = (  # md5 and bytes, in the order of _STEMS
        ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
        ("d53e105ee54ea40749a09fcbcd1e9432", 28_881),
        ("9fb629c4189551a2d022fa330f9573f3", 1_648_877),
        ("ec29112dd5afa0611ce80d1b7f02629c", 4_542),
    )
    own: ClassVar[Statistics] = ((0.1307,), (0.3081,))  # computed from the 60,000 training images

    @classmethod
    def here(cls) -> str | bool:
        folder = data_folder() / cls.folder
        whole = all((folder / s).exists() or (folder / f"{s}.gz").exists() for s in _STEMS)
        return str(folder) if whole else False

    def _statistics(self, arrays: Arrays) -> Statistics:
        return self.own

    def _arrays(self) -> Arrays:
        folder = data_folder() / self.folder
        files = [
            self._file(folder, stem, *fact) for stem, fact in zip(_STEMS, self.packed, strict=True)
        ]
        return cached(self.name, [self.name, *file_lines(files, folder)], lambda: self._read(files))

    def _file(self, folder: Path, stem: str, md5: str, size: int) -> Path:
        plain, name = folder / stem, f"{stem}.gz"
        if plain.exists():
            return plain
        return fetch(
            Remote(name, tuple(f"{m}/{name}" for m in self.mirrors), f"md5:{md5}", size), folder
        )

    def _read(self, files: list[Path]) -> Arrays:
        x, y, test_x, test_y = (
            idx_array(
                partial(gzip.open if f.suffix == ".gz" else open, f, "rb"), str(f), _MOST_BYTES
            )
            for f in files
        )
        _check(x, y, files[0], files[1])
        _check(test_x, test_y, files[2], files[3])
        check_counts(type(self), str(files[0].parent), len(y), len(test_y))
        return {
            "train_x": x[:, None],
            "train_y": y.astype(np.int64),
            "test_x": test_x[:, None],
            "test_y": test_y.astype(np.int64),
        }


class FashionMnist(Mnist):
    """70,000 pictures of clothes, 28x28 grey, 10 classes; official split 60,000 / 10,000.

    Read from ``FashionMNIST/raw``, packed (.gz, downloaded, checksum verified) or unpacked.
    """

    name = "fashion-mnist"
    size_mb = 30.9
    home = "https://github.com/zalandoresearch/fashion-mnist"
    licence = "MIT"
    citation = (
        "H. Xiao, K. Rasul, R. Vollgraf: Fashion-MNIST: a novel image dataset for benchmarking "
        "machine learning "
        "algorithms. arXiv:1708.07747, 2017"
    )
    folder = "FashionMNIST/raw"
    mirrors = ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",)
    packed = (
        ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
        ("25c81989df183df01b3e8a0aad5dffbe", 29_515),
        ("bef4ecab320f06d8554ea6380940ec79", 4_422_102),
        ("bb300cfdad3c16e7a12a480ee83cd310", 5_148),
    )
    own = ((0.2860,), (0.3530,))  # computed from the 60,000 training images


def _check(x: np.ndarray, y: np.ndarray, images: Path, labels: Path) -> None:
    if x.shape[1:] != (28, 28) or y.shape != x.shape[:1]:
        raise UserError(
            f"{labels}: labels {list(y.shape)} for images {list(x.shape)} in {images.name}, "
            "expected [n] and [n, 28, 28]; "
            "delete both and run again"
        )
    check_labels(y.astype(np.int64), 10, str(labels))


def idx_array(opened: Callable[[], Any], where: str, most: int) -> np.ndarray:
    """The uint8 array of an idx file of at most ``most`` bytes. Raises ``UserError`` naming the
    place ``where``.

    Format (the data set's web page): two zero bytes, type code, number of dimensions, the
    dimensions as big-endian 32-bit integers, the elements.
    """
    try:
        with opened() as f:
            raw = f.read(most + 1)
    except _DAMAGED as error:
        raise UserError(
            f"{where}: cannot be read ({type(error).__name__}: {error}); delete it and run again"
        ) from error
    dims = raw[3] if len(raw) > 3 and raw[:3] == bytes((0, 0, _UINT8)) else 0
    header = 4 + 4 * dims
    shape = (
        tuple(np.frombuffer(raw[4:header], ">u4").tolist()) if dims and len(raw) >= header else ()
    )
    if not shape or len(raw) - header != np.prod(shape, dtype=object):
        raise UserError(
            f"{where}: not a whole idx file of at most {most:,} bytes: delete it and run again"
        )
    return np.frombuffer(raw, np.uint8, offset=header).reshape(shape)


# --- FEMNIST --------------------------------------------------------------------------------------

_SIDE = 28
# of one of LEAF's files: 100 writers, about 0.15 GB; as lists it takes several times that
_MOST_JSON_BYTES = 300_000_000
_MOST_IDX_BYTES = 600_000_000  # of one of EMNIST's files; the largest has 547 MB


class Femnist(ImageSet):
    """About 800,000 handwritten digits and letters, 28x28 grey, 62 classes: 0-9, A-Z, a-z; ink 255
    on 0, upright.

    Two forms; the list of data sets says which is here, the records' data digest which was used.
    ``leaf`` (writers: yes): LEAF's FEMNIST, one json entry a writer, in
    ``femnist/data/{train,test}/*.json`` as LEAF's script leaves them; brought by you, preferred
    where it is. Its pixels are dark on white (1 - ink): inverted here, so that background is 0 in
    both forms and fills a deformed image. Prepare it with ``-t sample``: with ``-t user`` the
    hold-out is by other writers than the training images, which alone tells members from
    non-members. ``emnist`` (writers: no): EMNIST ByClass, the same characters of NIST's, but
    blurred and scaled to fill the frame, 697,932 + 116,323, downloaded into ``EMNIST/raw``, where
    torchvision keeps it too. Its files hold each image with rows and columns exchanged: undone
    here. They do not say whether a writer is in both of its parts.

    In either form clients are made by the setting's partition: who wrote an image is not passed on,
    so there is no partition by writer.
    """

    name = "femnist"
    default_model = "leaf-cnn"
    n_classes: ClassVar[int] = 62
    expected = (697_932, 116_323)  # of EMNIST ByClass
    size_mb = 561.8
    home = "https://www.nist.gov/itl/products-and-services/emnist-dataset"
    licence = "none stated for EMNIST, from NIST Special Database 19; LEAF's scripts BSD 2-Clause"
    citation = (
        "S. Caldas et al.: LEAF: a benchmark for federated settings. arXiv:1812.01097, 2018; G. "
        "Cohen, S. Afshar, "
        "J. Tapson, A. van Schaik: EMNIST: extending MNIST to handwritten letters. IJCNN, 2017"
    )
    remote: ClassVar[Remote] = Remote(
        "gzip.zip",
        ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
        "md5:58c8d27c78d21e728a6bc7b3cc06412e",
        561_753_746,
    )

    class Params(ImageSet.Params):
        form: Literal["auto", "leaf", "emnist"] = Field(
            "auto",
            description="which files: LEAF's (json, brought by you), EMNIST's, or LEAF's where "
            "they are, else EMNIST's",
        )

    @classmethod
    def here(cls) -> str | bool:
        """Where the data lie and in which form, with or without writers; or False."""
        if _leaf().is_dir():
            return f"{_leaf()} (LEAF, writers: yes)"
        whole = _unpacked() or (_emnist() / cls.remote.name).exists()
        return f"{_emnist()} (EMNIST ByClass, writers: no)" if whole else False

    def _arrays(self) -> Arrays:
        leaf = self.params.form == "leaf" or (self.params.form == "auto" and _leaf().is_dir())
        return self._from_leaf() if leaf else self._from_emnist()

    def _from_leaf(self) -> Arrays:
        files = {part: sorted((_leaf() / part).glob("*.json")) for part in ("train", "test")}
        absent = [part for part, found in files.items() if not found]
        if absent:
            raise UserError(
                f"femnist: no json file in {_leaf() / absent[0]}: run 'preprocess.sh -s niid --sf "
                "1.0 -k 0 -t sample' in "
                "data/femnist of LEAF (https://github.com/TalwalkarLab/leaf) and put its "
                "data/train and data/test into "
                f"{_leaf()}; or take EMNIST's images with form: emnist"
            )
        source = [
            f"{self.name} leaf",
            *file_lines([f for part in files.values() for f in part], _leaf()),
        ]
        return cached(self.name, source, lambda: self._read_leaf(files["train"], files["test"]))

    def _read_leaf(self, train: list[Path], test: list[Path]) -> Arrays:
        (x, y), (test_x, test_y) = (read_writers(files, self.n_classes) for files in (train, test))
        absent = np.flatnonzero(np.bincount(y, minlength=self.n_classes) == 0)
        if len(absent):
            raise UserError(
                f"{train[0].parent}: {len(y):,} images, none of class {absent[0]} of "
                f"0..{self.n_classes - 1}: prepare a larger "
                "part of LEAF's data (--sf)"
            )
        return {"train_x": x, "train_y": y, "test_x": test_x, "test_y": test_y, **moments(x)}

    def _from_emnist(self) -> Arrays:
        source = _emnist() if _unpacked() else fetch(self.remote, _emnist())
        files = [_emnist() / stem for stem in _stems()] if source == _emnist() else [source]
        lines = [f"{self.name} emnist", *file_lines(files, _emnist())]
        return cached(self.name, lines, lambda: self._read_emnist(source))

    def _read_emnist(self, source: Path) -> Arrays:
        (x, y), (test_x, test_y) = (self._part(source, *_stems(part)) for part in ("train", "test"))
        check_counts(type(self), str(source), len(y), len(test_y))
        return {"train_x": x, "train_y": y, "test_x": test_x, "test_y": test_y, **moments(x)}

    def _part(self, source: Path, images: str, labels: str) -> tuple[np.ndarray, np.ndarray]:
        """Images, of which the files hold rows and columns exchanged, and labels."""
        x, y = (
            idx_array(lambda s=stem: _opened(source, s), f"{source} ({stem})", _MOST_IDX_BYTES)
            for stem in (images, labels)
        )
        if x.shape[1:] != (_SIDE, _SIDE) or y.shape != x.shape[:1]:
            raise UserError(
                f"{source}: {images} holds {list(x.shape)}, {labels} {list(y.shape)}: delete them "
                "and run again"
            )
        check_labels(y.astype(np.int64), self.n_classes, f"{source} ({labels})")
        return np.ascontiguousarray(x.swapaxes(1, 2))[:, None], y.astype(np.int64)


def _opened(source: Path, stem: str) -> Any:
    """The idx file ``stem`` in the folder ``source``, or gzipped in the archive ``source``."""
    if source.is_dir():
        return open(source / stem, "rb")
    return gzip.open(zipfile.ZipFile(source).open(f"gzip/{stem}.gz"))


def read_writers(files: list[Path], n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Images [n, 1, 28, 28] uint8, ink 255 on 0, and labels [n] of LEAF's json files, writer by
    writer.

    Each file: ``users`` (names), ``num_samples`` (optional), ``user_data`` (name -> ``x``: lists of
    784 numbers 0..1, row by row, 1 = white, and ``y``: class numbers). Raises ``UserError`` naming
    file and writer.
    """
    found = [
        _samples(data, where, count, n_classes)
        for file in files
        for where, data, count in _writers(file)
    ]
    if not found:
        raise UserError(
            f"{files[0].parent}: no writer in {len(files)} json files; prepare LEAF's data again"
        )
    x, y = (np.concatenate(part) for part in zip(*found, strict=True))
    return x, y


def _writers(file: Path) -> Iterator[tuple[str, Any, int | None]]:
    """(for messages: file and writer, the writer's data, how many images it is said to have) of one
    file.
    """
    check_size(file, _MOST_JSON_BYTES)
    try:
        content = json.loads(file.read_bytes())
        counts = content.get("num_samples") or [None] * len(content["users"])
        every = [
            (user, content["user_data"][user], count)
            for user, count in zip(content["users"], counts, strict=True)
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{file}: not LEAF's format ({type(error).__name__}: {error}); prepare it again"
        ) from error
    for user, data, count in every:
        yield f"{file}: writer '{str(user)[:40]}'", data, count


def _samples(
    data: Any, where: str, count: int | None, n_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    try:
        x, y = np.asarray(data["x"], np.float64), np.asarray(data["y"], np.int64)
    except (ValueError, LookupError, TypeError, OverflowError) as error:
        raise UserError(
            f"{where}: no lists of numbers 'x' and 'y' ({error}); prepare it again"
        ) from error
    if len(x) != len(y) or count not in (None, len(y)):
        raise UserError(
            f"{where}: {len(x)} images, {len(y)} labels, num_samples {count}; prepare it again"
        )
    x = x.reshape(len(y), -1)
    if (x.shape[1] != _SIDE * _SIDE and len(y)) or not ((x >= 0) & (x <= 1)).all():
        raise UserError(
            f"{where}: images must be {_SIDE * _SIDE} numbers 0..1 each; prepare it again"
        )
    check_labels(y, n_classes, where)
    return np.rint(255 * (1 - x)).astype(np.uint8).reshape(-1, 1, _SIDE, _SIDE), y


def _leaf() -> Path:
    return data_folder() / Femnist.name / "data"


def _emnist() -> Path:
    return data_folder() / "EMNIST" / "raw"


def _stems(*parts: str) -> list[str]:
    """Names of the unpacked files: images and labels of train, then of test."""
    kinds = ("images-idx3", "labels-idx1")
    return [
        f"emnist-byclass-{part}-{kind}-ubyte"
        for part in parts or ("train", "test")
        for kind in kinds
    ]


def _unpacked() -> bool:
    return all((_emnist() / stem).exists() for stem in _stems())
