"""A data set of the checks' own: small pictures of four kinds, some of them mislabelled, so that little training tells."""

from __future__ import annotations

from math import prod

import numpy as np
from pydantic import Field
from torch import nn

from fedbench.core.contract.attack import Attack, Audit, Observations
from fedbench.core.contract.dataset import Data, Dataset
from fedbench.core.contract.model import Model
from fedbench.core.contract.params import Params as Base

CLASSES = 4
_TEST = 40


class TinyPictures(Dataset):
    """8x8 grey pictures: noise around one picture a class, a third of the labels wrong."""

    class Params(Base):
        holdout: int = Field(400, ge=1, le=100_000, description="outside non-members, never trained on")
        train: int = Field(160, ge=1, le=100_000, description="training samples of all clients together")

    licence = "CC0"
    size_mb = 0.0

    def load(self, seed: int) -> Data:
        rng = np.random.Generator(np.random.Philox([seed, 0x71E5]))
        pictures = rng.random((CLASSES, 1, 8, 8))

        def split(n: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
            y = rng.integers(0, CLASSES, n)
            x = np.clip(pictures[y] + 0.3 * rng.normal(size=(n, 1, 8, 8)), 0, 1).astype(np.float32)
            return x, np.where(rng.random(n) < noise, rng.integers(0, CLASSES, n), y).astype(np.int64)

        (train_x, train_y), (test_x, test_y) = split(self.params.train, 0.3), split(_TEST, 0)
        holdout_x, holdout_y = split(self.params.holdout, 0.3)
        return Data(
            train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y, holdout_x=holdout_x, holdout_y=holdout_y,
            n_classes=CLASSES,
        )  # fmt: skip


class PlainLoss(Attack):
    """Minus the loss on the target's last upload: the attack of trials that are not about attacks."""

    needs = frozenset({"loss"})

    def score(self, observations: Observations, audit: Audit) -> np.ndarray:
        return -observations.of_target("loss")[-1].astype(np.float64)


class NormedNet(Model):
    """A small network that normalises by statistics of the batch."""

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        width = 8
        return nn.Sequential(
            nn.Flatten(), nn.Linear(prod(input_shape), width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, n_classes)
        )
