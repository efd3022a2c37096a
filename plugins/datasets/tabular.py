"""What the data sets of binary records share: downloaded or local, read once and cached as bits, split by seed."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, ClassVar

import numpy as np

from fedbench.core import Arrays, Data, Dataset, Remote, UserError, archive_files, cached, data_folder, fetch, file_lines
from fedbench.plugins.datasets.canaries import mislabel
from fedbench.plugins.datasets.records import Shape, most_bytes, read_features, read_labelled, read_labels
from fedbench.plugins.datasets.resplit import Resplit
from fedbench.plugins.datasets.splits import Wanted, rng_for, split

HOME = "https://github.com/privacytrustlab/datasets"
MOST_BYTES = 100_000_000  # of an archive: its home, GitHub, takes no larger file
_MOST_FILES = 1_000  # in an archive; the sets have one or two
_DAMAGED = (tarfile.TarError, EOFError, zlib.error, OSError, RuntimeError, ValueError)


class TabularSet(Dataset):
    """Records of binary features, [n, features] float32 0 or 1; all of them split by seed, by default 50/25/25.

    The paper trains on half of each set. Its home publishes no checksum of the archive, so none is verified; instead
    every line of the content is: number of lines and features, values 0 or 1, labels, no class without a record.
    Looked for in the data folder and in its folder ``name``: the files ``files`` as the archive holds them, then the
    archive (read where it is, not unpacked); else downloaded. ``files``: features and labels, or both in one.
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
        return next((str(folder / part) for folder, part in cls._places() if (folder / part).exists()), False)

    @classmethod
    def _places(cls) -> Iterator[tuple[Path, str]]:
        for part in (cls.files[0], cls.remote.name):
            yield data_folder() / cls.name, part
            yield data_folder(), part

    def load(self, seed: int) -> Data:
        a, p = self._arrays(), self.params
        found = split(a["y"], None, Wanted(p.train, p.test, p.holdout), seed, self.name, "records")
        assert found.train is not None  # a part of the pool, since test and hold-out are not empty
        x = [self._floats(a["bits"][part]) for part in (found.train, found.test, found.holdout)]
        (train_y, train_canary), (hold_y, hold_canary) = (
            mislabel(a["y"][part], p.label_noise, self.n_classes, rng_for(seed, f"noise-{key}"))
            for key, part in (("t", found.train), ("h", found.holdout))
        )
        return Data(
            train_x=x[0],
            train_y=train_y,
            test_x=x[1],
            test_y=a["y"][found.test],
            holdout_x=x[2],
            holdout_y=hold_y,
            n_classes=self.n_classes,
            train_canary=train_canary,
            holdout_canary=hold_canary,
        )

    def _floats(self, bits: np.ndarray) -> np.ndarray:
        return np.unpackbits(bits, axis=1, count=self.shape.features).astype(np.float32)

    def _arrays(self) -> Arrays:
        """``bits`` [n, ceil(features / 8)] uint8 and ``y`` [n] int64, read once. Raises ``UserError``."""
        root = data_folder()
        folder, part = next(((f, p) for f, p in self._places() if (f / p).exists()), (root, self.remote.name))
        if part == self.remote.name:
            archive = fetch(self.remote, folder)
            return cached(self.name, [self.name, *file_lines([archive], folder)], lambda: self._from_archive(archive))
        files = [folder / f for f in self.files]
        absent = [f for f in files if not f.exists()]
        if absent:
            raise UserError(f"{absent[0]} is missing beside {files[0]}: put it there, or {self.remote.how_to_get(root)}")
        return cached(self.name, [self.name, *file_lines(files, folder)], lambda: self._from_files(files))

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
                f"{archive}: a damaged archive ({type(error).__name__}: {error}); delete it and run again, or "
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
            f"{archive}: holds no {', '.join(sorted(missing))}: not {self.name}; {self.remote.how_to_get(archive.parent)}"
        )

    def _read(self, part: str, content: IO[bytes], where: str) -> Arrays:
        if len(self.files) == 1:
            bits, y = read_labelled(content, where, self.shape)
            return {"bits": bits, "y": y}
        if part == self.files[0]:
            return {"bits": read_features(content, where, self.shape)}
        return {"y": read_labels(content, where, self.shape)}

    def _complete(self, arrays: Arrays, where: str) -> Arrays:
        absent = np.flatnonzero(np.bincount(arrays["y"], minlength=self.n_classes) == 0)
        if len(absent):
            raise UserError(f"{where}: no record of class {absent[0] + 1} of 1..{self.n_classes}: not {self.name}; delete it")
        return arrays


def remote(file: str, size: int, *mirrors: str) -> Remote:
    """An archive at the sets' home, of at most ``size`` bytes; no checksum of it is published."""
    return Remote(file, (f"{HOME}/raw/master/{file}", *mirrors), None, size)
