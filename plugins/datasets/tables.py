"""FER2013 and CH-MNIST: images in Kaggle's csv tables; CH-MNIST also as tiles from Zenodo."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedbench.core import UserError
from fedbench.core.toolkit import Arrays, Remote, class_folders, data_folder, fetch
from fedbench.plugins.datasets.imageset import ArchivedSet, ImageSet
from fedbench.plugins.datasets.reading import parsing
from fedbench.plugins.datasets.sampling import HOLDOUT, TEST, Amount, Resplit

_FACE, _TILE = 48, 64  # sides, in pixels
_FACES_HOME = (
    "https://www.kaggle.com/c/"
    "challenges-in-representation-learning-facial-expression-recognition-challenge"
)
_FACES_URLS = (f"{_FACES_HOME}/data",)


class Fer2013(ImageSet):
    """35,887 faces, 48x48 grey, 7 expressions: the official 28,709 + 7,178 merged and split by
    seed.

    By default 1/9 is not trained on, as in FedPoisonMIA's code
    (docs/methods/federation.md#data-sets), half of it test, half hold-out. ``channels: 3`` repeats
    the grey channel, for models of colour images. FedPoisonMIA counts 35,886 images; the file has
    35,887. Not freely downloadable: ``fer2013/fer2013.csv`` or ``fer2013/icml_face_data.csv`` is
    put in place by hand, and its checksum verified; both give the same samples in the same order.
    ``train.csv`` and ``test.csv`` do not do: the latter has no labels.
    """

    name = "fer2013"
    default_model = "resnet20"
    n_classes = 7
    size_mb = 300.0
    home = _FACES_HOME
    licence = "the rules of Kaggle's challenge, an account is needed"
    citation = (
        "I. J. Goodfellow et al.: Challenges in representation learning: a report on three machine "
        "learning contests. ICONIP, 2013"
    )
    # Either file has all images and labels, in about 300 MB; the order of columns and rows differs.
    # md5 as torchvision has it.
    tables: ClassVar[tuple[Remote, ...]] = (
        Remote("fer2013.csv", _FACES_URLS, "md5:f8428a1edbd21e88f42c73edd2a14f95", 300_000_000),
        Remote(
            "icml_face_data.csv", _FACES_URLS, "md5:b114b9e04e6949e5fe8b6a98b3892b1d", 300_000_000
        ),
    )

    class Params(Resplit):
        test: Amount = Field(1 / 18, description=TEST)
        holdout: Amount = Field(1 / 18, description=HOLDOUT)
        channels: Literal[1, 3] = Field(1, description="3 repeats the grey channel three times")
        normalise: Literal["own", "half"] = Field(
            "own", description="mean and standard deviation: of all images, or 0.5 and 0.5"
        )

    @classmethod
    def _places(cls) -> list[Path]:
        return [data_folder() / cls.name / table.name for table in cls.tables]

    def _arrays(self) -> Arrays:
        folder = data_folder() / self.name
        tables = [table for table in self.tables if (folder / table.name).exists()]
        if not tables:
            ways = " or ".join(table.how_to_get(folder) for table in self.tables)
            raise UserError(
                f"fer2013 cannot be downloaded freely: with your account {ways}; train.csv and "
                "test.csv are not enough, since the test images have no labels there"
            )
        arrays = self._once([fetch(tables[0], folder)], folder, self._read)
        if self.params.channels == 1:
            return arrays
        return {
            "train_x": np.repeat(arrays["train_x"], 3, axis=1),
            "train_y": arrays["train_y"],
            "mean": np.repeat(arrays["mean"], 3),
            "std": np.repeat(arrays["std"], 3),
        }

    def _read(self, files: Sequence[Path]) -> Arrays:
        """Parse the columns emotion, Usage and pixels of a verified file.

        Sorted, since the two files differ in their order. torchvision's reader does not tell
        PublicTest from PrivateTest, by which they are sorted.
        """
        with open(files[0], newline="") as lines:
            faces = sorted(map(_face, csv.DictReader(lines, skipinitialspace=True)))
        pixels = np.frombuffer(b"".join(face for _, _, face in faces), np.uint8)
        return {
            "train_x": pixels.reshape(-1, 1, _FACE, _FACE),
            "train_y": np.array([label for _, label, _ in faces], np.int64),
        }


def _face(row: dict[str, str]) -> tuple[str, int, bytes]:
    """Return usage, label and pixels of a row."""
    return row["Usage"], int(row["emotion"]), bytes(map(int, row["pixels"].split()))


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
    citation = (
        "J. N. Kather et al.: Multi-class texture analysis in colorectal cancer histology. "
        "Scientific Reports, 2016"
    )
    most_bytes = 1_000_000_000  # 5,000 tiles of about 75 kB
    folder = "Kather_texture_2016_image_tiles_5000"
    table: ClassVar[str] = "hmnist_64_64_L.csv"
    # The checksum as TensorFlow Datasets has it (url_checksums/colorectal_histology.txt); Zenodo
    # publishes an md5.
    remote = Remote(
        f"{folder}.zip",
        (f"https://zenodo.org/record/53169/files/{folder}.zip",),
        "sha256:936d0b95ae0f04f1f7b18a2b7e8c55776c3e887d102f645bcee752d1a6626a32",
        258_098_431,
    )

    class Params(Resplit):
        test: Amount = Field(0.1, description=TEST)
        holdout: Amount = Field(0.1, description=HOLDOUT)
        normalise: Literal["half", "own"] = Field(
            "half",
            description="mean and standard deviation: 0.5 and 0.5, which is MemberShield's [-1, "
            "1], or of all images",
        )

    @classmethod
    def _places(cls) -> list[Path]:
        return [data_folder() / cls.name / cls.table, *super()._places()]

    def _arrays(self) -> Arrays:
        table = self._places()[0]
        if table.exists():
            return self._once([table], data_folder(), self._read)
        folder = self._unpacked(f", or put Kaggle's {self.table} at {table}")
        tiles = class_folders(folder)
        self._check_classes(folder, tiles.y)
        return self._decoded([tiles], data_folder(), size=_TILE, channels=1)

    def _read(self, files: Sequence[Path]) -> Arrays:
        """Parse Kaggle's table: pixel0000 to pixel4095 row by row of the image, label 1 to 8."""
        (file,) = files
        with parsing(file, "get Kaggle's table of 64x64 grey ('colorectal histology MNIST') again"):
            table = np.loadtxt(file, np.uint8, delimiter=",", skiprows=1, ndmin=2)
            x = table[:, :-1].reshape(-1, 1, _TILE, _TILE)
        y = table[:, -1].astype(np.int64) - 1
        self._check_classes(file, y)
        return {"train_x": x, "train_y": y}

    def _check_classes(self, place: Path, y: np.ndarray) -> None:
        counts = np.unique(y, return_counts=True)[1]
        if counts.tolist() != [self.per_class] * self.n_classes:
            raise UserError(
                f"{place}: {counts.tolist()} images of the classes, where {self.name} has "
                f"{self.per_class} of each of {self.n_classes}: fewer or more than the official "
                "set; delete it and get it again, or use the data set 'image-folder' for a part "
                "of it"
            )
