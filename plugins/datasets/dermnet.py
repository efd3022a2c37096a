"""DermNet, brought by the user."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from fedbench.core import Arrays, UserError, data_folder
from fedbench.plugins.datasets.imageset import ImageSet, folder_arrays

_SIDE = 64


class DermNet(ImageSet):
    """About 19,500 photographs of skin diseases, 23 classes, cropped to 64x64 (FedMIA, CVPR 2025, appendix: "cropped").

    Not freely downloadable: the class folders are put in place by hand. The largest square from the middle is scaled to
    64x64; normalised with the mean and standard deviation of the training images.
    """

    name = "dermnet"
    n_classes = 23
    size_mb = 1800.0
    home = "https://www.kaggle.com/datasets/shubhamgoel27/dermnet"
    licence = "the pictures belong to Dermnet; terms at the download page, an account is needed"
    citation = "Dermnet: dermatology resource, dermnet.com (23-class collection on Kaggle, S. Goel)"

    class Params(ImageSet.Params):
        holdout: int = Field(
            1000, ge=1, description="outside non-members, set aside from the official test set, never trained on"
        )

    @classmethod
    def _places(cls) -> list[Path]:
        return [data_folder() / cls.name / "train"]

    def _arrays(self) -> Arrays:
        folder = data_folder() / self.name
        absent = [part for part in ("train", "test") if not (folder / part).is_dir()]
        if absent:
            raise UserError(
                f"dermnet is not in {folder} (no folder '{absent[0]}') and cannot be downloaded freely: get the archive "
                f"(about 1.8 GB, 15,500 training and 4,000 test images, no published checksum) from {self.home} with your "
                f"account, unpack it, and put its class folders at {folder}/train/<class>/*.jpg and "
                f"{folder}/test/<class>/*.jpg, {self.n_classes} classes each"
            )
        return folder_arrays(type(self), [folder / "train", folder / "test"], size=_SIDE, channels=3, fit="crop")
