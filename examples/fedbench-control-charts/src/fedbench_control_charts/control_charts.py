"""ControlCharts: synthetic control charts, drawn from their published equations."""

from __future__ import annotations

import numpy as np
from fedbench.core import Data, Dataset, Params
from pydantic import Field

NAMES = ("normal", "cyclic", "increasing", "decreasing", "upward shift", "downward shift")
_MEAN, _SPREAD = 30.0, 2.0  # m and s of the equations
_SCALE = 10.0  # brings the series to about -3..3


class ControlCharts(Dataset):
    """Series y(t), t = 0..length-1, of six classes, as (y - 30) / 10 in float32 [n, 1, length].

    Every series is m + r(t) s with m = 30, s = 2 and r(t) uniform in -3 to 3. To that add: cyclic,
    a sin(2 pi t / T) with a and T in 10 to 15; a trend, +- g t with g in .2 to .5; a shift, +- x
    from t3 on with x in 7.5 to 20 and t3 in the middle third. All are uniform, drawn once a series.
    The equations are for 60 points; trends of another ``length`` have the same total rise.
    ``label_noise`` mislabels a share of train and hold-out (canaries), never of test: clean series
    hardly leak.

    Source: R. J. Alcock, Y. Manolopoulos, Time-series similarity queries employing a feature-based
    approach, 1999; the equations are those of the UCI data set 139 (Synthetic Control Chart Time
    Series), 600 series of length 60.
    """

    default_model = "conv-series"
    licence = "CC0-1.0 (generated); after UCI's, CC BY 4.0"
    citation = (
        "R. J. Alcock, Y. Manolopoulos: Time-series similarity queries employing a "
        "feature-based approach. 1999"
    )
    home = "https://archive.ics.uci.edu/dataset/139"
    size_mb = 0.0

    class Params(Params):
        train: int = Field(1_200, ge=12, le=1_000_000, description="series that the clients share")
        other: int = Field(
            600, ge=12, le=1_000_000, description="test series, and as many outside non-members"
        )
        length: int = Field(60, ge=12, le=10_000, description="points of a series")
        label_noise: float = Field(
            0.0,
            ge=0,
            le=1,
            description="share of mislabelled canaries in train and hold-out, as a fraction",
        )

    @classmethod
    def here(cls) -> str | bool:
        """Generated, so always available."""
        return "generated"

    def load(self, seed: int) -> Data:
        """Three disjoint splits; the same seed gives the same bits."""
        rng = np.random.Generator(np.random.Philox([seed, 0xCC139]))
        train_x, train_y = self._draw(self.params.train, rng)
        test_x, test_y = self._draw(self.params.other, rng)
        holdout_x, holdout_y = self._draw(self.params.other, rng)
        train_y, train_canary = self._mislabelled(train_y, rng)
        holdout_y, holdout_canary = self._mislabelled(holdout_y, rng)
        return Data(
            train_x=train_x,
            train_y=train_y,
            test_x=test_x,
            test_y=test_y,
            holdout_x=holdout_x,
            holdout_y=holdout_y,
            n_classes=len(NAMES),
            train_canary=train_canary,
            holdout_canary=holdout_canary,
        )

    def _draw(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """[n, 1, length] float32 series and [n] int64 classes, balanced and in random order."""
        y = rng.permutation(np.arange(n) % len(NAMES))
        noise = _SPREAD * rng.uniform(-3, 3, (n, self.params.length))
        x = (noise + self._signals(y, rng)) / _SCALE  # without the mean m
        return x[:, None].astype(np.float32), y.astype(np.int64)

    def _signals(self, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """[n, length]: what each class adds to m + r s. All terms are drawn for every series,
        whatever its class.
        """
        n, length = len(y), self.params.length
        t = np.arange(length)[None]
        amplitude, period = rng.uniform(10, 15, (n, 1)), rng.uniform(10, 15, (n, 1))
        trend = rng.uniform(0.2, 0.5, (n, 1)) * t * (60 / length)
        shift = rng.uniform(7.5, 20, (n, 1)) * (
            t >= rng.uniform(length / 3, 2 * length / 3, (n, 1))
        )
        cycle = amplitude * np.sin(2 * np.pi * t / period)
        kinds = np.stack([np.zeros_like(cycle), cycle, trend, -trend, shift, -shift])
        return np.asarray(kinds[y, np.arange(n)])

    def _mislabelled(
        self, y: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Labels with a share of wrong ones, and [n] bool: which are wrong."""
        canary = np.zeros(len(y), bool)
        canary[rng.permutation(len(y))[: round(self.params.label_noise * len(y))]] = True
        wrong = (y + rng.integers(1, len(NAMES), len(y))) % len(NAMES)
        return np.where(canary, wrong, y), canary
