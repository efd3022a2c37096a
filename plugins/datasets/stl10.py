"""STL-10: the labelled images of the official binary version."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedbench.core import Arrays, Remote, UserError, cached, check_labels, check_size, data_folder, fetch, file_lines, unpack
from fedbench.plugins.datasets.imageset import HALF, ImageSet, Statistics, check_counts, moments
from fedbench.plugins.datasets.resplit import Resplit

_PIXELS = (3, 96, 96)
_MOST_BYTES = 4_000_000_000  # unpacked: 3.1 GB, of which 2.8 GB are the unlabelled images
_MOST_FILE_BYTES = 300_000_000  # of the four files that are read; the largest has 221 MB
_FILES = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin")


class Stl10(ImageSet):
    """13,000 labelled colour images 96x96, 10 classes: the official 5,000 + 8,000 merged and split by seed.

    By default 60 % to train on, as FedPoisonMIA's code (docs/methods/federation.md#data-sets); the other 40 % are test and
    hold-out in equal parts. Read from ``stl10_binary`` (downloaded; of it only the four files of labelled images are needed).
    """

    name = "stl10"
    default_model = "resnet20"
    n_classes = 10
    expected = (5_000, 8_000)
    size_mb = 2640.4
    home = "https://cs.stanford.edu/~acoates/stl10/"
    licence = "none stated; the images are from ImageNet, the authors ask to be cited"
    citation = "A. Coates, H. Lee, A. Y. Ng: An analysis of single-layer networks in unsupervised feature learning. " \
        "AISTATS, 2011"  # fmt: skip
    folder: ClassVar[str] = "stl10_binary"
    remote: ClassVar[Remote] = Remote(
        "stl10_binary.tar.gz", ("http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",),
        "md5:91f7769df0f17e558f3565bffb0c7dfb", 2_640_397_119,
    )  # fmt: skip

    class Params(Resplit):
        test: int | float = Field(0.2, gt=0, description="test images, clean labels; a count, or a share of all below 1")
        holdout: int | float = Field(
            0.2, gt=0, description="outside non-members, never trained on; a count, or a share of all below 1"
        )
        normalise: Literal["own", "half"] = Field(
            "own", description="channel mean and standard deviation: of all labelled images, or 0.5 and 0.5"
        )

    @classmethod
    def _places(cls) -> list[Path]:
        return [data_folder() / cls.folder, data_folder() / cls.remote.name]

    def _statistics(self, arrays: Arrays) -> Statistics:
        return super()._statistics(arrays) if self.params.normalise == "own" else HALF

    def _arrays(self) -> Arrays:
        root = data_folder()
        folder = root / self.folder
        if not folder.exists():
            unpack(fetch(self.remote, root), root, self.folder, _MOST_BYTES)
        files = [folder / name for name in _FILES]
        absent = [f for f in files if not f.exists()]
        if absent:
            raise UserError(f"{absent[0]} is missing: delete {folder} and run again, or {self.remote.how_to_get(root)}")
        return cached(self.name, [self.name, *file_lines(files, root)], lambda: self._read(files))

    def _read(self, files: list[Path]) -> Arrays:
        (train_x, train_y), (test_x, test_y) = (self._part(*files[i : i + 2]) for i in (0, 2))
        check_counts(type(self), str(files[0].parent), len(train_y), len(test_y))
        x = np.concatenate([train_x, test_x])
        return {"train_x": x, "train_y": np.concatenate([train_y, test_y]), **moments(x)}

    def _part(self, images: Path, labels: Path) -> tuple[np.ndarray, np.ndarray]:
        """Images as channel, COLUMN, row, one byte each; labels 1..10, one byte each (the data set's web page)."""
        for file in (images, labels):
            check_size(file, _MOST_FILE_BYTES)
        raw, y = np.fromfile(images, np.uint8), np.fromfile(labels, np.uint8).astype(np.int64) - 1
        size = int(np.prod(_PIXELS))
        if len(y) == 0 or len(raw) != size * len(y):
            raise UserError(
                f"{images}: {len(raw):,} bytes for {len(y):,} labels in {labels.name}, {size:,} an image: truncated; delete "
                f"{images.parent} and run again, or {self.remote.how_to_get(data_folder())}"
            )
        check_labels(y, 10, f"{labels} (classes counted from 0)")
        return raw.reshape(-1, *_PIXELS).transpose(0, 1, 3, 2), y
