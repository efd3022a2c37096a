"""FEMNIST: handwritten digits and letters, from LEAF's files (by writer) or from EMNIST's (no writers)."""

from __future__ import annotations

import gzip
import json
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedbench.core import Arrays, Remote, UserError, cached, check_labels, data_folder, fetch, file_lines
from fedbench.plugins.datasets.imageset import ImageSet

_SIDE = 28
_UINT8 = 8  # the idx format's code of the element type
_MOST_BYTES = 300_000_000  # of one of LEAF's files: 100 writers, about 0.15 GB; as lists it takes several times that
_MOST_IMAGES = 1_000_000  # of LEAF's train or test: 805,263 in all
_CHUNK = 10_000  # images
_DAMAGED = (OSError, EOFError, zlib.error, zipfile.BadZipFile, KeyError, NotImplementedError, RuntimeError)


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
    n_classes = 62
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
            "auto", description="whose files: LEAF's (json, brought by you), EMNIST's, or LEAF's where they are, else EMNIST's"
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
        return {"train_x": x, "train_y": y, "test_x": test_x, "test_y": test_y, **_moments(x)}

    def _from_emnist(self) -> Arrays:
        source = _emnist() if _unpacked() else fetch(self.remote, _emnist())
        files = [_emnist() / stem for stem in _stems()] if source == _emnist() else [source]
        lines = [f"{self.name} emnist", *file_lines(files, _emnist())]
        return cached(self.name, lines, lambda: self._read_emnist(source))

    def _read_emnist(self, source: Path) -> Arrays:
        (x, y), (test_x, test_y) = (self._part(source, part, n) for part, n in zip(("train", "test"), self.expected, strict=True))
        return {"train_x": x, "train_y": y, "test_x": test_x, "test_y": test_y, **_moments(x)}

    def _part(self, source: Path, part: str, n: int) -> tuple[np.ndarray, np.ndarray]:
        images, labels = _stems(part)
        x, y = read_part(source, images, (n, _SIDE, _SIDE)), read_part(source, labels, (n,)).astype(np.int64)
        check_labels(y, self.n_classes, f"{source} ({labels})")
        return upright(x)[:, None], y


def upright(x: np.ndarray) -> np.ndarray:
    """[n, side, side] with rows and columns of every image exchanged, in place: EMNIST stores them column by column."""
    for i in range(0, len(x), _CHUNK):
        x[i : i + _CHUNK] = x[i : i + _CHUNK].swapaxes(1, 2).copy()
    return x


def read_part(source: Path, stem: str, shape: tuple[int, ...]) -> np.ndarray:
    """The idx file ``stem`` of bytes of that very shape: in the folder ``source``, or gzipped in the archive ``source``.

    Read into one array, never more than it holds. Raises ``UserError`` for anything else.
    """
    header = bytes((0, 0, _UINT8, len(shape))) + np.array(shape, ">u4").tobytes()
    found = np.empty(shape, np.uint8)
    view, have = found.data.cast("B"), 0
    try:
        with _opened(source, stem) as f:
            alike = f.read(len(header)) == header
            while alike and have < len(view) and (got := f.readinto(view[have:])):  # type: ignore[attr-defined]
                have += got
            whole = alike and have == len(view) and not f.read(1)
    except _DAMAGED as error:
        raise UserError(f"{source}: {stem} cannot be read ({type(error).__name__}: {error}); delete it and run again") from error
    if not whole:
        raise UserError(f"{source}: {stem} is not the idx file of bytes {list(shape)} of EMNIST ByClass; delete it and run again")
    return found


@contextmanager
def _opened(source: Path, stem: str) -> Iterator[IO[bytes]]:
    if source.is_dir():
        with open(source / stem, "rb") as f:
            yield f
    else:
        with zipfile.ZipFile(source) as z, z.open(f"gzip/{stem}.gz") as packed, gzip.open(packed) as g:
            yield g  # type: ignore[misc]


