"""Texas100, Purchase100 and Location30: binary records, read once and cached as bits, split by
seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, ClassVar

import numpy as np

from fedbench.core import Data, Dataset, UserError
from fedbench.core.toolkit import Arrays, Remote, archive_files, data_folder, fetch
from fedbench.plugins.datasets.reading import parsing, read_once
from fedbench.plugins.datasets.sampling import Resplit, draw_data

HOME = "https://github.com/privacytrustlab/datasets"
MOST_BYTES = 100_000_000  # of an archive: its home, GitHub, takes no larger file
_MOST_FILES = 1_000  # in an archive; the sets have one or two
_LABEL_BYTES = 16
_MOST_FIELD_BYTES = 8  # of a feature with its comma


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
    rows: ClassVar[int]
    features: ClassVar[int]
    remote: ClassVar[Remote]
    files: ClassVar[tuple[str, ...]]

    Params = Resplit

    @classmethod
    def here(cls) -> str | bool:
        """Return where the data lie on this machine, or False."""
        places = (folder / part for folder, part in cls._places())
        return next((str(place) for place in places if place.exists()), False)

    @classmethod
    def _places(cls) -> Iterator[tuple[Path, str]]:
        for part in (cls.files[0], cls.remote.name):
            yield data_folder() / cls.name, part
            yield data_folder(), part

    def load(self, seed: int) -> Data:
        return draw_data(self, self._arrays(), seed, self._floats)

    def _floats(self, bits: np.ndarray) -> np.ndarray:
        return np.unpackbits(bits, axis=1, count=self.features).astype(np.float32)

    def _arrays(self) -> Arrays:
        """Return train_x [n, ceil(features / 8)] uint8, packed, and train_y [n] int64."""
        root, name = data_folder(), f"{self.name}-bits"
        folder, part = next(
            ((folder, part) for folder, part in self._places() if (folder / part).exists()),
            (root, self.remote.name),
        )
        if part == self.remote.name:
            return read_once(name, [fetch(self.remote, folder)], root, self._from_archive)
        files = [folder / file for file in self.files]
        remedy = f"put it there, or {self.remote.how_to_get(root)}"
        return read_once(name, files, root, self._from_files, remedy)

    def _from_files(self, files: Sequence[Path]) -> Arrays:
        arrays: Arrays = {}
        for part, file in zip(self.files, files, strict=True):
            with open(file, "rb") as content:
                arrays |= self._read(part, content, str(file))
        return arrays

    def _from_archive(self, files: Sequence[Path]) -> Arrays:
        """Parse the wanted files of an archive, without unpacking anything else."""
        (archive,) = files
        arrays: Arrays = {}
        most_bytes = self.rows * (_LABEL_BYTES + _MOST_FIELD_BYTES * self.features)
        with parsing(archive):
            for path, content in archive_files(archive, most_bytes, _MOST_FILES):
                if path.as_posix() in self.files:
                    arrays |= self._read(path.as_posix(), content, f"{archive}({path})")
                if len(arrays) == 2:
                    return arrays
        raise UserError(
            f"{archive}: lacks one of {', '.join(self.files)}: not {self.name}; "
            f"{self.remote.how_to_get(archive.parent)}"
        )

    def _read(self, part: str, content: IO[bytes], place: str) -> Arrays:
        """Parse one of ``files``.

        Returns:
            train_y, 0 to C-1, where a line begins with a label 1..C, in quotes or not; train_x,
            packed, where it has features 0 or 1.
        """
        arrays: Arrays = {}
        features = self.features if part == self.files[0] else 0
        labels = int(features == 0 or len(self.files) == 1)
        if labels:
            arrays["train_y"] = np.empty(self.rows, np.int64)
        if features:
            arrays["train_x"] = np.empty((self.rows, -(-features // 8)), np.uint8)
        for row, values in enumerate(self._records(content, place, labels, features)):
            if labels:
                arrays["train_y"][row] = values[0] - 1
            if features:
                arrays["train_x"][row] = np.packbits(values[labels:] == 1)
        return arrays

    def _records(
        self, content: IO[bytes], place: str, labels: int, features: int
    ) -> Iterator[np.ndarray]:
        """Yield the numbers of each line, comma-separated: a label or none, and features.

        Raises:
            UserError: with the file and line of anything else, and for another number of lines.
        """
        for row in range(self.rows):
            line = content.readline().replace(b'"', b"")
            with parsing(f"{place}:{row + 1}"):
                values = np.fromstring(line, np.float32, sep=",")
                _check_record(values, labels, features, self.n_classes)
            yield values
        if content.read(1):
            raise UserError(f"{place}: more than {self.rows:,} lines; delete it and run again")


def _check_record(values: np.ndarray, labels: int, features: int, n_classes: int) -> None:
    """Raise ``ValueError`` unless the values are a label or none, and features."""
    if len(values) != labels + features:
        raise ValueError(f"{len(values):,} values, {labels + features:,} expected")
    label, record = values[:labels], values[labels:]
    if not np.isin(label, np.arange(1, n_classes + 1)).all():
        raise ValueError(f"the label is {label[0]:g}, not 1..{n_classes}")
    if not ((record == 0) | (record == 1)).all():
        raise ValueError("a feature is neither 0 nor 1")


def remote(file: str, size: int, *mirrors: str) -> Remote:
    """Describe an archive at the sets' home, of at most ``size`` bytes, without a checksum."""
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
    rows = 67_330
    features = 6_169
    files = ("texas/100/feats", "texas/100/labels")
    remote = remote(
        "dataset_texas.tgz", MOST_BYTES, "https://www.comp.nus.edu.sg/~reza/files/dataset_texas.tgz"
    )
    size_mb = 100.0  # at most; the exact size is not published
    licence = "Texas DSHS's terms for its public use data file; none stated with the derived set"
    citation = (
        "R. Shokri, M. Stronati, C. Song, V. Shmatikov: Membership inference attacks against "
        "machine learning models. IEEE S&P, 2017; Texas DSHS: hospital discharge data public use "
        "data file"
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
    rows = 197_324
    features = 600
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
        "machine learning models. IEEE S&P, 2017; Kaggle: Acquire valued shoppers challenge, 2014"
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
    rows = 5_010
    features = 446
    files = ("bangkok",)
    remote = remote("dataset_location.tgz", 5_000_000)  # more than the 4,492,469 bytes it holds
    size_mb = 0.3
    licence = "none stated; the authors ask to be cited"
    citation = (
        "R. Shokri, M. Stronati, C. Song, V. Shmatikov: Membership inference attacks against "
        "machine learning models. IEEE S&P, 2017; D. Yang, D. Zhang, B. Qu: Participatory cultural "
        "mapping based on collective behavior data in location-based social networks. ACM TIST, "
        "2016"
    )
