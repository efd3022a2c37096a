"""CIFAR-10, CIFAR-100 and STL-10: the official binary versions; CIFAR also from class folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedbench.core.toolkit import Arrays, Remote, data_folder
from fedbench.plugins.datasets.imageset import ArchivedSet, ImageSet, Statistics
from fedbench.plugins.datasets.reading import parsing
from fedbench.plugins.datasets.sampling import HOLDOUT, TEST, Amount, Part, Resplit

# FedMIA's code normalises CIFAR-10 and CIFAR-100 with these; the deviations are the mean over
# images of each image's own, smaller than those of all pixels.
_FEDMIA: Statistics = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))


class _Cifar(ArchivedSet):
    home = "https://www.cs.toronto.edu/~kriz/cifar.html"
    licence = "none stated; the authors ask to be cited"
    citation = (
        "A. Krizhevsky: Learning multiple layers of features from tiny images. Technical report, "
        "2009"
    )
    expected = (50_000, 10_000)
    most_bytes = 400_000_000  # 184 MB of records and some text
    files: ClassVar[tuple[str, ...]]  # the last one is the test set
    label_bytes: ClassVar[int]  # of a record; the last one is the class

    class Params(ImageSet.Params):
        normalise: Literal["own", "fedmia", "half"] = Field(
            "own",
            description="channel mean and standard deviation: of this set's training pixels, "
            "FedMIA's (CIFAR-10's, for CIFAR-100 too), or 0.5 and 0.5",
        )

    @classmethod
    def _places(cls) -> list[Path]:
        return [*super()._places(), data_folder() / cls.name / "train"]

    def _arrays(self) -> Arrays:
        binary, archive, train = self._places()
        test = train.with_name("test")
        if train.exists() and not binary.exists() and not archive.exists():
            return self._from_folders([train, test], channels=3)
        folder = self._unpacked(
            " (the binary version; the python version is a pickle and is not read), or put class "
            f"folders in {train.parent}/{{train,test}}/<class>"
        )
        return self._once([folder / name for name in self.files], data_folder(), self._read)

    def _read(self, files: Sequence[Path]) -> Arrays:
        *train, test = (self._records(file) for file in files)
        x, y = (np.concatenate(arrays) for arrays in zip(*train, strict=True))
        return self._parts(files[0].parent, (x, y), test)

    def _records(self, file: Path) -> Part:
        """Parse records of label byte(s), then 3,072 pixels: channel, row, column (the data set's
        web page).
        """
        with parsing(file, self._remedy()):
            records = np.fromfile(file, np.uint8).reshape(-1, self.label_bytes + 3 * 32 * 32)
        pixels = np.ascontiguousarray(records[:, self.label_bytes :]).reshape(-1, 3, 32, 32)
        return pixels, records[:, self.label_bytes - 1].astype(np.int64)


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
    files = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
    label_bytes = 1
    # own: computed from the 50,000 training images
    published: ClassVar[dict[str, Statistics]] = {
        "own": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        "fedmia": _FEDMIA,
    }


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
    files = ("train.bin", "test.bin")
    label_bytes = 2
    # own: computed from the 50,000 training images
    published: ClassVar[dict[str, Statistics]] = {
        "own": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
        "fedmia": _FEDMIA,
    }


class Stl10(ArchivedSet):
    """13,000 labelled colour images 96x96, 10 classes: the official 5,000 + 8,000 merged and split
    by seed.

    By default 60 % to train on, as FedPoisonMIA's code (docs/methods/federation.md#data-sets); the
    other 40 % are test and hold-out in equal parts. Read by torchvision from ``stl10_binary``
    (downloaded; of it only the four files of labelled images are needed).
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
        "learning. AISTATS, 2011"
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
        test: Amount = Field(0.2, description=TEST)
        holdout: Amount = Field(0.2, description=HOLDOUT)
        normalise: Literal["own", "half"] = Field(
            "own",
            description="channel mean and standard deviation: of all labelled images, or 0.5 and "
            "0.5",
        )

    def _arrays(self) -> Arrays:
        folder = self._unpacked()
        names = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin")
        return self._once([folder / name for name in names], data_folder(), self._read)

    def _read(self, files: Sequence[Path]) -> Arrays:
        from torchvision.datasets import STL10

        class LabelledImages(STL10):
            def _check_integrity(self) -> bool:
                """Do not ask for the unlabelled images; the archive's checksum is verified."""
                return True

        folder = files[0].parent
        parts = []
        with parsing(folder, self._remedy()):
            for name in ("train", "test"):
                part = LabelledImages(folder.parent, split=name)
                parts.append((part.data, part.labels.astype(np.int64)))
        arrays = self._parts(folder, *parts)
        return {
            name: np.concatenate([arrays[name], arrays[f"test_{name[-1]}"]])
            for name in ("train_x", "train_y")
        }
