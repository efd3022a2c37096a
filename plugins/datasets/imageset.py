"""What all image sets share: decoded once and cached, then split by seed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from fedbench.core import Data, Dataset, Params, UserError
from fedbench.core.toolkit import (
    Arrays,
    Labelled,
    Remote,
    cached,
    class_folders,
    data_folder,
    decode_images,
    fetch,
    file_lines,
    unpack,
)
from fedbench.plugins.datasets.sampling import drawn

# (mean, std) a channel, of pixels in 0..1.
Statistics = tuple[tuple[float, ...], tuple[float, ...]]
HALF: Statistics = ((0.5,) * 3, (0.5,) * 3)
_CHUNK = 10_000  # images
_FEWEST_STEPS = 1 / 255  # of the standard deviation: images of one colour stay finite


class ImageSet(Dataset):
    """uint8 images [n, C, H, W]; the hold-out is set aside from the official test set by seed,
    class by class.

    ``label_noise`` mislabels a share of train and hold-out, never of test. A subclass says where
    its images are: ``_arrays()`` with train_x, train_y, test_x, test_y, and ``_statistics()`` where
    they are published.
    """

    default_model = "cnn-small"
    name: ClassVar[str] = ""
    n_classes: ClassVar[int | None] = None  # None: as many as are found
    expected: ClassVar[tuple[int, int] | None] = None  # images to train on, to test on
    home: ClassVar[str] = ""
    size_mb: ClassVar[float | None] = None  # to download; None: not ours to say

    class Params(Params):
        train: int | None = Field(
            None,
            ge=1,
            description="training images, drawn by seed, each class keeping its share; null: all",
        )
        test: int | None = Field(
            None,
            ge=1,
            description="test images, clean labels; null: all that the hold-out leaves of the test "
            "set",
        )
        holdout: int = Field(
            2000,
            ge=1,
            description="outside non-members, set aside from the official test set, never trained "
            "on",
        )
        label_noise: float = Field(
            0.0,
            ge=0,
            le=1,
            description="share of mislabelled canaries in train and hold-out, as a fraction",
        )

    @classmethod
    def here(cls) -> str | bool:
        """Where the data lies on this machine, or False."""
        return next((str(p) for p in cls._places() if p.exists()), False)

    @classmethod
    def _places(cls) -> list[Path]:
        """Files or folders any of which is the whole data set."""
        return [data_folder() / cls.name]

    def _arrays(self) -> Arrays:
        """train_x [n, C, H, W] uint8, train_y [n] int64, and test_x, test_y unless there is no test
        set.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement _arrays()")

    def _statistics(self, arrays: Arrays) -> Statistics:
        """Mean and standard deviation of each channel: of the decoded training images, or 0.5 with
        ``normalise: half``.
        """
        if getattr(self.params, "normalise", "own") == "half":
            channels = arrays["train_x"].shape[1]
            return HALF[0][:channels], HALF[1][:channels]
        return tuple(arrays["mean"].tolist()), tuple(arrays["std"].tolist())

    def load(self, seed: int) -> Data:
        a = self._arrays()
        mean, std = self._statistics(a)
        return drawn(a, self.params, seed, self.name, mean=mean, std=std)


class ArchivedSet(ImageSet):
    """An image set that is downloaded as one archive and unpacked into one folder."""

    folder: ClassVar[str]
    remote: ClassVar[Remote]
    most_bytes: ClassVar[int]  # unpacked

    @classmethod
    def _places(cls) -> list[Path]:
        return [data_folder() / cls.folder, data_folder() / cls.remote.name]

    def _unpacked(self, hint: str = "") -> Path:
        """The folder, downloaded and unpacked if need be; ``hint``: said besides where it cannot be
        downloaded.
        """
        root = data_folder()
        if not (root / self.folder).exists():
            try:
                archive = fetch(self.remote, root)
            except UserError as error:
                raise UserError(*error.messages[:-1], error.messages[-1] + hint) from error
            unpack(archive, root, self.folder, self.most_bytes)
        return root / self.folder

    def _files(self, folder: Path, names: tuple[str, ...]) -> list[Path]:
        """Files of the folder. Raises ``UserError`` where one is missing."""
        absent = [name for name in names if not (folder / name).exists()]
        if absent:
            raise UserError(f"{folder / absent[0]} is missing: {self._again(folder)}")
        return [folder / name for name in names]

    def _again(self, folder: Path) -> str:
        return f"delete {folder} and run again, or {self.remote.how_to_get(folder.parent)}"


