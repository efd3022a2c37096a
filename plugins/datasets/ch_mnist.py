"""CH-MNIST: tiles of colorectal tissue."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedbench.core import (
    Arrays,
    Remote,
    UserError,
    cached,
    check_size,
    class_folders,
    data_folder,
    decode_images,
    fetch,
    file_lines,
    unpack,
)
from fedbench.plugins.datasets.imageset import HALF, ImageSet, Statistics, moments
from fedbench.plugins.datasets.resplit import Resplit

CLASSES = ("01_TUMOR", "02_STROMA", "03_COMPLEX", "04_LYMPHO", "05_DEBRIS", "06_MUCOSA", "07_ADIPOSE", "08_EMPTY")
SIDE = 64
_CSV = "hmnist_64_64_L.csv"
_MOST_BYTES = 1_000_000_000  # unpacked: 5,000 tiles of about 75 kB
_MOST_CSV_BYTES = 200_000_000  # 20 million numbers below 256, and commas


class ChMnist(ImageSet):
    """5,000 tiles of colorectal tissue, 64x64 grey, 8 classes of 625: split by seed, each class keeping its share.

    By default 80 % to train on, as in MemberShield (section 6.1); the other 20 % are test and hold-out in equal parts. Read from
    ``ch-mnist/hmnist_64_64_L.csv`` where you put it (Kaggle's version, which the paper used), else from the class folders of
    ``Kather_texture_2016_image_tiles_5000`` (150x150 in colour, downloaded from Zenodo), made grey and scaled to 64x64. The
    two scale differently: same tissue, not the same bytes.
    """

    name = "ch-mnist"
    default_model = "membershield-cnn3"
    n_classes = 8
    per_class: ClassVar[int] = 625
    size_mb = 258.1
    home = "https://zenodo.org/record/53169"
    licence = "CC BY 4.0"
    citation = "J. N. Kather et al.: Multi-class texture analysis in colorectal cancer histology. Scientific Reports, 2016"
    folder: ClassVar[str] = "Kather_texture_2016_image_tiles_5000"
    # The checksum as TensorFlow Datasets has it (url_checksums/colorectal_histology.txt); Zenodo publishes an md5.
    remote: ClassVar[Remote] = Remote(
        f"{folder}.zip", (f"https://zenodo.org/record/53169/files/{folder}.zip",),
        "sha256:936d0b95ae0f04f1f7b18a2b7e8c55776c3e887d102f645bcee752d1a6626a32", 258_098_431,
    )  # fmt: skip

    class Params(Resplit):
        test: int | float = Field(0.1, gt=0, description="test images, clean labels; a count, or a share of all below 1")
        holdout: int | float = Field(
            0.1, gt=0, description="outside non-members, never trained on; a count, or a share of all below 1"
        )
        normalise: Literal["half", "own"] = Field(
            "half", description="mean and standard deviation: 0.5 and 0.5, which is MemberShield's [-1, 1], or of all images"
        )

    @classmethod
    def _places(cls) -> list[Path]:
        root = data_folder()
        return [root / cls.name / _CSV, root / cls.folder, root / cls.remote.name]

    def _statistics(self, arrays: Arrays) -> Statistics:
        return super()._statistics(arrays) if self.params.normalise == "own" else (HALF[0][:1], HALF[1][:1])

    def _arrays(self) -> Arrays:
        root = data_folder()
        table, folder, _ = self._places()
        if table.exists():
            return cached(self.name, [self.name, *file_lines([table], root)], lambda: self._from_table(table))
        if not folder.exists():
            unpack(self._archive(root, table), root, self.folder, _MOST_BYTES)
        tiles = class_folders(folder, CLASSES)
        self._check_classes(folder, tiles.y)
        import PIL

        source = [self.name, f"pillow {PIL.__version__}", str(SIDE), *file_lines(tiles.files, root)]
        return cached(self.name, source, lambda: _arrays(decode_images(tiles.files, size=SIDE, channels=1), tiles.y))

    def _archive(self, root: Path, table: Path) -> Path:
        try:
            return fetch(self.remote, root)
        except UserError as error:
            raise UserError(*error.messages[:-1], f"{error.messages[-1]}, or put Kaggle's {_CSV} at {table}") from error

    def _from_table(self, file: Path) -> Arrays:
        x, y = read_table(file, len(CLASSES) * self.per_class)
        self._check_classes(file, y)
        return _arrays(x, y)

    def _check_classes(self, where: Path, y: np.ndarray) -> None:
        counts = np.bincount(y, minlength=len(CLASSES))
        wrong = [f"{n:,} of {name}" for n, name in zip(counts, CLASSES, strict=True) if n != self.per_class]
        if wrong:
            raise UserError(
                f"{where}: {', '.join(wrong)}, where {self.name} has {self.per_class} of each class: fewer or more than the "
                "official set; delete it and get it again, or use the data set 'image-folder' for a part of it"
            )


def read_table(file: Path, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Pixels [n, 1, 64, 64] uint8 and labels [n] int64, 0 to 7, of Kaggle's csv file of at most ``most`` rows: pixel0000 to
    pixel4095 row by row of the image, label 1 to 8. Raises ``UserError`` naming file and line."""
    check_size(file, _MOST_CSV_BYTES)
    columns = [*(f"pixel{i:04}" for i in range(SIDE * SIDE)), "label"]
    rows: list[np.ndarray] = []
    number = 1
    try:
        with open(file, encoding="utf-8", errors="replace") as lines:
            if next(lines, "").strip().split(",") != columns:
                raise _Odd("the columns are not pixel0000, ..., pixel4095, label (of Kaggle's tables only the one of 64x64 grey)")
            for line in lines:
                number += 1
                if len(rows) == most:
                    raise _Odd(f"more than {most:,} images")
                rows.append(_row(line))
    except _Odd as error:
        raise UserError(f"{file}:{number}: {error}; get it again from Kaggle ('colorectal histology MNIST')") from error
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror}); mend that, or move it away to use Zenodo's tiles") from error
    table = np.array(rows, np.uint8).reshape(-1, SIDE * SIDE + 1)
    return table[:, :-1].reshape(-1, 1, SIDE, SIDE), table[:, -1].astype(np.int64) - 1


class _Odd(Exception):
    """A line that is not as it should be; the text says how."""


def _row(line: str) -> np.ndarray:
    """[4097] uint8 of one line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that a line is empty is said below
            row = np.loadtxt([line], np.uint8, delimiter=",", comments=None, ndmin=1)
    except ValueError as error:
        raise _Odd("a pixel or label that is no whole number 0..255") from error
    if row.shape != (SIDE * SIDE + 1,):
        raise _Odd(f"{row.size:,} numbers, {SIDE * SIDE + 1:,} expected: truncated?")
    if not 1 <= row[-1] <= len(CLASSES):
        raise _Odd(f"the label is {row[-1]}, not 1..{len(CLASSES)}")
    return row


def _arrays(x: np.ndarray, y: np.ndarray) -> Arrays:
    return {"train_x": x, "train_y": y, **moments(x)}
