"""Any folder of class folders."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from fedbench.core import Arrays, UserError, data_folder
from fedbench.core import Params as Base
from fedbench.plugins.datasets.imageset import ImageSet, Statistics, folder_arrays

_TEST_NAMES = ("test", "val")
_IMAGENET: Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # torchvision's, of ImageNet's training images


class ImageFolder(ImageSet):
    """``path/<class>/<image>``, split by seed; or ``path/train/<class>`` with ``path/test/<class>`` (or ``val``).

    Without a test folder, train, test and hold-out are drawn from all images; with one, the hold-out is set aside from
    the test folder. Each class keeps its share in every split.
    """

    name = "image-folder"
    licence = "yours"
    citation = "the data's own"

    class Params(Base):
        path: str = Field(min_length=1, description="the folder; a relative path starts at the data folder ($FEDBENCH_DATA)")
        size: int | None = Field(
            None, ge=4, le=1024, description="side of the square the images are resized to, in pixels; null: as they are"
        )
        fit: Literal["stretch", "crop"] = Field(
            "stretch", description="how an oblong image becomes square: stretched, or its middle cropped"
        )
        channels: Literal[1, 3] | None = Field(None, description="1 converts to grey, 3 to RGB; null: as they are, all alike")
        normalise: Literal["own", "imagenet", "half"] = Field(
            "own",
            description="channel mean and standard deviation: of the training folder's pixels (of all images where there "
            "is none), ImageNet's, or 0.5 and 0.5",
        )
        train: int | None = Field(
            None, ge=1, description="training images, drawn by seed, each class keeping its share; null: all that is left"
        )
        test: int | float | None = Field(
            None, gt=0, description="test images, a count or a share below 1; null: the rest of the test folder, or 0.2"
        )
        holdout: int | float = Field(
            0.1, gt=0, description="outside non-members, a count or a share below 1 of the test folder or of all images"
        )
        label_noise: float = Field(
            0.0, ge=0, le=1, description="share of mislabelled canaries in train and hold-out, as a fraction"
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
            raise UserError("image-folder: normalise: imagenet needs colour images; set channels: 3 or normalise: own")
        return fixed.get(self.params.normalise) or super()._statistics(arrays)

    def _arrays(self) -> Arrays:
        p = self.params
        path = data_folder() / Path(p.path).expanduser()
        if not path.is_dir():
            raise UserError(
                f"image-folder: {path} is not a folder; put the images at {path}/<class>/<image>, or at "
                f"{path}/train/<class>/<image> and {path}/test/<class>/<image>, or change 'path'"
            )
        return folder_arrays(type(self), _trees(path), size=p.size, channels=p.channels, fit=p.fit)


def _trees(path: Path) -> list[Path]:
    """``[all]`` or ``[train, test]``. Raises ``UserError`` for a train folder without a test folder."""
    if not (path / "train").is_dir():
        return [path]
    for name in _TEST_NAMES:
        if (path / name).is_dir():
            return [path / "train", path / name]
    raise UserError(
        f"{path}: a folder 'train' but no 'test' or 'val' beside it; add one, or give {path / 'train'} as 'path' to have "
        "it split by seed"
    )
