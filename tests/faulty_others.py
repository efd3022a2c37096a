"""Models, data sets and signals with one mistake each: a class is called as the check
that must find it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from fedbench.core import Data, Dataset, Model, Signal

# --- models ---------------------------------------------------------------------------------------


class Unused(nn.Module):
    def __init__(self, size, classes):
        super().__init__()
        self.used, self.unused = nn.Linear(size, classes), nn.Linear(size, classes)

    def forward(self, x):
        return self.used(x.flatten(1))


class GradientOfEveryParameter(Model):
    """A layer that the forward pass forgets."""

    def build(self, input_shape, n_classes):
        return Unused(int(np.prod(input_shape)), n_classes)


class Across(nn.Linear):
    def forward(self, x):
        out = super().forward(x.flatten(1))
        return out - out.mean(0, keepdim=True) * torch.linspace(0, 1, len(out))[:, None]


class SamplesFirst(Model):
    """Mixes the samples of a batch by their places."""

    def build(self, input_shape, n_classes):
        return Across(int(np.prod(input_shape)), n_classes)


class Doubled(nn.Linear):
    def forward(self, x):
        return super().forward(x.flatten(1)).double()


class AnswersLogits(Model):
    """float64 logits."""

    def build(self, input_shape, n_classes):
        return Doubled(int(np.prod(input_shape)), n_classes)


class Few(nn.Linear):
    def forward(self, x):
        assert len(x) < 8
        return super().forward(x.flatten(1))


class RunsEndToEnd(Model):
    """Takes a few samples at a time only."""

    def build(self, input_shape, n_classes):
        return Few(int(np.prod(input_shape)), n_classes)


# --- data sets ------------------------------------------------------------------------------------


class SoundData(Dataset):
    """Two clouds."""

    licence, citation, home, size_mb = "CC0", "none", "https://example.org", 0.0

    def load(self, seed):
        return self._drawn(np.random.default_rng(seed))

    def _drawn(self, rng, **changes):
        def split(n):
            y = rng.integers(0, 2, n)
            return (rng.normal(size=(n, 3)) + y[:, None]).astype(np.float32), y

        (a, b), (c, d), (e, f) = split(80), split(20), split(80)
        arrays = {
            "train_x": a,
            "train_y": b,
            "test_x": c,
            "test_y": d,
            "holdout_x": e,
            "holdout_y": f,
        }
        return Data(**{**arrays, "n_classes": 2, **changes})


class LicenceStated(SoundData):
    """Without a licence."""

    licence = "unknown"


class SplitsDisjoint(SoundData):
    """Its hold-out is its training set."""

    def load(self, seed):
        drawn = super().load(seed)
        return self._drawn(
            np.random.default_rng(seed), holdout_x=drawn.train_x, holdout_y=drawn.train_y
        )


class OtherSeedOtherSplit(SoundData):
    """Another number of classes for another seed."""

    def load(self, seed):
        return self._drawn(np.random.default_rng(seed), n_classes=2 + seed)


# --- signals --------------------------------------------------------------------------------------


class ChunkIndependent(Signal):
    """Against the batch's mean."""

    def measure(self, probe):
        return probe.logits.amax(1) - probe.logits.mean()


class DeclaresOfUpdate(Signal):
    """The loss, shifted by the update's norm, which the class does not declare."""

    def measure(self, probe):
        return probe.losses() + probe.update.norm()
