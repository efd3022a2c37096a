"""CIFAR-10, CIFAR-100 and STL-10: the official binary versions; CIFAR also from class folders."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedbench.core import UserError
from fedbench.core.toolkit import (
    Arrays,
    Remote,
    cached,
    check_labels,
    check_size,
    data_folder,
    file_lines,
)
from fedbench.plugins.datasets.imageset import (
    HALF,
    ArchivedSet,
    ImageSet,
    Statistics,
    check_counts,
    folder_arrays,
    moments,
)
from fedbench.plugins.datasets.sampling import Resplit, holdout_share, test_share

_PIXELS = (3, 32, 32)
_MOST_BYTES = 400_000_000  # unpacked: 184 MB of records and some text
_MOST_FILE_BYTES = 300_000_000  # of the four files that are read; the largest has 221 MB
_FILES = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin")
# FedMIA's code normalises CIFAR-10 and CIFAR-100 with these; the deviations are the mean over
# images of each image's own, smaller than those of all pixels.
_FEDMIA: Statistics = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))


class _Cifar(ArchivedSet):
    home = "https://www.cs.toronto.edu/~kriz/cifar.html"
    licence = "none stated; the authors ask to be cited"
    citation = "A. Krizhevsky: Learning multiple layers of features from tiny images. Technical report, 2009"
    expected = (50_000, 10_000)
    most_bytes = _MOST_BYTES
    train_files: ClassVar[tuple[str, ...]]
    test_file: ClassVar[str]
    label_bytes: ClassVar[int]  # of a record; the last one is the class
    own: ClassVar[Statistics]

    class Params(ImageSet.Params):
        normalise: Literal["own", "fedmia", "half"] = Field(
            "own",
            description="channel mean and standard deviation: of this set's training pixels, "
            "FedMIA's (CIFAR-10's, for "
            "CIFAR-100 too), or 0.5 and 0.5",
        )

    @classmethod
    def _places(cls) -> list[Path]:
        return [*super()._places(), data_folder() / cls.name / "train"]

    def _statistics(self, arrays: Arrays) -> Statistics:
        return {"own": self.own, "fedmia": _FEDMIA, "half": HALF}[self.params.normalise]

    def _arrays(self) -> Arrays:
        binary, archive, folders = self._places()
        if not binary.exists() and not archive.exists() and folders.exists():
            return folder_arrays(type(self), [folders, folders.parent / "test"], channels=3)
        hint = (
            " (the binary version; the python version is a pickle and is not read), or put class "
            "folders in "
            f"{folders.parent}/{{train,test}}/<class>"
        )
        files = self._files(self._unpacked(hint), (*self.train_files, self.test_file))
        return cached(
            self.name, [self.name, *file_lines(files, data_folder())], lambda: self._read(files)
        )

    def _read(self, files: list[Path]) -> Arrays:
        parts = [self._records(f) for f in files]
        x, y = (np.concatenate([p[i] for p in parts[:-1]]) for i in (0, 1))
        check_counts(type(self), str(files[0].parent), len(y), len(parts[-1][1]))
        return {"train_x": x, "train_y": y, "test_x": parts[-1][0], "test_y": parts[-1][1]}

    def _records(self, file: Path) -> tuple[np.ndarray, np.ndarray]:
        """Records of label byte(s), then 3,072 pixels: channel, row, column (the data set's web
        page).
        """
        check_size(file, _MOST_BYTES)
        raw = np.fromfile(file, np.uint8)
        length = self.label_bytes + int(np.prod(_PIXELS))
        if len(raw) == 0 or len(raw) % length:
            raise UserError(
                f"{file}: {len(raw):,} bytes are no whole number of {length:,}-byte records: "
                "truncated; "
                f"{self._again(file.parent)}"
            )
        records = raw.reshape(-1, length)
        y = records[:, self.label_bytes - 1].astype(np.int64)
        assert self.n_classes is not None
        check_labels(y, self.n_classes, f"{file}")
        return np.ascontiguousarray(records[:, self.label_bytes :]).reshape(-1, *_PIXELS), y


class Cifar10(_Cifar):
    """60,000 colour images 32x32, 10 classes; official split 50,000 / 10,000.

    Read from ``cifar-10-batches-bin`` (downloaded), else from class folders
    ``cifar10/{train,test}/<class>``.
    """

    name = "cifar10"
    n_classes = 10
    size_mb = 170.1
    remote = Remote(
        "cifar-10-binary.tar.gz",
        ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
        "md5:c32a1d4ab5d03f1284b67883e8d87530",
        170_052_171,
    )
    folder = "cifar-10-batches-bin"
    train_files = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
    test_file = "test_batch.bin"
    label_bytes = 1
    # computed from the 50,000 training images
    own = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))


class Cifar100(_Cifar):
    """60,000 colour images 32x32, 100 (fine) classes; official split 50,000 / 10,000.

    Read from ``cifar-100-binary`` (downloaded), else from class folders
    ``cifar100/{train,test}/<class>``.
    """

    name = "cifar100"
    n_classes = 100
    size_mb = 168.5
    remote = Remote(
        "cifar-100-binary.tar.gz",
        ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
        "md5:03b5dce01913d631647c71ecec9e9cb8",
        168_513_733,
    )
    folder = "cifar-100-binary"
    train_files = ("train.bin",)
    test_file = "test.bin"
    label_bytes = 2
    # computed from the 50,000 training images
    own = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))


class Stl10(ArchivedSet):
    """13,000 labelled colour images 96x96, 10 classes: the official 5,000 + 8,000 merged and split
    by seed.

    By default 60 % to train on, as FedPoisonMIA's code (docs/methods/federation.md#data-sets); the
    other 40 % are test and hold-out in equal parts. Read from ``stl10_binary`` (downloaded; of it
    only the four files of labelled images are needed).
    """

    name = "stl10"
    default_model = "resnet20"
    n_classes = 10
    expected = (5_000, 8_000)
    size_mb = 2640.4
    home = "https://cs.stanford.edu/~acoates/stl10/"
    licence = "none stated; the images are from ImageNet, the authors ask to be cited"
    citation = (
        "A. Coates, H. Lee, A. Y. Ng: An analysis of single-layer networks in unsupervised feature "
        "learning. "
        "AISTATS, 2011"
    )
    folder = "stl10_binary"
    most_bytes = 4_000_000_000  # 3.1 GB, of which 2.8 GB are the unlabelled images
    remote = Remote(
        "stl10_binary.tar.gz",
        ("http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",),
        "md5:91f7769df0f17e558f3565bffb0c7dfb",
        2_640_397_119,
    )

    class Params(Resplit):
        test: int | float = test_share(0.2)
        holdout: int | float = holdout_share(0.2)
        normalise: Literal["own", "half"] = Field(
            "own",
            description="channel mean and standard deviation: of all labelled images, or 0.5 and "
            "0.5",
        )

    def _arrays(self) -> Arrays:
        files = self._files(self._unpacked(), _FILES)
        return cached(
            self.name, [self.name, *file_lines(files, data_folder())], lambda: self._read(files)
        )

    def _read(self, files: list[Path]) -> Arrays:
        (train_x, train_y), (test_x, test_y) = (self._part(*files[i : i + 2]) for i in (0, 2))
        check_counts(type(self), str(files[0].parent), len(train_y), len(test_y))
        x = np.concatenate([train_x, test_x])
        return {"train_x": x, "train_y": np.concatenate([train_y, test_y]), **moments(x)}

    def _part(self, images: Path, labels: Path) -> tuple[np.ndarray, np.ndarray]:
        """Images as channel, COLUMN, row, one byte each; labels 1..10, one byte each (the data
        set's web page).
        """
        for file in (images, labels):
            check_size(file, _MOST_FILE_BYTES)
        raw, y = np.fromfile(images, np.uint8), np.fromfile(labels, np.uint8).astype(np.int64) - 1
        size = int(np.prod((3, 96, 96)))
        if len(y) == 0 or len(raw) != size * len(y):
            raise UserError(
                f"{images}: {len(raw):,} bytes for {len(y):,} labels in {labels.name}, {size:,} an "
                "image: truncated; "
                f"{self._again(images.parent)}"
            )
        check_labels(y, 10, f"{labels} (classes counted from 0)")
        return raw.reshape(-1, *(3, 96, 96)).transpose(0, 1, 3, 2), y
