"""Tiny ImageNet."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from fedbench.core import (
    Arrays,
    Labelled,
    Remote,
    UserError,
    cached,
    check_size,
    class_folders,
    data_folder,
    fetch,
    file_lines,
    unpack,
)
from fedbench.plugins.datasets.imageset import ImageSet, check_counts, decode_trees

_FOLDER = "tiny-imagenet-200"
_MOST_BYTES = 2_000_000_000  # unpacked
_MOST_TABLE_BYTES = 10_000_000  # of the labels, which take 270 KB


class TinyImageNet(ImageSet):
    """110,000 colour images 64x64, 200 classes: 100,000 to train on; the labelled validation set, 10,000, is the test set.

    The official test images have no published labels and are not used. Normalised with the mean and standard deviation
    of its own training images.
    """

    name = "tiny-imagenet"
    n_classes = 200
    expected = (100_000, 10_000)
    size_mb = 248.1
    home = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
    licence = "ImageNet's terms of access: non-commercial research and education"
    citation = "Y. Le, X. Yang: Tiny ImageNet visual recognition challenge. CS 231N, 2015"
    remote: ClassVar[Remote] = Remote(
        "tiny-imagenet-200.zip", ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
        "md5:90528d7ca1a48142e341f4ef8d21d0de", 248_100_043,
    )  # fmt: skip

    @classmethod
    def _places(cls) -> list[Path]:
        return [data_folder() / _FOLDER, data_folder() / cls.remote.name]

    def _arrays(self) -> Arrays:
        root = data_folder()
        folder = root / _FOLDER
        if not folder.exists():
            unpack(fetch(self.remote, root), root, _FOLDER, _MOST_BYTES)
        train = class_folders(folder / "train", at_least=2)
        if len(train.names) != self.n_classes:
            raise UserError(
                f"{folder / 'train'}: {len(train.names)} class folders, {self.name} has {self.n_classes}; delete {folder} "
                f"and run again, or {self.remote.how_to_get(root)}"
            )
        trees = [train, validation(folder / "val", train.names)]
        check_counts(type(self), str(folder), *(len(t.files) for t in trees))
        import PIL

        files = [f for t in trees for f in t.files]
        labels = [str(y) for y in trees[1].y]  # they lie in a file of their own, not in the images' paths
        source = [self.name, f"pillow {PIL.__version__}", *labels, *file_lines(files, folder)]
        return cached(self.name, source, lambda: decode_trees(trees, channels=3))


def validation(folder: Path, names: list[str]) -> Labelled:
    """Images and labels of ``val``: as published, ``images/`` beside ``val_annotations.txt`` (tab-separated: file,
    class, box), or sorted into class folders, as many keep it. Raises ``UserError`` naming file and line."""
    table = folder / "val_annotations.txt"
    if not (table.exists() and (folder / "images").is_dir()):
        tree = class_folders(folder, names)
        return Labelled(tree.files, tree.y, names)
    check_size(table, _MOST_TABLE_BYTES)
    position = {name: i for i, name in enumerate(names)}
    files, y = [], []
    for number, line in enumerate(table.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        image, _, rest = line.partition("\t")
        label = rest.partition("\t")[0]
        if label not in position or Path(image).name != image or not (folder / "images" / image).is_file():
            raise UserError(
                f"{table}:{number}: no class folder '{label}' in train or no image '{image}'; delete "
                f"{folder.parent} and run again"
            )
        files.append(str(folder / "images" / image))
        y.append(position[label])
    return Labelled(files, np.array(y, np.int64), names)
