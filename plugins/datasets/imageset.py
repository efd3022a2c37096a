"""The base of image sets: decoded once and cached, then split by seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from fedbench.core import Data, Dataset, UserError
from fedbench.core.toolkit import (
    Arrays,
    Labelled,
    Remote,
    check_labels,
    class_folders,
    data_folder,
    decode_images,
    fetch,
    unpack,
)
from fedbench.plugins.datasets.reading import AGAIN, read_once
from fedbench.plugins.datasets.sampling import Drawn, Part, draw_data

# (mean, std) a channel, of pixels in 0..1.
Statistics = tuple[tuple[float, ...], tuple[float, ...]]


class ImageSet(Dataset):
    """uint8 images [n, C, H, W]; the hold-out is set aside from the official test set by seed,
    class by class.

    ``label_noise`` mislabels a share of train and hold-out, never of test. A subclass reads its
    files in ``_arrays``.
    """

    default_model = "cnn-small"
    name: ClassVar[str] = ""
    n_classes: ClassVar[int | None] = None  # None: as many as there are labels
    expected: ClassVar[tuple[int, int] | None] = None  # images to train on, to test on
    published: ClassVar[dict[str, Statistics]] = {}  # by the value of ``normalise``

    class Params(Drawn):
        test: int | None = Field(
            None,
            ge=1,
            description="test images, clean labels; null: all that the hold-out leaves of the test "
            "set",
        )
        holdout: int = Field(
            2000,
            ge=1,
            description="outside non-members, set aside from the official test set (where that has "
            "too few, also from what train leaves), never trained on",
        )

    @classmethod
    def here(cls) -> str | bool:
        """Return where the data lie on this machine, or False."""
        return next((str(place) for place in cls._places() if place.exists()), False)

    @classmethod
    def _places(cls) -> list[Path]:
        """Return files or folders any of which is the whole data set."""
        return [data_folder() / cls.name]

    def load(self, seed: int) -> Data:
        arrays = self._arrays()
        mean, std = self._statistics(arrays)
        return draw_data(self, arrays, seed, mean=mean, std=std)

    def _arrays(self) -> Arrays:
        """Return train_x [n, C, H, W] uint8, train_y [n] int64, and test_x, test_y unless there is
        no test set.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement _arrays()")

    def _statistics(self, arrays: Arrays) -> Statistics:
        """Return mean and standard deviation of each channel, as ``normalise`` wants them."""
        normalise = getattr(self.params, "normalise", "own")
        if normalise == "half":
            half = (0.5,) * arrays["train_x"].shape[1]
            return half, half
        if normalise in self.published:
            return self.published[normalise]
        return tuple(arrays["mean"].tolist()), tuple(arrays["std"].tolist())

    def _once(
        self,
        files: Sequence[Path],
        root: Path,
        read: Callable[[Sequence[Path]], Arrays],
        *settings: str,
    ) -> Arrays:
        """Return what ``read`` makes of the files, with the statistics of the training images
        unless they are published; cached.
        """

        def complete(files: Sequence[Path]) -> Arrays:
            arrays = read(files)
            if "own" in self.published:
                return arrays
            return arrays | moments(arrays["train_x"])

        return read_once(self.name, files, root, complete, self._remedy(), settings)

    def _remedy(self) -> str:
        """Return what to do about a file that is missing or damaged."""
        return AGAIN

    def _parts(self, place: Path, train: Part, test: Part) -> Arrays:
        """Return the arrays of a training and a test part.

        Raises:
            UserError: a part has not its official size, or an image no valid label.
        """
        for x, y in (train, test):
            if len(x) != len(y):
                raise UserError(
                    f"{place}: {len(y):,} labels of {len(x):,} images; {self._remedy()}"
                )
            if self.n_classes is not None:
                check_labels(y, self.n_classes, str(place))
        self._check_counts(place, len(train[1]), len(test[1]))
        return {"train_x": train[0], "train_y": train[1], "test_x": test[0], "test_y": test[1]}

    def _check_counts(self, place: Path, *counts: int) -> None:
        if self.expected is None or counts == self.expected:
            return
        raise UserError(
            f"{place}: {counts} images (train, test), {self.name} has {self.expected}: fewer or "
            "more than the official set; delete it and get it again, or use the data set "
            "'image-folder' for a part of it (train: N draws N by seed)"
        )

    def _from_folders(self, folders: Sequence[Path], **decoding: Any) -> Arrays:
        """Return the arrays of one tree of class folders, or of two: train and test.

        Raises:
            UserError: a wrong number of classes or images, a training class with a single image, a
                test class that train does not have, or an unreadable file.
        """
        trees = [self._training_tree(folders[0])]
        trees += [_test_tree(folder, trees[0].names) for folder in folders[1:]]
        if len(trees) == 2:
            self._check_counts(folders[0].parent, *(len(tree.files) for tree in trees))
        return self._decoded(trees, folders[0].parent, **decoding)

    def _training_tree(self, folder: Path) -> Labelled:
        tree = class_folders(folder, at_least=2)
        if self.n_classes not in (None, len(tree.names)):
            raise UserError(
                f"{folder}: {len(tree.names)} class folders, {self.name} has {self.n_classes}; "
                "unpack it again, or use the data set 'image-folder'"
            )
        return tree

    def _decoded(self, trees: Sequence[Labelled], root: Path, **decoding: Any) -> Arrays:
        """Return the arrays of one tree or two (train, test) below ``root``, decoded alike."""
        import PIL

        # labels may lie in a file of their own, not in the images' paths
        labels = [str(tree.y.tolist()) for tree in trees]
        settings = (f"pillow {PIL.__version__}", repr(sorted(decoding.items())), *labels)
        files = [Path(file) for file in chain.from_iterable(tree.files for tree in trees)]
        read = partial(_decode_trees, trees, decoding)
        return self._once(files, root, read, *settings)


