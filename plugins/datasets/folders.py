"""Class folders: any folder of them, DermNet and Tiny ImageNet."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, field_validator

from fedbench.core import Params, UserError
from fedbench.core.toolkit import Arrays, Labelled, Remote, check_size, class_folders, data_folder
from fedbench.plugins.datasets.imageset import (
    ArchivedSet,
    ImageSet,
    Statistics,
    check_counts,
    decoded,
    folder_arrays,
)

_MOST_TABLE_BYTES = 10_000_000  # of the labels, which take 270 KB
_TEST_NAMES = ("test", "val")
# torchvision's, of ImageNet's training images
_IMAGENET: Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class ImageFolder(ImageSet):
    """``path/<class>/<image>``, split by seed; or ``path/train/<class>`` with ``path/test/<class>``
    (or ``val``).

    Without a test folder, train, test and hold-out are drawn from all images; with one, the
    hold-out is set aside from the test folder. Each class keeps its share in every split.
    """

    name = "image-folder"
    licence = "yours"
    citation = "the data's own"

    class Params(Params):
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
            "all images where there "
            "is none), ImageNet's, or 0.5 and 0.5",
        )
        train: int | None = Field(
            None,
            ge=1,
            description="training images, drawn by seed, each class keeping its share; null: all "
            "that is left",
        )
        test: int | float | None = Field(
            None,
            gt=0,
            description="test images, a count or a share below 1; null: the rest of the test "
            "folder, or 0.2",
        )
        holdout: int | float = Field(
            0.1,
            gt=0,
            description="outside non-members, a count or a share below 1 of the test folder or of "
            "all images",
        )
        label_noise: float = Field(
            0.0,
            ge=0,
            le=1,
            description="share of mislabelled canaries in train and hold-out, as a fraction",
        )

        @field_validator("test", "holdout")
        @classmethod
        def _count_or_share(cls, value: int | float | None) -> int | float | None:
            if isinstance(value, float) and value >= 1:
                raise ValueError(f"{value} is neither a whole number of images nor a share below 1")
            return value

    @classmethod
    def here(cls) -> str | bool:
        return "wherever 'path' says"

    def _statistics(self, arrays: Arrays) -> Statistics:
        channels = arrays["train_x"].shape[1]
        fixed = {"imagenet": _IMAGENET, "half": ((0.5,) * channels, (0.5,) * channels)}
        if self.params.normalise == "imagenet" and channels != 3:
            raise UserError(
                "image-folder: normalise: imagenet needs colour images; set channels: 3 or "
                "normalise: own"
            )
        return fixed.get(self.params.normalise) or super()._statistics(arrays)

    def _arrays(self) -> Arrays:
        p = self.params
        path = data_folder() / Path(p.path).expanduser()
        if not path.is_dir():
            raise UserError(
                f"image-folder: {path} is not a folder; put the images at {path}/<class>/<image>, "
                "or at "
                f"{path}/train/<class>/<image> and {path}/test/<class>/<image>, or change 'path'"
            )
        return folder_arrays(type(self), _trees(path), size=p.size, channels=p.channels, fit=p.fit)


def _trees(path: Path) -> list[Path]:
    """``[all]`` or ``[train, test]``. Raises ``UserError`` for a train folder without a test
    folder.
    """
    if not (path / "train").is_dir():
        return [path]
    for name in _TEST_NAMES:
        if (path / name).is_dir():
            return [path / "train", path / name]
    raise UserError(
        f"{path}: a folder 'train' but no 'test' or 'val' beside it; add one, or give "
        f"{path / 'train'} as 'path' to have "
        "it split by seed"
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
        absent = [part for part in ("train", "test") if not (folder / part).is_dir()]
        if absent:
            raise UserError(
                f"dermnet is not in {folder} (no folder '{absent[0]}') and cannot be downloaded "
                "freely: get the archive "
                "(about 1.8 GB, 15,500 training and 4,000 test images, no published checksum) "
                f"from {self.home} with your "
                f"account, unpack it, and put its class folders at {folder}/train/<class>/*.jpg "
                "and "
                f"{folder}/test/<class>/*.jpg, {self.n_classes} classes each"
            )
        return folder_arrays(
            type(self), [folder / "train", folder / "test"], size=64, channels=3, fit="crop"
        )


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
        train = class_folders(folder / "train", at_least=2)
        if len(train.names) != self.n_classes:
            raise UserError(
                f"{folder / 'train'}: {len(train.names)} class folders, {self.name} has "
                f"{self.n_classes}; "
                f"{self._again(folder)}"
            )
        trees = [train, validation(folder / "val", train.names)]
        check_counts(type(self), str(folder), *(len(t.files) for t in trees))
        return decoded(self.name, trees, folder, channels=3)


def validation(folder: Path, names: list[str]) -> Labelled:
    """Images and labels of ``val``: as published, ``images/`` beside ``val_annotations.txt``
    (tab-separated: file, class, box), or sorted into class folders, as many keep it. Raises
    ``UserError`` naming file and line.
    """
    table = folder / "val_annotations.txt"
    if not (table.exists() and (folder / "images").is_dir()):
        tree = class_folders(folder, names)
        return Labelled(tree.files, tree.y, names)
    check_size(table, _MOST_TABLE_BYTES)
    position = {name: i for i, name in enumerate(names)}
    files, y = [], []
    for number, line in enumerate(
        table.read_text(encoding="utf-8", errors="replace").splitlines(), 1
    ):
        image, _, rest = line.partition("\t")
        label = rest.partition("\t")[0]
        if (
            label not in position
            or Path(image).name != image
            or not (folder / "images" / image).is_file()
        ):
            raise UserError(
                f"{table}:{number}: no class folder '{label}' in train or no image '{image}'; "
                "delete "
                f"{folder.parent} and run again"
            )
        files.append(str(folder / "images" / image))
        y.append(position[label])
    return Labelled(files, np.array(y, np.int64), names)
