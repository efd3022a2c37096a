"""FER2013, brought by the user: one csv file."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from fedbench.core import Arrays, UserError, cached, check_size, data_folder, file_lines
from fedbench.plugins.datasets.imageset import HALF, ImageSet, Statistics, check_counts, moments
from fedbench.plugins.datasets.resplit import Resplit

_SIDE = 48
_MOST_BYTES = 400_000_000  # of the csv file, which has 301 MB
_TRAIN, _TEST = "Training", ("PublicTest", "PrivateTest")
# Either file has all images and labels; they differ in the order of columns and rows. md5 as torchvision has it.
_FILES = (("fer2013.csv", "f8428a1edbd21e88f42c73edd2a14f95"), ("icml_face_data.csv", "b114b9e04e6949e5fe8b6a98b3892b1d"))


class Fer2013(ImageSet):
    """35,887 faces, 48x48 grey, 7 expressions: the official 28,709 + 7,178 merged and split by seed.

    By default 1/9 is not trained on, as in FedPoisonMIA's code (docs/methods/federation.md#data-sets), half of it test, half
    hold-out. ``channels: 3`` repeats the grey channel, for models of colour images. FedPoisonMIA counts 35,886 images; the file
    has 35,887. Not freely downloadable: ``fer2013/fer2013.csv`` or ``fer2013/icml_face_data.csv`` is put in place by hand;
    both give the same samples in the same order. ``train.csv`` and ``test.csv`` do not do: the latter has no labels.
    """

    name = "fer2013"
    default_model = "resnet20"
    n_classes = 7
    expected = (28_709, 7_178)
    size_mb = 300.0
    home = "https://www.kaggle.com/c/challenges-in-representation-learning-facial-expression-recognition-challenge"
    licence = "the rules of Kaggle's challenge, an account is needed"
    citation = "I. J. Goodfellow et al.: Challenges in representation learning: a report on three machine learning " \
        "contests. ICONIP, 2013"  # fmt: skip

    class Params(Resplit):
        test: int | float = Field(1 / 18, gt=0, description="test images, clean labels; a count, or a share of all below 1")
        holdout: int | float = Field(
            1 / 18, gt=0, description="outside non-members, never trained on; a count, or a share of all below 1"
        )
        channels: Literal[1, 3] = Field(1, description="3 repeats the grey channel three times")
        normalise: Literal["own", "half"] = Field("own", description="mean and standard deviation: of all images, or 0.5 and 0.5")

    @classmethod
    def _places(cls) -> list[Path]:
        return [data_folder() / cls.name / file for file, _ in _FILES]

    def _statistics(self, arrays: Arrays) -> Statistics:
        channels = self.params.channels
        return super()._statistics(arrays) if self.params.normalise == "own" else (HALF[0][:channels], HALF[1][:channels])

    def _arrays(self) -> Arrays:
        file = next((f for f in self._places() if f.exists()), None)
        if file is None:
            raise UserError(_how_to_get(data_folder() / self.name))
        arrays = cached(self.name, [self.name, *file_lines([file], file.parent)], lambda: self._read(file))
        if self.params.channels == 1:
            return arrays
        mean, std = (np.repeat(arrays[name], 3) for name in ("mean", "std"))
        return {**arrays, "train_x": np.repeat(arrays["train_x"], 3, axis=1), "mean": mean, "std": std}

    def _read(self, file: Path) -> Arrays:
        x, y, usage = read_faces(file, sum(self.expected or ()))
        parts = Counter(usage)
        check_counts(type(self), str(file), parts[_TRAIN], sum(parts[u] for u in _TEST))
        order = sorted(range(len(y)), key=lambda i: (usage[i], y[i], x[i]))  # the two files differ in it
        pixels = np.frombuffer(b"".join(x[i] for i in order), np.uint8).reshape(-1, 1, _SIDE, _SIDE)
        return {"train_x": pixels, "train_y": np.array(y, np.int64)[order], **moments(pixels)}


def read_faces(file: Path, most: int) -> tuple[list[bytes], list[int], list[str]]:
    """Pixels (48 * 48 bytes), label and usage of each row of a csv file, whatever its order of columns; at most ``most``.

    Raises ``UserError`` naming file and line.
    """
    x: list[bytes] = []
    y: list[int] = []
    usage: list[str] = []
    check_size(file, _MOST_BYTES)
    try:
        with open(file, newline="", encoding="utf-8", errors="replace") as f:
            reader = csv.reader(f)
            column = {name.strip(): i for i, name in enumerate(next(reader, []))}
            if not {"emotion", "pixels", "Usage"} <= column.keys():
                raise _Odd(f"the columns are {', '.join(column) or 'none'}, not emotion, pixels and Usage")
            for row in reader:
                if len(y) == most:
                    raise _Odd(f"more than {most:,} images")
                values = {name: row[i].strip() if i < len(row) else "" for name, i in column.items()}
                x.append(_pixels(values["pixels"]))
                y.append(_label(values["emotion"]))
                usage.append(_usage(values["Usage"]))
    except _Odd as error:
        raise UserError(f"{file}:{reader.line_num}: {error}; get it again: {_how_to_get(file.parent)}") from error
    except (csv.Error, OSError) as error:
        raise UserError(
            f"{file}: cannot be read ({type(error).__name__}: {error}); get it again: {_how_to_get(file.parent)}"
        ) from error
    return x, y, usage


class _Odd(Exception):
    """A row that is not as it should be; the text says how."""


def _pixels(text: str) -> bytes:
    fields = text.split()
    if len(fields) != _SIDE * _SIDE:
        raise _Odd(f"{len(fields):,} pixels, {_SIDE * _SIDE:,} expected: truncated?")
    digits = "".join(fields)
    try:
        if digits.isascii() and digits.isdigit():
            return bytes(map(int, fields))
    except ValueError as error:
        raise _Odd("a pixel above 255") from error
    raise _Odd("a pixel that is no whole number 0..255")


def _label(text: str) -> int:
    if text not in tuple("0123456"):
        raise _Odd(f"the label is '{text[:16]}', not 0..6")
    return int(text)


def _usage(text: str) -> str:
    if text not in (_TRAIN, *_TEST):
        raise _Odd(f"the usage is '{text[:16]}', not {_TRAIN}, {_TEST[0]} or {_TEST[1]}: truncated?")
    return text


def _how_to_get(folder: Path) -> str:
    (one, md5), (other, other_md5) = _FILES
    return (
        f"fer2013 cannot be downloaded freely: get {other} (or {one}, inside fer2013.tar.gz) from {Fer2013.home}/data with "
        f"your account, about 300 MB unpacked, and put it at {folder / other} (md5 {other_md5}) or {folder / one} (md5 {md5}); "
        "train.csv and test.csv are not enough, since the test images have no labels there"
    )