def folder_arrays(who: type[ImageSet], folders: Sequence[Path], **decoding: Any) -> Arrays:
    """Arrays of one or two class-folder trees (train, test), decoded once. The test tree's classes
    are those of train.

    Raises ``UserError`` for a wrong class or image count, a training class with a single image, and
    unreadable files.
    """
    trees = [class_folders(folders[0], at_least=2)]
    if who.n_classes is not None and len(trees[0].names) != who.n_classes:
        raise UserError(
            f"{folders[0]}: {len(trees[0].names)} class folders, {who.name} has {who.n_classes}; "
            "unpack it again, or use "
            "the data set 'image-folder'"
        )
    trees += [_test_tree(f, trees[0].names) for f in folders[1:]]
    if who.expected is not None:
        check_counts(who, str(folders[0].parent), *(len(t.files) for t in trees))
    return decoded(who.name, trees, folders[0].parent, **decoding)


def decoded(name: str, trees: Sequence[Labelled], root: Path, **decoding: Any) -> Arrays:
    """Arrays of one tree or two (train, test) below ``root``, decoded once and alike; statistics of
    the first.
    """
    import PIL

    files = [f for tree in trees for f in tree.files]
    # they may lie in a file of their own, not in the images' paths
    labels = [str(tree.y.tolist()) for tree in trees]
    source = [
        name,
        f"pillow {PIL.__version__}",
        repr(sorted(decoding.items())),
        *labels,
        *file_lines(files, root),
    ]
    return cached(name, source, lambda: _decoded(trees, files, **decoding))


def _decoded(trees: Sequence[Labelled], files: list[str], **decoding: Any) -> Arrays:
    x = decode_images(files, **decoding)
    cut = len(trees[0].files)
    arrays = {"train_x": x[:cut], "train_y": trees[0].y, **moments(x[:cut])}
    return arrays if len(trees) == 1 else {**arrays, "test_x": x[cut:], "test_y": trees[1].y}


def moments(x: np.ndarray) -> Arrays:
    """``mean`` and ``std`` [C] of uint8 images in units of 0..1, to 4 decimals, from exact
    histograms.
    """
    levels, counts = np.arange(256) / 255, np.zeros((x.shape[1], 256), np.int64)
    for start in range(0, len(x), _CHUNK):  # counting takes eight times the images' memory
        for c, count in enumerate(counts):
            count += np.bincount(x[start : start + _CHUNK, c].ravel(), minlength=256)
    shares = counts / counts.sum(axis=1, keepdims=True)
    mean = np.array([share @ levels for share in shares])
    std = np.sqrt([share @ (levels - m) ** 2 for share, m in zip(shares, mean, strict=True)])
    return {"mean": mean.round(4), "std": np.maximum(std, _FEWEST_STEPS).round(4)}


def check_counts(who: type[ImageSet], where: str, *found: int) -> None:
    """Raises ``UserError`` when the official numbers of training and test images are not there."""
    if who.expected is not None and tuple(found) != who.expected:
        have, want = (" + ".join(f"{n:,}" for n in counts) for counts in (found, who.expected))
        raise UserError(
            f"{where}: {have} images (train + test), {who.name} has {want}: fewer or more than the "
            "official set; delete it "
            "and get it again, or use the data set 'image-folder' for a part of it (train: N draws "
            "N by seed)"
        )


def _test_tree(folder: Path, names: list[str]) -> Labelled:
    """A test folder may lack a class of train, but not add one."""
    tree = class_folders(folder)
    unknown = sorted(set(tree.names) - set(names))
    if unknown:
        raise UserError(
            f"{folder / unknown[0]}: a class that the training folder does not have; add it there "
            "or remove it here"
        )
    position = np.array([names.index(n) for n in tree.names])
    return Labelled(tree.files, position[tree.y], names)
