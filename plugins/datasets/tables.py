"""FER2013 and CH-MNIST: images in Kaggle's csv tables; CH-MNIST also as tiles from Zenodo."""

from __future__ import annotations

import csv
from collections import Counter
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
    class_folders,
    data_folder,
    file_lines,
)
from fedbench.plugins.datasets.imageset import ArchivedSet, ImageSet, check_counts, decoded, moments
from fedbench.plugins.datasets.sampling import Resplit, holdout_share, test_share

_SIDE, _TILE = 48, 64  # of a face, of a tile
_MOST_BYTES = 400_000_000  # of the csv file of faces, which has 301 MB
_TRAIN, _TEST = "Training", ("PublicTest", "PrivateTest")
# Either file has all images and labels; they differ in the order of columns and rows. md5 as
# torchvision has it.
_FILES = (
    ("fer2013.csv", "f8428a1edbd21e88f42c73edd2a14f95"),
    ("icml_face_data.csv", "b114b9e04e6949e5fe8b6a98b3892b1d"),
)
CLASSES = (
    "01_TUMOR",
    "02_STROMA",
    "03_COMPLEX",
    "04_LYMPHO",
    "05_DEBRIS",
    "06_MUCOSA",
    "07_ADIPOSE",
    "08_EMPTY",
)
_CSV = "hmnist_64_64_L.csv"
_MOST_CSV_BYTES = 200_000_000  # 20 million numbers below 256, and commas


class Fer2013(ImageSet):
    """35,887 faces, 48x48 grey, 7 expressions: the official 28,709 + 7,178 merged and split by
    seed.

    By default 1/9 is not trained on, as in FedPoisonMIA's code
    (docs/methods/federation.md#data-sets), half of it test, half hold-out. ``channels: 3`` repeats
    the grey channel, for models of colour images. FedPoisonMIA counts 35,886 images; the file has
    35,887. Not freely downloadable: ``fer2013/fer2013.csv`` or ``fer2013/icml_face_data.csv`` is
    put in place by hand; both give the same samples in the same order. ``train.csv`` and
    ``test.csv`` do not do: the latter has no labels.
    """

    name = "fer2013"
    default_model = "resnet20"
    n_classes = 7
    expected = (28_709, 7_178)
    size_mb = 300.0
    home = "https://www.kaggle.com/c/challenges-in-representation-learning-facial-expression-recognition-challenge"
    licence = "the rules of Kaggle's challenge, an account is needed"
    citation = (
        "I. J. Goodfellow et al.: Challenges in representation learning: a report on three machine "
        "learning "
        "contests. ICONIP, 2013"
    )

    class Params(Resplit):
        test: int | float = test_share(1 / 18)
        holdout: int | float = holdout_share(1 / 18)
        channels: Literal[1, 3] = Field(1, description="3 repeats the grey channel three times")
        normalise: Literal["own", "half"] = Field(
            "own", description="mean and standard deviation: of all images, or 0.5 and 0.5"
        )

    @classmethod
    def _places(cls) -> list[Path]:
        return [data_folder() / cls.name / file for file, _ in _FILES]

    def _arrays(self) -> Arrays:
        file = next((f for f in self._places() if f.exists()), None)
        if file is None:
            raise UserError(_how_to_get(data_folder() / self.name))
        arrays = cached(
            self.name, [self.name, *file_lines([file], file.parent)], lambda: self._read(file)
        )
        if self.params.channels == 1:
            return arrays
        mean, std = (np.repeat(arrays[name], 3) for name in ("mean", "std"))
        return {
            **arrays,
            "train_x": np.repeat(arrays["train_x"], 3, axis=1),
            "mean": mean,
            "std": std,
        }

    def _read(self, file: Path) -> Arrays:
        x, y, usage = read_faces(file)
        parts = Counter(usage)
        check_counts(type(self), str(file), parts[_TRAIN], sum(parts[u] for u in _TEST))
        # the two files differ in it
        order = sorted(range(len(y)), key=lambda i: (usage[i], y[i], x[i]))
        pixels = np.frombuffer(b"".join(x[i] for i in order), np.uint8).reshape(-1, 1, _SIDE, _SIDE)
        return {"train_x": pixels, "train_y": np.array(y, np.int64)[order], **moments(pixels)}


def read_faces(file: Path) -> tuple[list[bytes], list[int], list[str]]:
    """Pixels (48 * 48 bytes), label and usage of each row of a csv file, whatever its order of
    columns.

    Raises ``UserError`` naming file and line.
    """
    check_size(file, _MOST_BYTES)
    x: list[bytes] = []
    y: list[int] = []
    usage: list[str] = []
    with open(file, newline="", encoding="utf-8", errors="replace") as f:
        rows = csv.DictReader(f, skipinitialspace=True, restval="")
        try:
            for row in rows:
                x.append(_pixels(row["pixels"].split()))
                y.append(("0", "1", "2", "3", "4", "5", "6").index(row["emotion"].strip()))
                usage.append(row["Usage"].strip())
        except (csv.Error, KeyError, ValueError) as error:
            raise UserError(
                f"{file}:{rows.line_num}: {error}; get it again: {_how_to_get(file.parent)}"
            ) from error
    return x, y, usage


