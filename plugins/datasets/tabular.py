"""Texas100, Purchase100 and Location30: binary records, read once and cached as bits, split by
seed.
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar

import numpy as np

from fedbench.core import Data, Dataset, UserError
from fedbench.core.toolkit import (
    Arrays,
    Remote,
    archive_files,
    cached,
    data_folder,
    fetch,
    file_lines,
)
from fedbench.plugins.datasets.sampling import Resplit, drawn

HOME = "https://github.com/privacytrustlab/datasets"
MOST_BYTES = 100_000_000  # of an archive: its home, GitHub, takes no larger file
_MOST_FILES = 1_000  # in an archive; the sets have one or two
_DAMAGED = (tarfile.TarError, EOFError, zlib.error, OSError, RuntimeError, ValueError)
_LABEL_BYTES = 16
_MOST_FIELD_BYTES = 8  # of a feature with its comma
_BIT = {b"0": 0, b"1": 1, b"0.0": 0, b"1.0": 1}


@dataclass(frozen=True)
class Shape:
    """What a whole file holds: ``rows`` of ``features`` values 0 or 1, and labels 1..``classes``."""

    rows: int
    features: int
    classes: int


def most_bytes(shape: Shape) -> int:
    """Of all files of a set together, with every line as long as it may be."""
    return shape.rows * (_LABEL_BYTES + _MOST_FIELD_BYTES * shape.features)


class TabularSet(Dataset):
    """Records of binary features, [n, features] float32 0 or 1; all of them split by seed, by
    default 50/25/25.

    The paper trains on half of each set. Its home publishes no checksum of the archive, so none is
    verified; instead every line of the content is: number of lines and features, values 0 or 1,
    labels, no class without a record. Looked for in the data folder and in its folder ``name``: the
    files ``files`` as the archive holds them, then the archive (read where it is, not unpacked);
    else downloaded. ``files``: features and labels, or both in one.
    """

    default_model = "mlp-512-128"
    home = HOME
    name: ClassVar[str]
    n_classes: ClassVar[int]
    shape: ClassVar[Shape]
    remote: ClassVar[Remote]
    files: ClassVar[tuple[str, ...]]

    Params = Resplit

    @classmethod
    def here(cls) -> str | bool:
        """Where the data lies on this machine, or False."""
        return next(
            (str(folder / part) for folder, part in cls._places() if (folder / part).exists()),
            False,
        )

    @classmethod
    def _places(cls) -> Iterator[tuple[Path, str]]:
        for part in (cls.files[0], cls.remote.name):
            yield data_folder() / cls.name, part
            yield data_folder(), part

    def load(self, seed: int) -> Data:
        a = self._arrays()
        return drawn(
            {"train_x": a["bits"], "train_y": a["y"]},
            self.params,
            seed,
            self.name,
            "records",
            self._floats,
        )

    def _floats(self, bits: np.ndarray) -> np.ndarray:
        return np.unpackbits(bits, axis=1, count=self.shape.features).astype(np.float32)

    def _arrays(self) -> Arrays:
        """``bits`` [n, ceil(features / 8)] uint8 and ``y`` [n] int64, read once. Raises
        ``UserError``.
        """
        root = data_folder()
        folder, part = next(
            ((f, p) for f, p in self._places() if (f / p).exists()), (root, self.remote.name)
        )
        if part == self.remote.name:
            archive = fetch(self.remote, folder)
            return cached(
                self.name,
                [self.name, *file_lines([archive], folder)],
                lambda: self._from_archive(archive),
            )
        files = [folder / f for f in self.files]
        absent = [f for f in files if not f.exists()]
        if absent:
            raise UserError(
                f"{absent[0]} is missing beside {files[0]}: put it there, or "
                f"{self.remote.how_to_get(root)}"
            )
        return cached(
            self.name, [self.name, *file_lines(files, folder)], lambda: self._from_files(files)
        )

    def _from_files(self, files: list[Path]) -> Arrays:
        arrays: Arrays = {}
        for part, file in zip(self.files, files, strict=True):
            try:
                with open(file, "rb") as content:
                    arrays |= self._read(part, content, str(file))
            except OSError as error:
                raise UserError(f"{file}: cannot be read ({error.strerror or error})") from error
        return self._complete(arrays, str(files[0]))

    def _from_archive(self, archive: Path) -> Arrays:
        arrays: Arrays = {}
        try:
            for part, content in self._members(archive):
                arrays |= self._read(part, content, f"{archive}({part})")
        except _DAMAGED as error:
            raise UserError(
                f"{archive}: a damaged archive ({type(error).__name__}: {error}); delete it and "
                "run again, or "
                f"{self.remote.how_to_get(archive.parent)}"
            ) from error
        return self._complete(arrays, str(archive))

    def _members(self, archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
        """The wanted files of the archive in its order, each once, without unpacking anything else."""
        missing = set(self.files)
        for path, content in archive_files(archive, most_bytes(self.shape), _MOST_FILES):
            if (part := path.as_posix()) in missing:
                yield part, content
                missing.remove(part)
            if not missing:
                return
        raise UserError(
            f"{archive}: holds no {', '.join(sorted(missing))}: not {self.name}; "
            f"{self.remote.how_to_get(archive.parent)}"
        )

    def _read(self, part: str, content: IO[bytes], where: str) -> Arrays:
        together, first = len(self.files) == 1, part == self.files[0]
        return read_records(
            content, where, self.shape, labels=together or not first, features=first
        )

    def _complete(self, arrays: Arrays, where: str) -> Arrays:
        absent = np.flatnonzero(np.bincount(arrays["y"], minlength=self.n_classes) == 0)
        if len(absent):
            raise UserError(
                f"{where}: no record of class {absent[0] + 1} of 1..{self.n_classes}: not "
                f"{self.name}; delete it"
            )
        return arrays


def read_records(file: IO[bytes], where: str, shape: Shape, labels: bool, features: bool) -> Arrays:
    """``y`` [rows] int64, 0 to C-1, of ``labels`` 1..C, and ``bits`` [rows, ceil(features / 8)]
    uint8, packed, of ``features``.

    One line a record: the label, in quotes or not, the features 0 or 1, or both, comma-separated.
    ``where`` names the file. Raises ``UserError`` naming file and line for anything else, and for
    another number of lines.
    """
    y, bits = (
        np.empty(shape.rows, np.int64),
        np.empty((shape.rows, -(-shape.features // 8)), np.uint8),
    )
    limit = _LABEL_BYTES + _MOST_FIELD_BYTES * shape.features
    for row in range(shape.rows):
        line, at = file.readline(limit + 1), f"{where}:{row + 1}"
        if not line:
            raise UserError(
                f"{where}:{row}: the file ends here, {shape.rows:,} lines expected; delete it and "
                "run again"
            )
        if len(line) > limit:
            raise UserError(
                f"{at}: more than {limit:,} bytes in a line: not this data set; delete it and run "
                "again"
            )
        label, _, rest = line.partition(b",") if labels and features else (line, b"", line)
        if labels:
            y[row] = _label(label.strip().strip(b'"'), at, shape.classes)
        if features:
            bits[row] = np.packbits(_bits(rest.strip(), at, shape.features))
    if file.read(1):
        raise UserError(
            f"{where}: more than the {shape.rows:,} lines expected; delete it and run again"
        )
    return ({"y": y} if labels else {}) | ({"bits": bits} if features else {})


def _bits(text: bytes, where: str, features: int) -> np.ndarray:
    """[features] uint8 of "0,1,1": at once where every value is one digit, else value by value."""
    raw = np.frombuffer(text, np.uint8)
    values = raw[::2] - ord("0")
    if len(raw) == 2 * features - 1 and (values <= 1).all() and (raw[1::2] == ord(",")).all():
        return values
    bits = [_BIT.get(field.strip()) for field in text.split(b",")]
    if len(bits) != features:
        raise UserError(
            f"{where}: {len(bits):,} features, {features:,} expected; delete the file and run again"
        )
    if None in bits:
        raise UserError(
            f"{where}: feature {bits.index(None) + 1} is neither 0 nor 1; fix the file, or delete "
            "it and run again"
        )
    return np.array(bits, np.uint8)


def _label(text: bytes, where: str, classes: int) -> int:
    if not text.isdigit() or not 1 <= int(text) <= classes:
        found = text[:_LABEL_BYTES].decode(errors="replace")
        raise UserError(
            f"{where}: the label is '{found}', not 1..{classes}; fix the file, or delete it and "
            "run again"
        )
    return int(text) - 1


def remote(file: str, size: int, *mirrors: str) -> Remote:
    """An archive at the sets' home, of at most ``size`` bytes; no checksum of it is published."""
    return Remote(file, (f"{HOME}/raw/master/{file}", *mirrors), None, size)


