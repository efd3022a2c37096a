"""Class folders: any folder of them, DermNet and Tiny ImageNet."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedbench.core import UserError
from fedbench.core.toolkit import Arrays, Labelled, Remote, class_folders, data_folder
from fedbench.plugins.datasets.columns import read_columns, require_column
from fedbench.plugins.datasets.imageset import ArchivedSet, ImageSet, Statistics
from fedbench.plugins.datasets.reading import parsing
from fedbench.plugins.datasets.sampling import Amount, Drawn, number_clients


class ImageFolder(ImageSet):
    """``path/<class>/<image>``, split by seed; or ``path/train/<class>`` with ``path/test/<class>``
    (or ``val``).

    Without a test folder, train, test and hold-out are drawn from all images; with one, the
    hold-out is set aside from the test folder. Each class keeps its share in every split.
    """

    name = "image-folder"
    licence = "yours"
    citation = "the data's own"
    # torchvision's, of ImageNet's training images
    published: ClassVar[dict[str, Statistics]] = {
        "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    }

    class Params(Drawn):
        path: str = Field(
            min_length=1,
            description="the folder; a relative path starts at the data folder ($FEDBENCH_DATA)",
        )
        size: int | None = Field(
            None,
            ge=4,
            le=1024,
            description="side of the square the images are resized to, in pixels; null: as they "
            "are",
        )
        fit: Literal["stretch", "crop"] = Field(
            "stretch",
            description="how an oblong image becomes square: stretched, or its middle cropped",
        )
        channels: Literal[1, 3] | None = Field(
            None, description="1 converts to grey, 3 to RGB; null: as they are, all alike"
        )
        normalise: Literal["own", "imagenet", "half"] = Field(
            "own",
            description="channel mean and standard deviation: of the training folder's pixels (of "
            "all images where there is none), ImageNet's (of colour images), or 0.5 and 0.5",
        )
        test: Amount | None = Field(
            None,
            description="test images, a count or a share below 1; null: the rest of the test "
            "folder, or 0.2",
        )
        holdout: Amount = Field(
            0.1,
            description="outside non-members, a count or a share below 1 of the test folder or of "
            "all images",
        )
        clients: str | None = Field(
            None,
            description="a table in the folder, with columns file (below the folder, as "
            "train/cat/1.png) and client: the client that each image belongs to",
        )

    @classmethod
    def here(cls) -> str | bool:
        return "wherever 'path' says"

    def _arrays(self) -> Arrays:
        path = data_folder() / Path(self.params.path).expanduser()
        if not path.is_dir():
            raise UserError(
                f"image-folder: {path} is not a folder; put the images at {path}/<class>/<image>, "
                f"or at {path}/train/<class>/<image> and {path}/test/<class>/<image>, or change "
                "'path'"
            )
        decoding = self.params.model_dump(include={"size", "channels", "fit"})
        trees = _trees(path)
        arrays = self._from_folders(trees, **decoding)
        if self.params.clients is None:
            return arrays
        names = [_clients(tree, path, path / self.params.clients) for tree in trees]
        return arrays | number_clients(*names)


def _clients(tree: Path, root: Path, table: Path) -> np.ndarray:
    """Return the client's name of each image below ``tree``, in the order of ``class_folders``."""
    columns = read_columns(table)
    for name in ("file", "client"):
        require_column(columns, name, table)
    clients = dict(zip(columns["file"].astype(str), columns["client"].astype(str), strict=True))
    names = []
    for image in class_folders(tree).files:
        file = Path(image).relative_to(root).as_posix()
        if not clients.get(file):
            raise UserError(f"{table}: no client of {file}; add a row, or remove the image")
        names.append(clients[file])
    return np.array(names)


def _trees(path: Path) -> list[Path]:
    """Return ``[all]`` or ``[train, test]``. Raises ``UserError`` for a lone train folder."""
    train = path / "train"
    if not train.is_dir():
        return [path]
    for name in ("test", "val"):
        if (path / name).is_dir():
            return [train, path / name]
    raise UserError(
        f"{path}: a folder 'train' but no 'test' or 'val' beside it; add one, or give {train} as "
        "'path' to have it split by seed"
    )


class DermNet(ImageSet):
    """About 19,500 photographs of skin diseases, 23 classes, cropped to 64x64 (FedMIA, CVPR 2025,
    appendix: "cropped").

    Not freely downloadable: the class folders are put in place by hand. The largest square from the
    middle is scaled to 64x64; normalised with the mean and standard deviation of the training
    images.
    """

    name = "dermnet"
    n_classes = 23
    size_mb = 1800.0
    home = "https://www.kaggle.com/datasets/shubhamgoel27/dermnet"
    licence = "the pictures belong to Dermnet; terms at the download page, an account is needed"
    citation = "Dermnet: dermatology resource, dermnet.com (23-class collection on Kaggle, S. Goel)"

    class Params(ImageSet.Params):
        holdout: int = Field(
            1000,
            ge=1,
            description="outside non-members, set aside from the official test set, never trained "
            "on",
        )

    @classmethod
    def _places(cls) -> list[Path]:
        return [data_folder() / cls.name / "train"]

    def _arrays(self) -> Arrays:
        folder = data_folder() / self.name
        trees = [folder / "train", folder / "test"]
        if not all(tree.is_dir() for tree in trees):
            raise UserError(
                f"dermnet is not in {folder} and cannot be downloaded freely: get the archive "
                "(about 1.8 GB, 15,500 training and 4,000 test images, no published checksum) from "
                f"{self.home} with your account, unpack it, and put its class folders at "
                f"{folder}/train/<class>/*.jpg and {folder}/test/<class>/*.jpg, "
                f"{self.n_classes} classes each"
            )
        return self._from_folders(trees, size=64, channels=3, fit="crop")


class TinyImageNet(ArchivedSet):
    """110,000 colour images 64x64, 200 classes: 100,000 to train on; the labelled validation set,
    10,000, is the test set.

    The official test images have no published labels and are not used. Normalised with the mean and
    standard deviation of its own training images.
    """

    name = "tiny-imagenet"
    n_classes = 200
    expected = (100_000, 10_000)
    size_mb = 248.1
    home = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
    licence = "ImageNet's terms of access: non-commercial research and education"
    citation = "Y. Le, X. Yang: Tiny ImageNet visual recognition challenge. CS 231N, 2015"
    folder = "tiny-imagenet-200"
    most_bytes = 2_000_000_000
    remote = Remote(
        "tiny-imagenet-200.zip",
        ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
        "md5:90528d7ca1a48142e341f4ef8d21d0de",
        248_100_043,
    )

    def _arrays(self) -> Arrays:
        folder = self._unpacked()
        train = self._training_tree(folder / "train")
        test = self._validation(folder / "val", train.names)
        self._check_counts(folder, len(train.files), len(test.files))
        return self._decoded([train, test], folder, channels=3)

    def _validation(self, folder: Path, names: list[str]) -> Labelled:
        """Return ``images/`` with the labels of ``val_annotations.txt`` (tab-separated: file,
        class, box).
        """
        table = folder / "val_annotations.txt"
        with parsing(table, self._remedy()):
            rows = [line.split("\t") for line in table.read_text(encoding="utf-8").splitlines()]
            y = np.array([names.index(row[1]) for row in rows], np.int64)
        return Labelled([str(folder / "images" / row[0]) for row in rows], y, names)