def _pixels(fields: list[str]) -> bytes:
    if len(fields) != _SIDE * _SIDE:
        raise ValueError(f"{len(fields):,} pixels, {_SIDE * _SIDE:,} expected: truncated?")
    return bytes(map(int, fields))


def _how_to_get(folder: Path) -> str:
    (one, md5), (other, other_md5) = _FILES
    return (
        f"fer2013 cannot be downloaded freely: get {other} (or {one}, inside fer2013.tar.gz) from "
        f"{Fer2013.home}/data with "
        f"your account, about 300 MB unpacked, and put it at {folder / other} (md5 {other_md5}) or "
        f"{folder / one} (md5 {md5}); "
        "train.csv and test.csv are not enough, since the test images have no labels there"
    )


class ChMnist(ArchivedSet):
    """5,000 tiles of colorectal tissue, 64x64 grey, 8 classes of 625: split by seed, each class
    keeping its share.

    By default 80 % to train on, as in MemberShield (section 6.1); the other 20 % are test and
    hold-out in equal parts. Read from ``ch-mnist/hmnist_64_64_L.csv`` where you put it (Kaggle's
    version, which the paper used), else from the class folders of
    ``Kather_texture_2016_image_tiles_5000`` (150x150 in colour, downloaded from Zenodo), made grey
    and scaled to 64x64. The two scale differently: same tissue, not the same bytes.
    """

    name = "ch-mnist"
    default_model = "membershield-cnn3"
    n_classes = 8
    per_class: ClassVar[int] = 625
    size_mb = 258.1
    home = "https://zenodo.org/record/53169"
    licence = "CC BY 4.0"
    citation = "J. N. Kather et al.: Multi-class texture analysis in colorectal cancer histology. Scientific Reports, 2016"
    most_bytes = 1_000_000_000  # 5,000 tiles of about 75 kB
    folder = "Kather_texture_2016_image_tiles_5000"
    # The checksum as TensorFlow Datasets has it (url_checksums/colorectal_histology.txt); Zenodo
    # publishes an md5.
    remote = Remote(
        f"{folder}.zip",
        (f"https://zenodo.org/record/53169/files/{folder}.zip",),
        "sha256:936d0b95ae0f04f1f7b18a2b7e8c55776c3e887d102f645bcee752d1a6626a32",
        258_098_431,
    )

    class Params(Resplit):
        test: int | float = test_share(0.1)
        holdout: int | float = holdout_share(0.1)
        normalise: Literal["half", "own"] = Field(
            "half",
            description="mean and standard deviation: 0.5 and 0.5, which is MemberShield's [-1, "
            "1], or of all images",
        )

    @classmethod
    def _places(cls) -> list[Path]:
        return [data_folder() / cls.name / _CSV, *super()._places()]

    def _arrays(self) -> Arrays:
        table, root = self._places()[0], data_folder()
        if table.exists():
            return cached(
                self.name, [self.name, *file_lines([table], root)], lambda: self._from_table(table)
            )
        folder = self._unpacked(f", or put Kaggle's {_CSV} at {table}")
        tiles = class_folders(folder, CLASSES)
        self._check_classes(folder, tiles.y)
        return decoded(self.name, [tiles], root, size=_TILE, channels=1)

    def _from_table(self, file: Path) -> Arrays:
        x, y = read_table(file)
        self._check_classes(file, y)
        return {"train_x": x, "train_y": y, **moments(x)}

    def _check_classes(self, where: Path, y: np.ndarray) -> None:
        counts = np.bincount(y, minlength=len(CLASSES))
        wrong = [
            f"{n:,} of {name}"
            for n, name in zip(counts, CLASSES, strict=True)
            if n != self.per_class
        ]
        if wrong:
            raise UserError(
                f"{where}: {', '.join(wrong)}, where {self.name} has {self.per_class} of each "
                "class: fewer or more than the "
                "official set; delete it and get it again, or use the data set 'image-folder' for "
                "a part of it"
            )


def read_table(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Pixels [n, 1, 64, 64] uint8 and labels [n] int64, 0 to 7, of Kaggle's csv file: pixel0000 to
    pixel4095 row by row of the image, label 1 to 8. Raises ``UserError`` naming file and place.
    """
    check_size(file, _MOST_CSV_BYTES)
    columns = [*(f"pixel{i:04}" for i in range(_TILE * _TILE)), "label"]
    with open(file, encoding="utf-8", errors="replace") as lines:
        if next(lines, "").strip().split(",") != columns:
            raise UserError(
                f"{file}:1: the columns are not pixel0000, ..., pixel4095, label: get Kaggle's "
                "table of 64x64 grey"
            )
        try:
            table = np.loadtxt(lines, np.uint8, delimiter=",", comments=None, ndmin=2)
        except ValueError as error:
            raise UserError(
                f"{file}: {error}; get it again from Kaggle ('colorectal histology MNIST')"
            ) from error
    y = table[:, -1].astype(np.int64) - 1
    check_labels(y, len(CLASSES), f"{file} (classes counted from 0)")
    return table[:, :-1].reshape(-1, 1, _TILE, _TILE), y