class ArchivedSet(ImageSet):
    """An image set that is downloaded as one archive and unpacked into one folder."""

    folder: ClassVar[str]
    remote: ClassVar[Remote]
    most_bytes: ClassVar[int]  # unpacked

    @classmethod
    def _places(cls) -> list[Path]:
        return [data_folder() / cls.folder, data_folder() / cls.remote.name]

    def _unpacked(self, alternative: str = "") -> Path:
        """Return the folder, downloaded and unpacked if need be.

        Args:
            alternative: another way to the data, for the message where there is no download.
        """
        root = data_folder()
        if not (root / self.folder).exists():
            try:
                archive = fetch(self.remote, root)
            except UserError as error:
                raise UserError(*error.messages[:-1], error.messages[-1] + alternative) from error
            unpack(archive, root, self.folder, self.most_bytes)
        return root / self.folder

    def _remedy(self) -> str:
        folder = data_folder() / self.folder
        return f"delete {folder} and run again, or {self.remote.how_to_get(folder.parent)}"


def _decode_trees(
    trees: Sequence[Labelled], decoding: dict[str, Any], files: Sequence[Path]
) -> Arrays:
    x, cut = decode_images(files, **decoding), len(trees[0].files)
    arrays = {"train_x": x[:cut], "train_y": trees[0].y}
    if len(trees) == 2:
        arrays |= {"test_x": x[cut:], "test_y": trees[1].y}
    return arrays


def moments(x: np.ndarray) -> Arrays:
    """Return ``mean`` and ``std`` [C] of uint8 images in units of 0..1, to 4 decimals, from exact
    sums.
    """
    n = x[:, 0].size
    mean = x.sum((0, 2, 3), dtype=np.int64) / n
    # n=images c=channels h=height w=width
    squares = np.einsum("nchw,nchw->c", x, x, dtype=np.int64) / n
    std = np.sqrt(np.maximum(squares - mean**2, 1))  # images of one colour stay finite
    return {"mean": (mean / 255).round(4), "std": (std / 255).round(4)}


def _test_tree(folder: Path, names: list[str]) -> Labelled:
    """Return a test tree with the classes ``names`` of the training tree, of which it may lack
    some.
    """
    tree = class_folders(folder)
    unknown = sorted(set(tree.names) - set(names))
    if unknown:
        raise UserError(
            f"{folder / unknown[0]}: a class that the training folder does not have; add it there "
            "or remove it here"
        )
    position = np.array([names.index(name) for name in tree.names])
    return Labelled(tree.files, position[tree.y], names)