class Texas100(TabularSet):
    """67,330 hospital stays, 6,169 binary features, the 100 most frequent procedures as classes;
    half of them to train on.

    Shokri et al., IEEE S&P 2017, from the Texas hospital discharge data. FedPoisonMIA (Appendix B)
    writes 6,170 features; the published file has 6,169, and so has the paper's code. No published
    checksum: the content is verified. Read from ``texas/100/feats`` and ``texas/100/labels``, or
    from ``dataset_texas.tgz`` (downloaded). Float32 features of the default splits take 1.7 GB of
    memory; ``train``, ``test`` and ``holdout`` take fewer.
    """

    name = "texas100"
    n_classes = 100
    shape = Shape(67_330, 6_169, 100)
    files = ("texas/100/feats", "texas/100/labels")
    remote = remote(
        "dataset_texas.tgz", MOST_BYTES, "https://www.comp.nus.edu.sg/~reza/files/dataset_texas.tgz"
    )
    size_mb = 100.0  # at most; the exact size is not published
    licence = "Texas DSHS's terms for its public use data file; none stated with the derived set"
    citation = (
        "R. Shokri, M. Stronati, C. Song, V. Shmatikov: Membership inference attacks against "
        "machine learning "
        "models. IEEE S&P, 2017; Texas DSHS: hospital discharge data public use data file"
    )


