"""MNIST and Fashion-MNIST: four idx files, where torchvision keeps them too."""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedbench.core import UserError
from fedbench.core.toolkit import Arrays, Remote, cached, check_labels, data_folder, fetch, file_lines
from fedbench.plugins.datasets.imageset import ImageSet, Statistics, check_counts

_STEMS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_MOST_BYTES = 64_000_000  # of one unpacked file; the largest has 47,040,016
_UINT8 = 8  # the idx format's code of the element type
_DAMAGED = (OSError, EOFError, zlib.error, zipfile.BadZipFile, KeyError, NotImplementedError, RuntimeError)


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
    citation = "Y. LeCun, L. Bottou, Y. Bengio, P. Haffner: Gradient-based learning applied to document recognition. " \
        "Proceedings of the IEEE, 1998"  # fmt: skip
    folder: ClassVar[str] = "MNIST/raw"
    mirrors: ClassVar[tuple[str, ...]] = (
        "https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist",
    )  # fmt: skip
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
        files = [self._file(folder, stem, *fact) for stem, fact in zip(_STEMS, self.packed, strict=True)]
        return cached(self.name, [self.name, *file_lines(files, folder)], lambda: self._read(files))

    def _file(self, folder: Path, stem: str, md5: str, size: int) -> Path:
        plain, name = folder / stem, f"{stem}.gz"
        if plain.exists():
            return plain
        return fetch(Remote(name, tuple(f"{m}/{name}" for m in self.mirrors), f"md5:{md5}", size), folder)

    def _read(self, files: list[Path]) -> Arrays:
        x, y, test_x, test_y = (
            idx_array(partial(gzip.open if f.suffix == ".gz" else open, f, "rb"), str(f), _MOST_BYTES) for f in files
        )
        _check(x, y, files[0], files[1])
        _check(test_x, test_y, files[2], files[3])
        check_counts(type(self), str(files[0].parent), len(y), len(test_y))
        return {
            "train_x": x[:, None], "train_y": y.astype(np.int64), "test_x": test_x[:, None],
            "test_y": test_y.astype(np.int64),
        }  # fmt: skip


class FashionMnist(Mnist):
    """70,000 pictures of clothes, 28x28 grey, 10 classes; official split 60,000 / 10,000.

    Read from ``FashionMNIST/raw``, packed (.gz, downloaded, checksum verified) or unpacked.
    """

    name = "fashion-mnist"
    size_mb = 30.9
    home = "https://github.com/zalandoresearch/fashion-mnist"
    licence = "MIT"
    citation = "H. Xiao, K. Rasul, R. Vollgraf: Fashion-MNIST: a novel image dataset for benchmarking machine learning " \
        "algorithms. arXiv:1708.07747, 2017"  # fmt: skip
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
            f"{labels}: labels {list(y.shape)} for images {list(x.shape)} in {images.name}, expected [n] and [n, 28, 28]; "
            "delete both and run again"
        )
    check_labels(y.astype(np.int64), 10, str(labels))


def idx_array(opened: Callable[[], Any], where: str, most: int) -> np.ndarray:
    """The uint8 array of an idx file of at most ``most`` bytes. Raises ``UserError`` naming the place ``where``.

    Format (the data set's web page): two zero bytes, type code, number of dimensions, the dimensions as big-endian
    32-bit integers, the elements.
    """
    try:
        with opened() as f:
            raw = f.read(most + 1)
    except _DAMAGED as error:
        raise UserError(f"{where}: cannot be read ({type(error).__name__}: {error}); delete it and run again") from error
    dims = raw[3] if len(raw) > 3 and raw[:3] == bytes((0, 0, _UINT8)) else 0
    header = 4 + 4 * dims
    shape = tuple(np.frombuffer(raw[4:header], ">u4").tolist()) if dims and len(raw) >= header else ()
    if not shape or len(raw) - header != np.prod(shape, dtype=object):
        raise UserError(f"{where}: not a whole idx file of at most {most:,} bytes: delete it and run again")
    return np.frombuffer(raw, np.uint8, offset=header).reshape(shape)