def read_writers(files: list[Path], n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Images [n, 1, 28, 28] uint8, ink 255 on 0, and labels [n] of LEAF's json files, writer by writer.

    Each file: ``users`` (names), ``num_samples`` (optional), ``user_data`` (name -> ``x``: lists of 784 numbers 0..1, row by
    row, 1 = white, and ``y``: class numbers). Raises ``UserError`` naming file and writer.
    """
    x: list[np.ndarray] = []
    y: list[np.ndarray] = []
    room = _MOST_IMAGES
    for file in files:
        for where, data in _writers(file):
            pixels, labels = _samples(data, where)
            check_labels(labels, n_classes, where)
            room -= len(labels)
            if room < 0:
                raise UserError(f"{file}: more than {_MOST_IMAGES:,} images: not LEAF's FEMNIST")
            x.append(pixels)
            y.append(labels)
    if not x:
        raise UserError(f"{files[0].parent}: no writer in {len(files)} json files; prepare LEAF's data again")
    return np.concatenate(x), np.concatenate(y)


def _writers(file: Path) -> Iterator[tuple[str, Any]]:
    """(for messages: file and writer, the writer's data) of one file."""
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise ValueError(f"more than {_MOST_BYTES:,} bytes")
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file}: cannot be read ({type(error).__name__}: {error}); prepare it again") from error
    users, data = (content.get(key) if isinstance(content, dict) else None for key in ("users", "user_data"))
    if not isinstance(users, list) or not isinstance(data, dict) or sorted(map(str, users)) != sorted(data):
        raise UserError(f"{file}: not LEAF's format: 'users' must list the names in 'user_data', each once; prepare it again")
    counts = content.get("num_samples", [None] * len(users))
    if not isinstance(counts, list) or len(counts) != len(users):
        raise UserError(f"{file}: 'num_samples' must have one count per user; prepare it again")
    for user, count in zip(map(str, users), counts, strict=True):
        found = data[user]
        where = f"{file}: writer '{user[:40]}'"
        if not isinstance(found, dict) or not all(isinstance(found.get(key), list) for key in "xy"):
            raise UserError(f"{where}: no lists 'x' and 'y'; prepare it again")
        if len(found["x"]) != len(found["y"]) or count not in (None, len(found["y"])):
            raise UserError(f"{where}: {len(found['x'])} images, {len(found['y'])} labels, num_samples {count}; prepare it again")
        if found["y"]:
            yield where, found


def _samples(data: dict[str, list], where: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        x, y = np.asarray(data["x"]), np.asarray(data["y"])
    except ValueError as error:  # lists of unequal lengths
        raise UserError(f"{where}: {error}; prepare it again") from error
    if x.dtype.kind not in "iuf" or x.shape != (len(y), _SIDE * _SIDE) or not 0 <= x.min() <= x.max() <= 1:
        raise UserError(f"{where}: images must be {_SIDE * _SIDE} numbers 0..1 each; prepare it again")
    if y.dtype.kind not in "iu" or y.ndim != 1:
        raise UserError(f"{where}: labels must be whole numbers; prepare it again")
    return np.rint(255 * (1 - x)).astype(np.uint8).reshape(-1, 1, _SIDE, _SIDE), y.astype(np.int64)


def _moments(x: np.ndarray) -> Arrays:
    """``mean`` and ``std`` [1] of grey uint8 images in units of 0..1, to 4 decimals; by chunks, since there are many."""
    chunks = (x[i : i + _CHUNK] for i in range(0, len(x), _CHUNK))
    share, levels = sum(np.bincount(c.ravel(), minlength=256) for c in chunks) / x.size, np.arange(256) / 255
    mean = share @ levels
    return {"mean": np.array([mean]).round(4), "std": np.sqrt([share @ (levels - mean) ** 2]).clip(1 / 255).round(4)}


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