class Purchase100(TabularSet):
    """197,324 customers, 600 binary features (a product bought or not), 100 clusters as classes;
    half to train on.

    Shokri et al., IEEE S&P 2017, from Kaggle's "Acquire Valued Shoppers" challenge. No published
    checksum: the content is verified. Read from ``dataset_purchase``, or from
    ``dataset_purchase.tgz`` (downloaded).
    """

    name = "purchase100"
    n_classes = 100
    shape = Shape(197_324, 600, 100)
    files = ("dataset_purchase",)
    remote = remote(
        "dataset_purchase.tgz",
        MOST_BYTES,
        "https://www.comp.nus.edu.sg/~reza/files/dataset_purchase.tgz",
    )
    size_mb = 100.0  # at most; the exact size is not published
    licence = "the rules of Kaggle's challenge; none stated with the derived set"
    citation = (
        "R. Shokri, M. Stronati, C. Song, V. Shmatikov: Membership inference attacks against "
        "machine learning "
        "models. IEEE S&P, 2017; Kaggle: Acquire valued shoppers challenge, 2014"
    )


class Location30(TabularSet):
    """5,010 people, 446 binary features (a region or kind of place visited or not), 30 clusters as
    classes; half to train on.

    Shokri et al., IEEE S&P 2017, from Foursquare check-ins in Bangkok. No published checksum: the
    content is verified. Read from ``bangkok`` or ``location30/bangkok``, or from
    ``dataset_location.tgz`` (downloaded).
    """

    name = "location30"
    n_classes = 30
    shape = Shape(5_010, 446, 30)
    files = ("bangkok",)
    remote = remote("dataset_location.tgz", 5_000_000)  # more than the 4,492,469 bytes it holds
    size_mb = 0.3
    licence = "none stated; the authors ask to be cited"
    citation = (
        "R. Shokri, M. Stronati, C. Song, V. Shmatikov: Membership inference attacks against "
        "machine learning "
        "models. IEEE S&P, 2017; D. Yang, D. Zhang, B. Qu: Participatory cultural mapping based on "
        "collective behavior "
        "data in location-based social networks. ACM TIST, 2016"
    )
