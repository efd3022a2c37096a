"""Images of the generative federation: those of an image set, with a public part."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy import ndarray
from pydantic import Field

from fedbench.core import Data, Dataset, Params, UserError
from fedbench.plugins.datasets.cifar import Cifar10, Cifar100
from fedbench.plugins.datasets.handwriting import Digits, FashionMnist, Mnist
from fedbench.plugins.datasets.sampling import rng_for
from fedbench.plugins.generative.diffusion import CLASSES, Denoising

_SETS: dict[str, type[Dataset]] = {
    "digits": Digits,
    "mnist": Mnist,
    "fashion-mnist": FashionMnist,
    "cifar10": Cifar10,
    "cifar100": Cifar100,
}
_SPLITS = ("train", "test", "holdout")


class DenoisingImages(Dataset):
    """Images of classes 0 to 9, values in -1..1, divided by seed into train, test and hold-out.

    All others are the public part, on which the denoiser is pretrained; it is never audited.
    """

    default_model = "denoiser-mlp"
    licence = f"that of the image set; digits: {Digits.licence}"
    citation = f"that of the image set; digits: {Digits.citation}"
    home = Digits.home
    size_mb = Digits.size_mb

    class Params(Params):
        images: Literal["digits", "mnist", "fashion-mnist", "cifar10", "cifar100"] = Field(
            "digits", description="the image set"
        )
        train: int = Field(1000, ge=1, le=10**6, description="samples of all clients together")
        test: int = Field(100, ge=1, le=10**6, description="test samples")
        holdout: int = Field(
            300, ge=1, le=10**6, description="outside non-members, never trained on"
        )

    @classmethod
    def here(cls) -> str | bool:
        """Return where the digits lie, the set that is the default."""
        return Digits.here()

    def load(self, seed: int) -> Data:
        x, y = self._images()
        order = rng_for(seed, "denoising").permutation(len(y))
        sizes = [getattr(self.params, split) for split in _SPLITS]
        if sum(sizes) >= len(y):
            raise UserError(
                f"{self.params.images} has {len(y):,} images of {CLASSES} classes: train, test and "
                f"holdout ({' + '.join(map(str, sizes))}) leave none for the public part, on which "
                "the denoiser is pretrained; lower them"
            )
        parts = np.split(order, np.cumsum(sizes))
        arrays: dict[str, Any] = {}
        for split, part in zip((*_SPLITS, "public"), parts, strict=True):
            arrays[f"{split}_x"] = x[part]
            arrays[f"{split}_y"] = y[part]
        return Data(n_classes=x[0].size, task=Denoising(), **arrays)

    def _images(self) -> tuple[ndarray, ndarray]:
        """Return all images of the first ten classes, in one order."""
        data = _SETS[self.params.images]().load(0)
        x, y = (
            np.concatenate([getattr(data, f"{split}_{part}") for split in _SPLITS]) for part in "xy"
        )
        x, y = x[y < CLASSES], y[y < CLASSES]
        if x.dtype == np.uint8:
            x = x / np.float32(255)
        return 2 * x - 1, y
