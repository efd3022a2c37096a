"""scikit-learn's handwritten digits."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from fedbench.core import Data, Dataset, Params, UserError
from fedbench.plugins.datasets.sampling import mislabel


class Digits(Dataset):
    """1,797 8x8 images, pixel values 0..16 scaled to 0..1; split at random by seed.

    ``label_noise`` mislabels a share of train and hold-out, never of test: clean digits hardly leak.
    """

    default_model = "mlp"
    licence = "CC BY 4.0"
    citation = "E. Alpaydin, C. Kaynak: Optical recognition of handwritten digits. UCI, 1998 (scikit-learn's copy)"
    home = "https://archive.ics.uci.edu/dataset/80"
    size_mb = 0.0

    class Params(Params):
        test: int = Field(397, ge=1, le=1795, description="test samples, clean labels")
        holdout: int = Field(200, ge=1, le=1795, description="outside non-members, never trained on")
        label_noise: float = Field(
            0.0, ge=0, le=1, description="share of mislabelled canaries in train and hold-out, as a fraction"
        )

    @classmethod
    def here(cls) -> str | bool:
        """Always: it comes with scikit-learn."""
        return "built in"

    def load(self, seed: int) -> Data:
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        p = self.params
        if p.test + p.holdout >= len(x):
            raise UserError(
                f"digits has {len(x)} samples: test ({p.test}) + holdout ({p.holdout}) leave none to train on; lower them"
            )
        rng = np.random.Generator(np.random.Philox([seed, 0xD161]))
        order = rng.permutation(len(x))
        x = (x[order] / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
        y = y[order].astype(np.int64)
        test, hold = slice(0, p.test), slice(p.test, p.test + p.holdout)
        train = slice(p.test + p.holdout, None)
        train_y, train_canary = mislabel(y[train], p.label_noise, 10, rng)
        hold_y, hold_canary = mislabel(y[hold], p.label_noise, 10, rng)
        return Data(
            train_x=x[train], train_y=train_y, test_x=x[test], test_y=y[test], holdout_x=x[hold], holdout_y=hold_y, n_classes=10,
            train_canary=train_canary, holdout_canary=hold_canary,
        )  # fmt: skip
