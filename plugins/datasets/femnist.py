"""FEMNIST: handwritten digits and letters, from LEAF's files (by writer) or from EMNIST's (no writers)."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedbench.core import UserError
from fedbench.core.toolkit import Arrays, Remote, cached, check_labels, check_size, data_folder, fetch, file_lines
from fedbench.plugins.datasets.imageset import ImageSet, check_counts, moments
from fedbench.plugins.datasets.mnist import idx_array

_SIDE = 28
_MOST_BYTES = 300_000_000  # of one of LEAF's files: 100 writers, about 0.15 GB; as lists it takes several times that
_MOST_IDX_BYTES = 600_000_000  # of one of EMNIST's files; the largest has 547 MB


class Femnist(ImageSet):
    """About 800,000 handwritten digits and letters, 28x28 grey, 62 classes: 0-9, A-Z, a-z; ink 255 on 0, upright.

    Two forms; the list of data sets says which is here, the records' data digest which was used.
    ``leaf`` (writers: yes): LEAF's FEMNIST, one json entry a writer, in ``femnist/data/{train,test}/*.json`` as LEAF's
    script leaves them; brought by you, preferred where it is. Its pixels are dark on white (1 - ink): inverted here, so that
    background is 0 in both forms and fills a deformed image. Prepare it with ``-t sample``: with ``-t user`` the hold-out is
    by other writers than the training images, which alone tells members from non-members.
    ``emnist`` (writers: no): EMNIST ByClass, the same characters of NIST's, but blurred and scaled to fill the frame, 697,932
    + 116,323, downloaded into ``EMNIST/raw``, where torchvision keeps it too. Its files hold each image with rows and columns
    exchanged: undone here. They do not say whether a writer is in both of its parts.

    In either form clients are made by the setting's partition: who wrote an image is not passed on, so there is no
    partition by writer.
    """

    name = "femnist"
    default_model = "leaf-cnn"
    n_classes: ClassVar[int] = 62
    expected = (697_932, 116_323)  # of EMNIST ByClass
    size_mb = 561.8
    home = "https://www.nist.gov/itl/products-and-services/emnist-dataset"
    licence = "none stated for EMNIST, from NIST Special Database 19; LEAF's scripts BSD 2-Clause"
    citation = "S. Caldas et al.: LEAF: a benchmark for federated settings. arXiv:1812.01097, 2018; G. Cohen, S. Afshar, " \
        "J. Tapson, A. van Schaik: EMNIST: extending MNIST to handwritten letters. IJCNN, 2017"  # fmt: skip
    remote: ClassVar[Remote] = Remote(
        "gzip.zip", ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
        "md5:58c8d27c78d21e728a6bc7b3cc06412e", 561_753_746,
    )  # fmt: skip

    class Params(ImageSet.Params):
        form: Literal["auto", "leaf", "emnist"] = Field(
            "auto", description="which files: LEAF's (json, brought by you), EMNIST's, or LEAF's where they are, else EMNIST's"
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
                f"femnist: no json file in {_leaf() / absent[0]}: run 'preprocess.sh -s niid --sf 1.0 -k 0 -t sample' in "
                f"data/femnist of LEAF (https://github.com/TalwalkarLab/leaf) and put its data/train and data/test into "
                f"{_leaf()}; or take EMNIST's images with form: emnist"
            )
        source = [f"{self.name} leaf", *file_lines([f for part in files.values() for f in part], _leaf())]
        return cached(self.name, source, lambda: self._read_leaf(files["train"], files["test"]))

    def _read_leaf(self, train: list[Path], test: list[Path]) -> Arrays:
        (x, y), (test_x, test_y) = (read_writers(files, self.n_classes) for files in (train, test))
        absent = np.flatnonzero(np.bincount(y, minlength=self.n_classes) == 0)
        if len(absent):
            raise UserError(
                f"{train[0].parent}: {len(y):,} images, none of class {absent[0]} of 0..{self.n_classes - 1}: prepare a larger "
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
        x, y = (idx_array(lambda s=stem: _opened(source, s), f"{source} ({stem})", _MOST_IDX_BYTES) for stem in (images, labels))
        if x.shape[1:] != (_SIDE, _SIDE) or y.shape != x.shape[:1]:
            raise UserError(f"{source}: {images} holds {list(x.shape)}, {labels} {list(y.shape)}: delete them and run again")
        check_labels(y.astype(np.int64), self.n_classes, f"{source} ({labels})")
        return np.ascontiguousarray(x.swapaxes(1, 2))[:, None], y.astype(np.int64)


def _opened(source: Path, stem: str) -> Any:
    """The idx file ``stem`` in the folder ``source``, or gzipped in the archive ``source``."""
    if source.is_dir():
        return open(source / stem, "rb")
    return gzip.open(zipfile.ZipFile(source).open(f"gzip/{stem}.gz"))


def read_writers(files: list[Path], n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Images [n, 1, 28, 28] uint8, ink 255 on 0, and labels [n] of LEAF's json files, writer by writer.

    Each file: ``users`` (names), ``num_samples`` (optional), ``user_data`` (name -> ``x``: lists of 784 numbers 0..1, row by
    row, 1 = white, and ``y``: class numbers). Raises ``UserError`` naming file and writer.
    """
    found = [_samples(data, where, count, n_classes) for file in files for where, data, count in _writers(file)]
    if not found:
        raise UserError(f"{files[0].parent}: no writer in {len(files)} json files; prepare LEAF's data again")
    x, y = (np.concatenate(part) for part in zip(*found, strict=True))
    return x, y


def _writers(file: Path) -> Iterator[tuple[str, Any, int | None]]:
    """(for messages: file and writer, the writer's data, how many images it is said to have) of one file."""
    check_size(file, _MOST_BYTES)
    try:
        content = json.loads(file.read_bytes())
        counts = content.get("num_samples") or [None] * len(content["users"])
        every = [(user, content["user_data"][user], count) for user, count in zip(content["users"], counts, strict=True)]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{file}: not LEAF's format ({type(error).__name__}: {error}); prepare it again") from error
    for user, data, count in every:
        yield f"{file}: writer '{str(user)[:40]}'", data, count


def _samples(data: Any, where: str, count: int | None, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    try:
        x, y = np.asarray(data["x"], np.float64), np.asarray(data["y"], np.int64)
    except (ValueError, LookupError, TypeError, OverflowError) as error:
        raise UserError(f"{where}: no lists of numbers 'x' and 'y' ({error}); prepare it again") from error
    if len(x) != len(y) or count not in (None, len(y)):
        raise UserError(f"{where}: {len(x)} images, {len(y)} labels, num_samples {count}; prepare it again")
    x = x.reshape(len(y), -1)
    if (x.shape[1] != _SIDE * _SIDE and len(y)) or not ((x >= 0) & (x <= 1)).all():
        raise UserError(f"{where}: images must be {_SIDE * _SIDE} numbers 0..1 each; prepare it again")
    check_labels(y, n_classes, where)
    return np.rint(255 * (1 - x)).astype(np.uint8).reshape(-1, 1, _SIDE, _SIDE), y


def _leaf() -> Path:
    return data_folder() / Femnist.name / "data"


def _emnist() -> Path:
    return data_folder() / "EMNIST" / "raw"


def _stems(*parts: str) -> list[str]:
    """Names of the unpacked files: images and labels of train, then of test."""
    kinds = ("images-idx3", "labels-idx1")
    return [f"emnist-byclass-{part}-{kind}-ubyte" for part in parts or ("train", "test") for kind in kinds]


def _unpacked() -> bool:
    return all((_emnist() / stem).exists() for stem in _stems())
